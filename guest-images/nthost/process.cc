// SPDX-License-Identifier: GPL-2.0-or-later
#include "process.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "crt.h"
#include "exception.h"
#include "heap.h"
#include "io.h"
#include "pe_image.h"
#include "stack_trace.h"
#include "user_access.h"
#include "verifier.h"

namespace nth {

using namespace nt;

Machine g_machine;

namespace {

Process *g_system;
FutexLock g_list_lock;  // guards the lists below
std::vector<Process *> g_processes;
std::vector<ProcessNotify *> g_notify;
std::atomic<uint32_t> g_next_id{0x1000};

Process *new_process(const std::string &name) {
    void *body =
        object_allocate(ObjectKind::Process, sizeof(Process), [](void *b) { static_cast<Process *>(b)->~Process(); });
    if (body == nullptr) host_bug("no kernel memory for a process");
    auto *p = new (body) Process;
    p->header.Type = ProcessType;
    p->header.Size = sizeof(DISPATCHER_HEADER) / 4;
    list_init(&p->header.WaitListHead);
    p->name = name;
    return p;
}

void call_notify(Process *p, bool create) {
    std::vector<ProcessNotify *> routines;
    {
        Locked l(g_list_lock);
        routines = g_notify;
    }
    for (auto *r : routines) call_pe(r, HANDLE(uint64_t{4}), HANDLE(uint64_t{p->id}), BOOLEAN(create));
}

}  // namespace

Process::Process() = default;
Process::~Process() {
    if (peb != 0) munmap(reinterpret_cast<void *>(peb), 4096);
}

Process *system_process() {
    return g_system;
}

void start_machine(uint64_t pool_bytes, PagePool::Frames frames) {
    g_machine.pool = std::make_unique<PagePool>(pool_bytes, KERNEL_LINEAR, frames);
    g_machine.memory = std::make_unique<AddressSpace>(*g_machine.pool);
    g_system = new_process("System");
    g_system->id = 4;
    g_system->is_system = true;
}

std::vector<Process *> processes() {
    Locked l(g_list_lock);
    for (Process *p : g_processes) object_reference(p);
    return g_processes;
}

Process *process_by_id(uint32_t id) {
    Locked l(g_list_lock);
    for (Process *p : g_processes)
        if (p->id == id) {
            object_reference(p);
            return p;
        }
    return nullptr;
}

bool add_process_notify(ProcessNotify *routine) {
    Locked l(g_list_lock);
    if (std::find(g_notify.begin(), g_notify.end(), routine) != g_notify.end() || g_notify.size() >= 64) return false;
    g_notify.push_back(routine);
    return true;
}

bool remove_process_notify(ProcessNotify *routine) {
    Locked l(g_list_lock);
    return std::erase(g_notify, routine) != 0;
}

size_t process_notify_count() {
    Locked l(g_list_lock);
    return g_notify.size();
}

Process *create_process(const std::string &path, const std::string &command_line, ProgramMissing *missing,
                        Thread **first_thread) {
    Process *p = new_process(path.substr(path.find_last_of('/') + 1));
    p->id = g_next_id.fetch_add(4);
    p->command_line = command_line;
    p->command_line_wide = widen(command_line);
    void *peb = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (peb == MAP_FAILED) host_bug("no memory for a PEB");
    p->peb = reinterpret_cast<uint64_t>(peb);
    p->heap = heap_create(p);
    p->crt = make_crt_state(p);
    Image *program = load_module(p, path, true, missing);
    if (program == nullptr) {
        for (Image *i : images_of(p)) unmap_image(memory(), i);
        heap_destroy(p->heap);
        memory().release_all(p);
        object_release(p);
        return nullptr;
    }
    reinterpret_cast<uint64_t *>(peb)[2] = program->base;
    uint64_t stack = std::clamp<uint64_t>(program->stack_reserve, 256 << 10, 8 << 20);
    Thread *t = create_thread(p, 0, ~uint64_t{0}, stack, false);
    if (t == nullptr) {
        missing->error = path + ": not enough memory for its stack";
        object_release(p);
        return nullptr;
    }
    {
        Locked l(g_list_lock);
        g_processes.push_back(p);
    }
    object_reference(p);  // the list's, dropped at the process's end
    call_notify(p, true);
    *first_thread = t;
    return p;
}

void run_program(Thread *t) {
    Process *p = t->process;
    if (!attach_process(p)) exit_process(static_cast<uint32_t>(STATUS_DLL_INIT_FAILED));
    Image *program = nullptr;
    for (Image *i : p->images)
        if (!i->is_dll) program = i;
    uint32_t code = call_pe(reinterpret_cast<uint32_t(NTAPI *)(uint64_t)>(program->entry), p->peb);
    exit_process(code);
}

void stop_other_threads(Process *p, uint32_t code) {
    Thread *self = current();
    uint64_t deadline = monotonic_ns() + 20'000'000'000ull;
    for (unsigned round = 0;; round++) {
        std::vector<Thread *> others;
        {
            Locked l(p->lock);
            for (Thread *t : p->threads)
                if (t != self) {
                    object_reference(t);
                    others.push_back(t);
                }
        }
        if (others.empty()) return;
        for (Thread *t : others) {
            terminate_thread(t, code);
            if (monotonic_ns() > deadline)
                bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "thread %u of process %u does not end: %s", t->id,
                         p->id, describe_pending_irps(t).c_str());
        }
        wait_for_one(&others[0]->header, monotonic_ns() + (round < 10 ? 1'000'000 : 10'000'000));
        for (Thread *t : others) object_release(t);
    }
}

