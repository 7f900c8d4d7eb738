// SPDX-License-Identifier: GPL-2.0-or-later
#include "cpu.h"

#include <pthread.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "process.h"
#include "stack_trace.h"
#include "thread.h"
#include "verifier.h"
#include "wait.h"

namespace nth {

using namespace nt;

namespace {

constexpr unsigned VECTORS = 64;

FutexLock g_dpc_lock;  // guards g_dpcs and g_dpc_running
std::deque<KDPC *> g_dpcs;
std::atomic<uint32_t> g_poke{0};
std::atomic<uint64_t> g_pending_messages{0};
std::atomic<bool> g_line_level{false};
FutexLock g_cpu_lock;  // one interrupt-and-DPC run at a time
std::atomic<uint64_t> g_dpcs_queued{0}, g_dpcs_done{0};

FutexLock g_interrupt_lock;  // guards the two below
InterruptObject *g_message[VECTORS];
std::vector<InterruptObject *> g_line;

KDPC *next_dpc(void **arg1, void **arg2) {
    Locked l(g_dpc_lock);
    if (g_dpcs.empty()) return nullptr;
    KDPC *d = g_dpcs.front();
    g_dpcs.pop_front();
    d->DpcData = nullptr;  // may be queued again from now on
    *arg1 = d->SystemArgument1;
    *arg2 = d->SystemArgument2;
    return d;
}

void run_dpcs() {
    Thread *t = current();
    void *arg1, *arg2;
    while (KDPC *d = next_dpc(&arg1, &arg2)) {
        auto *routine = d->DeferredRoutine;
        void *context = d->DeferredContext;
        t->irql = DISPATCH_LEVEL;
        call_pe(routine, d, context, arg1, arg2);
        if (t->irql != DISPATCH_LEVEL)
            bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "DPC routine %s returned at IRQL %u",
                     describe_address(reinterpret_cast<uint64_t>(routine)).c_str(), t->irql);
        t->irql = PASSIVE_LEVEL;
        g_dpcs_done++;
    }
}

bool call_isr(InterruptObject *o) {
    Thread *t = current();
    t->irql = o->synchronize_irql;
    acquire_spin_lock(o->spin_lock, "interrupt");
    BOOLEAN mine = o->message_routine != nullptr
                       ? call_pe(o->message_routine, static_cast<PVOID>(o), o->context, ULONG(o->message))
                       : call_pe(o->line_routine, static_cast<PVOID>(o), o->context);
    release_spin_lock(o->spin_lock, "interrupt");
    if (t->irql != o->synchronize_irql)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "an interrupt service routine returned at IRQL %u",
                 t->irql);
    t->irql = PASSIVE_LEVEL;
    return mine != 0;
}

void deliver_message(unsigned vector) {
    g_interrupt_lock.lock();
    InterruptObject *o = vector < VECTORS ? g_message[vector] : nullptr;
    // Held across the routine: IoDisconnectInterrupt waits for a running one.
    if (o != nullptr) call_isr(o);
    g_interrupt_lock.unlock();
}

// A level-triggered line: the routines are called until the device lets go of it.
void deliver_line() {
    unsigned idle = 0;
    while (g_line_level) {
        bool claimed = false;
        g_interrupt_lock.lock();
        for (InterruptObject *o : g_line) claimed = call_isr(o) || claimed;
        bool connected = !g_line.empty();
        g_interrupt_lock.unlock();
        if (!connected) return;
        run_dpcs();
        if (claimed) {
            idle = 0;
            continue;
        }
        // Its deassertion may be on the way: MMIO writes are only queued.
        if (++idle == 100000)
            bugcheck(0xfe, "INTERRUPT_STORM", "the interrupt line stays high and no service routine claims it");
        if (idle > 100) __builtin_ia32_pause();
    }
}

void run_pending_interrupts() {
    for (uint64_t pending; (pending = g_pending_messages.exchange(0)) != 0;) {
        while (pending != 0) {
            unsigned v = static_cast<unsigned>(__builtin_ctzll(pending));
            pending &= pending - 1;
            deliver_message(v);
        }
        run_dpcs();
    }
    if (g_line_level) deliver_line();
}

void *cpu_main(void *) {
    adopt_system_thread("nt-cpu");
    for (;;) {
        uint32_t seen = g_poke.load();
        uint64_t next;
        {
            Locked l(g_cpu_lock);
            run_pending_interrupts();
            next = expire_timers(monotonic_ns());
            run_dpcs();
        }
        if (g_poke.load() != seen) continue;
        if (next == ~uint64_t{0}) futex_wait(&g_poke, seen);
        else futex_wait_until(&g_poke, seen, next);
    }
    return nullptr;
}

// ---- work items
struct Work {
    void (*routine)(void *);
    void *context;
};
FutexLock g_work_lock;
std::deque<Work> g_work;
std::atomic<uint64_t> g_work_queued{0}, g_work_done{0};
KSEMAPHORE g_work_semaphore;

void *worker_main(void *) {
    Thread *t = adopt_system_thread("nt-work");
    for (;;) {
        wait_for_one(&g_work_semaphore.Header);
        Work w;
        {
            Locked l(g_work_lock);
            w = g_work.front();
            g_work.pop_front();
        }
        w.routine(w.context);
        if (t->irql != PASSIVE_LEVEL)
            bugcheck(0xe1, "WORKER_THREAD_RETURNED_AT_BAD_IRQL", "a work item returned at IRQL %u", t->irql);
        t->set_record_top(t->records + 1);
        g_work_done++;
    }
    return nullptr;
}

