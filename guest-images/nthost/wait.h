// SPDX-License-Identifier: GPL-2.0-or-later
//
// wait.h: dispatcher objects and waiting. As in NT there is one dispatcher lock; a waiting thread hangs a wait block on
// each object's WaitListHead, and whoever signals an object satisfies waits on the spot and wakes the thread through a
// futex.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base.h"
#include "nt_types.h"

namespace nth {

class Thread;

inline constexpr unsigned MAX_WAIT_OBJECTS = 64;

struct WaitBlock {
    nt::LIST_ENTRY link;  // on object->WaitListHead; must stay first
    Thread *thread;
    nt::DISPATCHER_HEADER *object;
    uint32_t index;
};

struct WaitState {  // part of a thread; guarded by the dispatcher lock
    // In the thread object, not on its stack: the kernel walks them, and a stack may be user memory.
    WaitBlock blocks[MAX_WAIT_OBJECTS];
    unsigned count = 0;
    bool all = false;
    bool alertable = false;
    std::atomic<uint32_t> done{0};  // futex: 1 when satisfied or broken off
    int32_t status = 0;
    nt::LIST_ENTRY owned_mutexes{};
};

extern FutexLock g_dispatcher;

void init_event(nt::KEVENT *e, bool synchronization, bool signaled);
// Previous state.
int32_t set_event(nt::KEVENT *e);
int32_t reset_event(nt::KEVENT *e);
int32_t pulse_event(nt::KEVENT *e);
void init_semaphore(nt::KSEMAPHORE *s, int32_t count, int32_t limit);
// false: over the limit, unchanged.
bool release_semaphore(nt::KSEMAPHORE *s, int32_t count, int32_t *previous);
void init_mutex(nt::KMUTEX *m, Thread *owner);
// STATUS_MUTANT_NOT_OWNED when the caller does not own it.
nt::NTSTATUS release_mutex(nt::KMUTEX *m, int32_t *previous);
void abandon_mutexes(Thread *owner);  // at thread end
// For objects whose signal state is only ever switched on: threads, processes.
void signal_object(nt::DISPATCHER_HEADER *h);

// deadline: absolute monotonic ns, 0: poll, ~0: for ever. Returns STATUS_WAIT_0 + i, STATUS_ABANDONED_WAIT_0 + i,
// STATUS_TIMEOUT, or STATUS_ALERTED when the thread is asked to end and `alertable`.
nt::NTSTATUS wait_for(std::span<nt::DISPATCHER_HEADER *const> objects, bool all, bool alertable, uint64_t deadline);
inline nt::NTSTATUS wait_for_one(nt::DISPATCHER_HEADER *object, uint64_t deadline = ~uint64_t{0},
                                 bool alertable = false) {
    return wait_for(std::span(&object, 1), false, alertable, deadline);
}
// Breaks off an alertable wait of that thread.
void alert_thread(Thread *thread);

// NT time-outs: pointer to 100 ns units, negative relative, positive absolute system time, null for ever.
uint64_t deadline_of(const int64_t *timeout);

// Timers (KTIMER). The timer thread calls expire_timers and sleeps until the deadline that it returns (~0: none).
void init_timer(nt::KTIMER *t, bool synchronization);
bool set_timer(nt::KTIMER *t, int64_t due, int32_t period_ms, nt::KDPC *dpc);
bool cancel_timer(nt::KTIMER *t);
uint64_t expire_timers(uint64_t now);
bool timer_armed_in(uint64_t first, uint64_t last);  // any armed KTIMER in that memory (verifier)

}  // namespace nth
