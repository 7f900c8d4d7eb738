// SPDX-License-Identifier: GPL-2.0-or-later
#include "thread.h"

#include <asm/prctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "fault.h"
#include "io.h"
#include "process.h"
#include "user_access.h"

extern "C" uint64_t nth_call_on_stack(void *sp, uint64_t (*fn)(void *), void *arg);

namespace nth {

using namespace nt;

thread_local Thread *t_thread;

namespace {

constexpr size_t KERNEL_STACK = 256 * 1024, RECORDS = 96 * 1024, SIGNAL_STACK = 64 * 1024;
std::atomic<uint32_t> g_next_thread_id{0x100};
FutexLock g_stack_lock;  // guards the two below
std::vector<uint8_t *> g_free_stacks;
uint64_t g_next_stack = KERNEL_STACKS;

uint8_t *take_kernel_stack() {
    Locked l(g_stack_lock);
    if (!g_free_stacks.empty()) {
        uint8_t *s = g_free_stacks.back();
        g_free_stacks.pop_back();
        return s;
    }
    // A guard page below each.
    void *p = mmap(reinterpret_cast<void *>(g_next_stack + 4096), KERNEL_STACK, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == MAP_FAILED) host_bug("no memory for a kernel stack");
    g_next_stack += KERNEL_STACK + 4096;
    return static_cast<uint8_t *>(p);
}

void give_kernel_stack(uint8_t *s) {
    Locked l(g_stack_lock);
    g_free_stacks.push_back(s);
}

// The GS block must not be user memory to the verifier (the kernel uses it too), but must lie where user code may
// point to it; it is host memory, which every process may read and write.
void make_gs_block(Thread *t) {
    size_t bytes = sizeof(GsBlock) + RECORDS + SIGNAL_STACK;
    void *p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) host_bug("no memory for a thread block");
    t->gs = static_cast<GsBlock *>(p);
    t->records = reinterpret_cast<CallRecord *>(t->gs + 1);
    t->records[0].rsp = ~uint64_t{0};
    t->set_record_top(t->records + 1);
    t->gs->at(GS_KPCR_SELF) = t->gs->at(TEB_SELF) = reinterpret_cast<uint64_t>(t->gs);
    t->gs->at(TEB_PROCESS_ID) = t->process->id;
    t->gs->at(TEB_THREAD_ID) = t->id;
    t->gs->at(TEB_PEB) = t->process->peb;
    t->gs->at(GS_KTHREAD) = reinterpret_cast<uint64_t>(t);
}

void destroy_thread_object(void *body) {
    auto *t = static_cast<Thread *>(body);
    if (t->gs != nullptr) munmap(t->gs, sizeof(GsBlock) + RECORDS + SIGNAL_STACK);
    if (t->kernel_stack != nullptr) give_kernel_stack(t->kernel_stack);
    object_release(t->process);
    t->~Thread();
}

Thread *new_thread(Process *process) {
    void *body = object_allocate(ObjectKind::Thread, sizeof(Thread), destroy_thread_object);
    if (body == nullptr) return nullptr;
    auto *t = new (body) Thread;
    t->header.Type = ThreadType;
    t->header.Size = sizeof(DISPATCHER_HEADER) / 4;
    t->header.SignalState = 0;
    list_init(&t->header.WaitListHead);
    list_init(&t->irps);
    list_init(&t->wait.owned_mutexes);
    t->id = g_next_thread_id.fetch_add(4);
    object_reference(process);
    t->process = t->attached = process;
    t->kernel_stack = take_kernel_stack();
    make_gs_block(t);
    return t;
}

void enter_thread(Thread *t) {
    t_thread = t;
    t->linux_id = static_cast<int>(syscall(SYS_gettid));
    syscall(SYS_arch_prctl, ARCH_SET_GS, t->gs);
    stack_t ss{};
    ss.ss_sp = reinterpret_cast<uint8_t *>(t->gs) + sizeof(GsBlock) + RECORDS;
    ss.ss_size = SIGNAL_STACK;
    sigaltstack(&ss, nullptr);
    // Not the processor number of NT's affinity masks: one processor per thread, folded to 64.
    *reinterpret_cast<uint32_t *>(reinterpret_cast<uint8_t *>(t->gs) + GS_PROCESSOR) = 0;
}

// On the thread's NT stack.
uint64_t run_thread(void *arg) {
    auto *t = static_cast<Thread *>(arg);
    if (t->kernel_start) {
        call_pe(reinterpret_cast<void(NTAPI *)(uint64_t)>(t->start), t->argument);
        if (t->irql != PASSIVE_LEVEL)
            bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "system thread returned at IRQL %u", t->irql);
        t->exit_code = 0;
        return 0;
    }
    check_termination();
    set_up_static_tls(t);
    if (t->argument == ~uint64_t{0} && t->process->threads.size() == 1 && t->start == 0) {
        run_program(t);  // does not return
    }
    notify_thread(t->process, 2);
    uint32_t code = call_pe(reinterpret_cast<uint32_t(NTAPI *)(uint64_t)>(t->start), t->argument);
    notify_thread(t->process, 3);
    t->exit_code = code;
    return 0;
}