void exit_process(uint32_t code) {
    Thread *t = current();
    Process *p = t->process;
    if (p->exiting.exchange(true)) exit_current_thread(code);  // somebody else is at it, or a DllMain called again
    p->exit_code = code;
    stop_other_threads(p, code);
    detach_process(p, true);
    crt_flush(p);
    exit_current_thread(code);
}

void terminate_process(Process *p, uint32_t code) {
    Thread *t = current();
    bool self = t->process == p;
    if (!p->exiting.exchange(true)) p->exit_code = code;
    if (self) {
        stop_other_threads(p, code);
        crt_flush(p);
        exit_current_thread(code);
    }
    // Do not wait: the last thread tears the process down.
    std::vector<Thread *> all;
    {
        Locked l(p->lock);
        all = p->threads;
        for (Thread *x : all) object_reference(x);
    }
    object_reference(p);
    for (Thread *x : all) object_release(x);
    queue_reaper(p, code);
}

void tear_down_process(Process *p) {
    Thread *t = current();
    p->exiting = true;
    t->attached = p;
    call_notify(p, false);
    for (uint64_t h : p->handles.list()) p->handles.close(h, p);
    memory().drop_secures(p);
    if (int64_t n = p->locked_pages; n != 0)
        bugcheck(0x76, "PROCESS_HAS_LOCKED_PAGES", "process %u (%s) ended with %lld pages still locked by the driver",
                 p->id, p->name.c_str(), (long long)n);
    if (int64_t n = p->mapped_views; n != 0 && g_verifier)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION",
                 "process %u (%s) ended with %lld driver mappings (MmMapLockedPagesSpecifyCache) in it", p->id,
                 p->name.c_str(), (long long)n);
    if (p->attached != 0)
        bugcheck(0x05, "INVALID_PROCESS_ATTACH_ATTEMPT", "process %u ended while a thread was attached to it", p->id);
    {
        UserAccess open;
        crt_flush(p);
        p->crt.reset();
        for (Image *i : images_of(p)) unmap_image(memory(), i);
        heap_destroy(p->heap);
        p->heap = nullptr;
        memory().release_all(p);
    }
    t->stack = 0;
    {
        Locked l(g_list_lock);
        std::erase(g_processes, p);
    }
    signal_object(&p->header);
    object_release(p);  // the list's
}

}  // namespace nth
