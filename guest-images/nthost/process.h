// SPDX-License-Identifier: GPL-2.0-or-later
//
// process.h: an NT process: identity, handle table, threads, images, heaps and the user-mode state that NT keeps in its
// DLLs (TLS bitmap, C run-time, exception filters). All processes share the address space; memory regions know their
// owner.
//
// Its end, as in NT: threads are stopped and their IRPs cancelled; process notify routines are called; handles are
// closed, which sends IRP_MJ_CLEANUP in the context of a thread of the process; secures are dropped; the verifier looks
// for locked pages (bugcheck 0x76); the memory goes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "address_space.h"
#include "nt_types.h"
#include "object.h"
#include "thread.h"

namespace nth {

struct Image;
struct Heap;
struct CrtState;

class Process {
  public:
    nt::DISPATCHER_HEADER header;  // first: a PEPROCESS is a dispatcher object
    uint32_t id = 0;
    std::string name;
    std::string command_line;
    std::u16string command_line_wide;
    uint64_t peb = 0;
    uint32_t exit_code = 259;  // STILL_ACTIVE
    std::atomic<bool> exiting{false};
    bool is_system = false;

    HandleTable handles;

    FutexLock lock;  // guards threads and images
    std::vector<Thread *> threads;
    std::vector<Image *> images;  // in load order, EXE first
    FutexLock loader_lock_;
    Thread *loader_owner = nullptr;
    int loader_depth = 0;

    std::atomic<uint64_t> tls_used{0};  // bit per TLS slot
    std::vector<bool> static_tls;       // images with TLS directory: index = _tls_index

    int32_t(NTAPI *unhandled_filter)(nt::EXCEPTION_POINTERS *) = nullptr;
    std::vector<void *> vectored;
    std::vector<void *> vectored_handlers() {
        Locked l(lock);
        return vectored;
    }
    using SecureCallback = nt::BOOLEAN NTAPI(void *, uint64_t);
    std::vector<SecureCallback *> secure_callbacks;
    FutexLock secure_lock;

    Heap *heap = nullptr;
    std::unique_ptr<CrtState, void (*)(CrtState *)> crt{nullptr, nullptr};

    // Verifier counters.
    std::atomic<int64_t> locked_pages{0};
    std::atomic<int64_t> mapped_views{0};
    std::atomic<int> attached{0};

    Process();
    ~Process();
};

// The System process; exists from start_machine() on.
Process *system_process();
std::vector<Process *> processes();   // referenced
Process *process_by_id(uint32_t id);  // referenced or null

struct ProgramMissing {
    std::vector<std::string> imports;
    std::string error;
};
// Creates a process and its first thread, not yet running; null with *error or the missing imports filled in.
Process *create_process(const std::string &path, const std::string &command_line, ProgramMissing *missing,
                        Thread **first_thread);
[[noreturn]] void run_program(Thread *t);  // first thread, on its NT stack
// Stops all threads of the process but the caller; returns when they are gone.
void stop_other_threads(Process *p, uint32_t code);

// Ends the calling thread's process.
[[noreturn]] void exit_process(uint32_t code);
// Ends another process, or the calling one.
void terminate_process(Process *p, uint32_t code);
// Called by the last thread (or by the reaper): everything after the threads are gone.
void tear_down_process(Process *p);

using ProcessNotify = void NTAPI(nt::HANDLE parent, nt::HANDLE process, nt::BOOLEAN create);
bool add_process_notify(ProcessNotify *routine);
bool remove_process_notify(ProcessNotify *routine);
size_t process_notify_count();

// ---- loader (loader.cc)
struct LoaderOptions {
    std::vector<std::string> search;  // directories
};
extern LoaderOptions g_loader;
// Loads a program or DLL with everything it imports. Null with *missing filled in.
Image *load_module(Process *p, const std::string &name, bool is_program, ProgramMissing *missing);
bool unload_module(Process *p, Image *image);
Image *find_module(Process *p, const std::string &name);
// DLL_PROCESS_ATTACH of everything that has not had it; false: a DllMain refused.
bool attach_process(Process *p);
void notify_thread(Process *p, uint32_t reason);    // DLL_THREAD_ATTACH 2, DLL_THREAD_DETACH 3
void detach_process(Process *p, bool terminating);  // DLL_PROCESS_DETACH
void set_up_static_tls(Thread *t);

// The machine: page pool, address space.
struct Machine {
    std::unique_ptr<PagePool> pool;
    std::unique_ptr<AddressSpace> memory;
};
extern Machine g_machine;
inline AddressSpace &memory() {
    return *g_machine.memory;
}
inline PagePool &page_pool() {
    return *g_machine.pool;
}
void start_machine(uint64_t pool_bytes, PagePool::Frames frames = PagePool::Frames::Own);

}  // namespace nth