void finish_thread(Thread *t) {
    t->exiting = true;
    t->linux_id = 0;
    t->active = nullptr;
    cancel_thread_irps(t);
    abandon_mutexes(t);
    Process *p = t->process;
    bool last;
    {
        Locked l(p->lock);
        std::erase(p->threads, t);
        last = p->threads.empty();
    }
    if (last && !p->is_system) {
        if (p->exit_code == 259) p->exit_code = t->exit_code;
        tear_down_process(p);
    }
    if (t->stack != 0 && !p->exiting) {  // else it goes with the process
        uint64_t at = t->stack, size = 0;
        memory().free(p, &at, &size, MEM_RELEASE);
    }
    signal_object(&t->header);
    t_thread = nullptr;
    object_release(t);  // the reference of the running thread
}

void run_on_its_stack(Thread *t) {
    if (t->kernel_start) {
        t->kernel_depth() = 1;
        run_thread(t);  // system threads run on the Linux thread's stack, outside user memory
    } else {
        allow_user_access();
        nth_call_on_stack(reinterpret_cast<void *>(t->stack + t->stack_size - 64), run_thread, t);
    }
}

// exit_current_thread() jumps back into here; nothing local is used afterwards.
__attribute__((noinline)) void run_until_exit() {
    if (sigsetjmp(t_thread->exit_point, 0) == 0 && !t_thread->terminate) run_on_its_stack(t_thread);
}

void *thread_main(void *arg) {
    enter_thread(static_cast<Thread *>(arg));
    while (t_thread->suspend_count > 0 && !t_thread->terminate) futex_wait(&t_thread->resume_word, 0);
    run_until_exit();
    Thread *t = t_thread;
    t->set_record_top(t->records + 1);
    t->kernel_depth() = 1;  // what is left happens in the kernel
    finish_thread(t);
    return nullptr;
}

// By Linux's id, which is 0 once the thread is on its way out: a pthread_t may be stale.
void nudge(Thread *t) {
    int id = t->linux_id;
    if (id != 0 && t != current()) syscall(SYS_tgkill, getpid(), id, NUDGE_SIGNAL);
}

}  // namespace

Process *current_process() {
    Thread *t = current();
    return t != nullptr ? t->attached : system_process();
}

Thread *create_thread(Process *process, uint64_t start, uint64_t argument, uint64_t stack_size, bool kernel) {
    Thread *t = new_thread(process);
    if (t == nullptr) return nullptr;
    t->start = start;
    t->argument = argument;
    t->kernel_start = kernel;
    t->is_system = kernel;
    if (!kernel) {
        uint64_t at = 0, size = std::max<uint64_t>(page_up(stack_size), 256 * 1024);
        if (!nt_success(memory().allocate(process, &at, &size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE))) {
            object_release(t);
            return nullptr;
        }
        t->stack = at;
        t->stack_size = size;
        t->gs->at(TEB_STACK_BASE) = at + size;
        t->gs->at(TEB_STACK_LIMIT) = at;
    }
    {
        Locked l(process->lock);
        if (process->exiting && !kernel) {
            // Its memory goes with the process.
            t->stack = 0;
        } else {
            process->threads.push_back(t);
            return t;
        }
    }
    object_release(t);
    return nullptr;
}

void start_thread(Thread *t) {
    object_reference(t);  // the running thread's own
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 512 * 1024);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_t id;
    int r = pthread_create(&id, &attr, thread_main, t);
    pthread_attr_destroy(&attr);
    if (r != 0) host_bug("pthread_create: %s", strerror(r));
}

Thread *adopt_system_thread(const char *name) {
    Thread *t = new_thread(system_process());
    if (t == nullptr) host_bug("no kernel memory for a thread");
    t->is_system = true;
    t->kernel_depth() = 1;
    enter_thread(t);
    pthread_setname_np(pthread_self(), name);
    return t;
}

void exit_current_thread(uint32_t code) {
    Thread *t = current();
    t->exit_code = code;
    siglongjmp(t->exit_point, 1);
}

void terminate_thread(Thread *t, uint32_t code) {
    if (!t->terminate.exchange(true)) t->exit_code = code;
    __atomic_store_n(&t->attention(), 1, __ATOMIC_RELEASE);
    alert_thread(t);
    t->resume_word.store(1);
    futex_wake(&t->resume_word, 1);
    nudge(t);
}

void terminate_nudge(Thread *t) {
    nudge(t);
}

void check_termination() {
    Thread *t = current();
    if (t != nullptr && t->terminate && !t->exiting && !t->in_kernel()) exit_current_thread(t->exit_code);
}

uint64_t enter_kernel(uint64_t (*fn)(void *), void *arg) {
    Thread *t = current();
    if (t->kernel_depth() > 0) return fn(arg);
    Active *active = t->active;
    CallRecord *top = t->record_top();
    t->active = nullptr;
    top->rsp = ~uint64_t{0};
    t->set_record_top(top + 1);
    t->kernel_depth() = 1;
    uint64_t result = nth_call_on_stack(t->kernel_stack + KERNEL_STACK - 64, fn, arg);
    if (t->irql != PASSIVE_LEVEL)
        bugcheck(0x4a, "IRQL_GT_ZERO_AT_SYSTEM_SERVICE", "a system call returned at IRQL %u", t->irql);
    t->kernel_depth() = 0;
    t->set_record_top(top);
    t->active = active;
    return result;
}

}  // namespace nth