void start_host_thread(void *(*main)(void *)) {
    pthread_t id;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 512 * 1024);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (pthread_create(&id, &attr, main, nullptr) != 0) host_bug("cannot create a thread");
    pthread_attr_destroy(&attr);
}

}  // namespace

void start_cpu() {
    init_semaphore(&g_work_semaphore, 0, INT32_MAX);
    start_host_thread(cpu_main);
    start_host_thread(worker_main);
    start_host_thread(worker_main);
}

void poke_cpu() {
    g_poke++;
    futex_wake(&g_poke, 1);
}

bool queue_dpc(KDPC *dpc, void *arg1, void *arg2, bool wake) {
    {
        Locked l(g_dpc_lock);
        if (dpc->DpcData != nullptr) return false;
        dpc->SystemArgument1 = arg1;
        dpc->SystemArgument2 = arg2;
        dpc->DpcData = dpc;
        g_dpcs.push_back(dpc);
        g_dpcs_queued++;
    }
    if (wake) poke_cpu();
    return true;
}

bool remove_dpc(KDPC *dpc) {
    Locked l(g_dpc_lock);
    if (dpc->DpcData == nullptr) return false;
    dpc->DpcData = nullptr;
    std::erase(g_dpcs, dpc);
    g_dpcs_done++;
    return true;
}

void flush_dpcs() {
    uint64_t target = g_dpcs_queued;
    poke_cpu();
    while (g_dpcs_done < target) usleep_host(100);
    Locked wait_for_run(g_cpu_lock);
}

bool dpc_queued_in(uint64_t first, uint64_t last) {
    Locked l(g_dpc_lock);
    return std::any_of(g_dpcs.begin(), g_dpcs.end(), [&](KDPC *d) {
        auto a = reinterpret_cast<uint64_t>(d);
        return a >= first && a <= last;
    });
}

// ---- interrupts

void post_message_interrupt(unsigned vector) {
    g_pending_messages |= uint64_t{1} << (vector % VECTORS);
    poke_cpu();
}

void set_interrupt_line(bool level) {
    g_line_level = level;
    if (level) poke_cpu();
}

void run_message_interrupt(unsigned vector) {
    Locked l(g_cpu_lock);
    deliver_message(vector);
    run_dpcs();
}

void run_line_interrupt() {
    Locked l(g_cpu_lock);
    g_interrupt_lock.lock();
    for (InterruptObject *o : g_line) call_isr(o);
    g_interrupt_lock.unlock();
    run_dpcs();
}

bool connect_interrupt(InterruptObject *o, bool is_message) {
    {
        Locked l(g_interrupt_lock);
        if (is_message) {
            if (o->message >= VECTORS || g_message[o->message] != nullptr) return false;
            g_message[o->message] = o;
        } else {
            g_line.push_back(o);
        }
    }
    if (g_line_level) poke_cpu();
    return true;
}

void disconnect_interrupt(InterruptObject *o) {
    Locked l(g_interrupt_lock);
    for (auto &m : g_message)
        if (m == o) m = nullptr;
    std::erase(g_line, o);
}

unsigned connected_interrupts() {
    Locked l(g_interrupt_lock);
    unsigned n = static_cast<unsigned>(g_line.size());
    for (auto *m : g_message) n += m != nullptr;
    return n;
}

// ---- IRQL

KIRQL raise_irql(KIRQL to) {
    Thread *t = current();
    KIRQL old = t->irql;
    if (to < old) bugcheck(0x09, "IRQL_NOT_GREATER_OR_EQUAL", "raise from IRQL %u to %u", old, to);
    t->irql = to;
    return old;
}

void lower_irql(KIRQL to) {
    Thread *t = current();
    if (to > t->irql) bugcheck(0x0a, "IRQL_NOT_LESS_OR_EQUAL", "lower from IRQL %u to %u", t->irql, to);
    t->irql = to;
}

void require_irql(KIRQL highest, const char *function) {
    Thread *t = current();
    if (g_verifier && t != nullptr && t->irql > highest)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "%s at IRQL %u (allowed up to %u)", function, t->irql,
                 highest);
}

// ---- spin locks

namespace {
struct SpinLock {
    FutexLock futex;
    uint32_t owner;
};
static_assert(sizeof(SpinLock) == 8);
SpinLock *spin(uint64_t *l) {
    return reinterpret_cast<SpinLock *>(l);
}
}  // namespace

void acquire_spin_lock(uint64_t *lock, const char *function) {
    SpinLock *s = spin(lock);
    uint32_t me = current()->id;
    if (s->owner == me && s->futex.held())
        bugcheck(0x0f, "SPIN_LOCK_ALREADY_OWNED", "%s: spin lock %p is held by this thread already", function,
                 (void *)lock);
    s->futex.lock();
    s->owner = me;
}

bool try_spin_lock(uint64_t *lock) {
    SpinLock *s = spin(lock);
    if (!s->futex.try_lock()) return false;
    s->owner = current()->id;
    return true;
}

void release_spin_lock(uint64_t *lock, const char *function) {
    SpinLock *s = spin(lock);
    if (!s->futex.held() || s->owner != current()->id)
        bugcheck(0x10, "SPIN_LOCK_NOT_OWNED", "%s: spin lock %p is not held by this thread", function, (void *)lock);
    s->owner = 0;
    s->futex.unlock();
}

// ---- work items

void queue_work(void (*routine)(void *), void *context) {
    {
        Locked l(g_work_lock);
        g_work.push_back({routine, context});
        g_work_queued++;
    }
    release_semaphore(&g_work_semaphore, 1, nullptr);
}

void flush_work() {
    uint64_t target = g_work_queued;
    while (g_work_done < target) usleep_host(100);
}

}  // namespace nth
