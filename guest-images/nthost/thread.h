// SPDX-License-Identifier: GPL-2.0-or-later
//
// thread.h: an NT thread is a Linux thread with a stack from the page pool, a kernel stack, a GS block that is TEB and
// KPCR at once, and the state that NT keeps per thread or per processor (each thread counts as a processor of its own:
// IRQL is per thread, and there are as many processors as there are threads).
#pragma once

#include <pthread.h>
#include <csetjmp>
#include <csignal>

#include <atomic>
#include <memory>
#include <vector>

#include "base.h"
#include "nt_types.h"
#include "object.h"
#include "user_access.h"
#include "wait.h"

namespace nth {

class Process;
struct Active;

// One import call in progress, as nth_record_stub stores it.
struct alignas(16) CallRecord {
    uint64_t rsp;  // of the caller's return address; ~0: start of a stack
    uint64_t rbx, rbp, rsi, rdi, r12, r13, r14, r15;
    const void *slot;
    uint64_t unused[2];
    nt::M128 xmm[10];  // xmm6..xmm15
};
static_assert(sizeof(CallRecord) == 256);

// What PE code sees at gs:0. User and kernel part do not overlap (TEB 0x110..0x1f0 is reserved for the system).
struct alignas(4096) GsBlock {
    uint64_t word[0x2000 / 8];
    uint64_t &at(size_t offset) { return word[offset / 8]; }
};

inline constexpr size_t TEB_STACK_BASE = 0x08, TEB_STACK_LIMIT = 0x10, TEB_SELF = 0x30, TEB_PROCESS_ID = 0x40,
                        TEB_THREAD_ID = 0x48, TEB_TLS_VECTOR = 0x58, TEB_PEB = 0x60, TEB_LAST_ERROR = 0x68,
                        TEB_TLS_SLOTS = 0x1480, GS_KPCR_SELF = 0x18, GS_PROCESSOR = 0x184, GS_KTHREAD = 0x188,
                        GS_RECORD_TOP = 0x1900, GS_LEAF_RETURN = 0x1908, GS_ATTENTION = 0x1910,
                        GS_KERNEL_DEPTH = 0x1918;

inline constexpr unsigned TLS_SLOTS = 64, FLS_SLOTS = 128;

class Thread {
  public:
    nt::DISPATCHER_HEADER header;  // first: a PETHREAD is a dispatcher object
    Process *process = nullptr;    // referenced
    Process *attached = nullptr;   // whose memory and handles count now
    uint32_t id = 0;
    std::atomic<int> linux_id{0};
    GsBlock *gs = nullptr;
    CallRecord *records = nullptr;  // side stack; gs->at(GS_RECORD_TOP) points past the last

    uint64_t stack = 0, stack_size = 0;  // user stack (system threads: none)
    uint8_t *kernel_stack = nullptr;     // top is used first
    nt::KIRQL irql = nt::PASSIVE_LEVEL;
    bool is_system = false;
    int priority = 0;

    WaitState wait;
    Active *active = nullptr;  // innermost exception dispatch or unwind in progress
    std::atomic<bool> terminate{false};
    std::atomic<int> suspend_count{0};
    std::atomic<uint32_t> resume_word{0};
    uint32_t exit_code = 0;
    bool exiting = false;
    sigjmp_buf exit_point;

    FutexLock irp_lock;   // guards irps
    nt::LIST_ENTRY irps;  // IRPs that this thread issued and that are not complete
    void *fls[FLS_SLOTS] = {};
    int rand_state = 1;
    int crt_errno = 0;
    std::vector<std::unique_ptr<uint8_t[]>> tls_blocks;
    std::vector<void *> tls_vector;
    char *crt_buffer = nullptr;

    // start routine
    uint64_t start = 0, argument = 0;
    bool kernel_start = false;

    CallRecord *record_top() const { return reinterpret_cast<CallRecord *>(gs->at(GS_RECORD_TOP)); }
    void set_record_top(CallRecord *r) { gs->at(GS_RECORD_TOP) = reinterpret_cast<uint64_t>(r); }
    void set_last_error(nt::DWORD e) { *reinterpret_cast<nt::DWORD *>(&gs->at(TEB_LAST_ERROR)) = e; }
    nt::DWORD last_error() const { return *reinterpret_cast<nt::DWORD *>(&gs->at(TEB_LAST_ERROR)); }
    // In the GS block, because nth_record_stub looks at both: > 0 while in the kernel; != 0 when the thread is to end.
    uint64_t &kernel_depth() { return gs->at(GS_KERNEL_DEPTH); }
    uint64_t &attention() { return gs->at(GS_ATTENTION); }
    bool in_kernel() const { return gs->at(GS_KERNEL_DEPTH) > 0; }
};

extern thread_local Thread *t_thread;
inline Thread *current() {
    return t_thread;
}
Process *current_process();  // the attached one

// Creates a thread, not yet running. user: a stack in the process and attach calls to its DLLs. Null: no memory.
Thread *create_thread(Process *process, uint64_t start, uint64_t argument, uint64_t stack_size, bool kernel);
void start_thread(Thread *thread);
// Makes the calling Linux thread a system thread of the System process (interrupt, timer and work threads).
Thread *adopt_system_thread(const char *name);
// Ends the calling thread; DLL detach calls have been made, or are not due.
[[noreturn]] void exit_current_thread(uint32_t code);
// Asks a thread to end and nudges it; it ends when it is next in PE code, or in a wait.
void terminate_thread(Thread *thread, uint32_t code);
// Makes the thread look at its flags (suspend, terminate).
void terminate_nudge(Thread *thread);
// Ends the thread here if somebody asked for it. Nothing of the callers runs any more: only where they hold no
// references.
void check_termination();

// Host code that calls PE code goes through this, so that records of imports that the PE code made do not outlive it.
template <class F, class... Args>
auto call_pe(F *function, Args... args) {
    Thread *t = current();
    struct Restore {
        Thread *t;
        CallRecord *top;
        UserAccessState access;
        ~Restore() { t->set_record_top(top); }
    } restore{t, t->record_top(), UserAccessState(t->in_kernel())};
    return function(args...);
}

// Runs fn on the thread's kernel stack, with kernel_depth raised: the way from user mode into the kernel.
uint64_t enter_kernel(uint64_t (*fn)(void *), void *arg);
template <class F>
auto in_kernel(F &&f) {
    using R = decltype(f());
    struct Call {
        F *f;
        R result;
    } call{&f, R{}};
    enter_kernel(
        [](void *p) -> uint64_t {
            auto *c = static_cast<Call *>(p);
            c->result = (*c->f)();
            return 0;
        },
        &call);
    return call.result;
}

}  // namespace nth
