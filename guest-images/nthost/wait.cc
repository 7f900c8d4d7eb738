// SPDX-License-Identifier: GPL-2.0-or-later
#include "wait.h"

#include <cstdlib>
#include <map>

#include "cpu.h"
#include "nt_status.h"
#include "thread.h"

namespace nth {

using namespace nt;

FutexLock g_dispatcher;

namespace {

struct Armed {
    uint64_t due;
    KTIMER *timer;
};
std::multimap<uint64_t, KTIMER *> g_timers;  // by due time in monotonic ns; guarded by g_dispatcher

// Threads to wake once the dispatcher lock is released.
struct WakeList {
    Thread *thread[MAX_WAIT_OBJECTS];
    unsigned count = 0;
    void add(Thread *t) {
        if (count == MAX_WAIT_OBJECTS) {
            futex_wake(&thread[0]->wait.done, 1);
            thread[0] = thread[--count];
        }
        thread[count++] = t;
    }
    void wake() {
        for (unsigned i = 0; i < count; i++) futex_wake(&thread[i]->wait.done, 1);
    }
};

bool is_signaled(const DISPATCHER_HEADER *h, const Thread *t) {
    if (h->Type == MutantType) return h->SignalState > 0 || reinterpret_cast<const KMUTEX *>(h)->OwnerThread == t;
    return h->SignalState > 0;
}

// Takes what a satisfied wait takes. Returns true when the mutex was abandoned.
bool consume(DISPATCHER_HEADER *h, Thread *t) {
    switch (h->Type) {
        case SynchronizationEventType:
        case SynchronizationTimerType: h->SignalState = 0; break;
        case SemaphoreType: h->SignalState--; break;
        case MutantType: {
            auto *m = reinterpret_cast<KMUTEX *>(h);
            if (--h->SignalState == 0) {
                m->OwnerThread = t;
                list_add_tail(&t->wait.owned_mutexes, &m->MutantListEntry);
                if (m->Abandoned) {
                    m->Abandoned = 0;
                    return true;
                }
            }
            break;
        }
        default: break;
    }
    return false;
}

void unlink_blocks(WaitState &w) {
    for (unsigned i = 0; i < w.count; i++) list_remove(&w.blocks[i].link);
    w.count = 0;
}

void finish_wait(WaitState &w, NTSTATUS status, Thread *t, WakeList &wake) {
    unlink_blocks(w);
    w.status = status;
    w.done.store(1, std::memory_order_release);
    wake.add(t);
}

// Lets waits go on that the object can now satisfy.
void satisfy_waiters(DISPATCHER_HEADER *h, WakeList &wake) {
    LIST_ENTRY *head = &h->WaitListHead;
    LIST_ENTRY *e = head->Flink;
    while (e != head && h->SignalState > 0) {
        auto *b = reinterpret_cast<WaitBlock *>(e);
        e = e->Flink;
        Thread *t = b->thread;
        WaitState &w = t->wait;
        if (!w.all) {
            uint32_t index = b->index;
            bool abandoned = consume(h, t);
            finish_wait(w, (abandoned ? STATUS_ABANDONED_WAIT_0 : 0) + int32_t(index), t, wake);
        } else {
            bool ready = true;
            for (unsigned i = 0; i < w.count; i++) ready = ready && is_signaled(w.blocks[i].object, t);
            if (!ready) continue;
            bool abandoned = false;
            for (unsigned i = 0; i < w.count; i++) abandoned |= consume(w.blocks[i].object, t);
            finish_wait(w, abandoned ? STATUS_ABANDONED_WAIT_0 : STATUS_SUCCESS, t, wake);
        }
        // Several of this thread's blocks may have hung on the list: start over.
        e = head->Flink;
    }
}

void check_header(const DISPATCHER_HEADER *h) {
    if (h->WaitListHead.Flink == nullptr)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "dispatcher object %p was never initialised",
                 (const void *)h);
}

}  // namespace

void init_event(KEVENT *e, bool synchronization, bool signaled) {
    e->Header.Type = synchronization ? SynchronizationEventType : NotificationEventType;
    e->Header.Absolute = 0;
    e->Header.Size = sizeof(KEVENT) / 4;
    e->Header.Inserted = 0;
    e->Header.SignalState = signaled;
    list_init(&e->Header.WaitListHead);
}

int32_t set_event(KEVENT *e) {
    WakeList wake;
    int32_t old;
    {
        Locked l(g_dispatcher);
        check_header(&e->Header);
        old = e->Header.SignalState;
        e->Header.SignalState = 1;
        if (!list_empty(&e->Header.WaitListHead)) satisfy_waiters(&e->Header, wake);
    }
    wake.wake();
    return old;
}

int32_t reset_event(KEVENT *e) {
    Locked l(g_dispatcher);
    int32_t old = e->Header.SignalState;
    e->Header.SignalState = 0;
    return old;
}

int32_t pulse_event(KEVENT *e) {
    WakeList wake;
    int32_t old;
    {
        Locked l(g_dispatcher);
        check_header(&e->Header);
        old = e->Header.SignalState;
        e->Header.SignalState = 1;
        satisfy_waiters(&e->Header, wake);
        e->Header.SignalState = 0;
    }
    wake.wake();
    return old;
}

void init_semaphore(KSEMAPHORE *s, int32_t count, int32_t limit) {
    s->Header.Type = SemaphoreType;
    s->Header.Absolute = s->Header.Inserted = 0;
    s->Header.Size = sizeof(KSEMAPHORE) / 4;
    s->Header.SignalState = count;
    list_init(&s->Header.WaitListHead);
    s->Limit = limit;
}

bool release_semaphore(KSEMAPHORE *s, int32_t count, int32_t *previous) {
    WakeList wake;
    {
        Locked l(g_dispatcher);
        check_header(&s->Header);
        int64_t old = s->Header.SignalState;
        if (count <= 0 || old + count > s->Limit) return false;
        if (previous != nullptr) *previous = static_cast<int32_t>(old);
        s->Header.SignalState = static_cast<int32_t>(old + count);
        satisfy_waiters(&s->Header, wake);
    }
    wake.wake();
    return true;
}

void init_mutex(KMUTEX *m, Thread *owner) {
    m->Header.Type = MutantType;
    m->Header.Absolute = m->Header.Inserted = 0;
    m->Header.Size = sizeof(KMUTEX) / 4;
    m->Header.SignalState = owner != nullptr ? 0 : 1;
    list_init(&m->Header.WaitListHead);
    m->OwnerThread = owner;
    m->Abandoned = 0;
    m->ApcDisable = 0;
    if (owner != nullptr) {
        Locked l(g_dispatcher);
        list_add_tail(&owner->wait.owned_mutexes, &m->MutantListEntry);
    }
}

static void free_mutex_locked(KMUTEX *m, WakeList &wake) {
    list_remove(&m->MutantListEntry);
    m->OwnerThread = nullptr;
    m->Header.SignalState = 1;
    satisfy_waiters(&m->Header, wake);
}

NTSTATUS release_mutex(KMUTEX *m, int32_t *previous) {
    WakeList wake;
    {
        Locked l(g_dispatcher);
        if (m->OwnerThread != current()) return STATUS_MUTANT_NOT_OWNED;
        if (previous != nullptr) *previous = m->Header.SignalState;
        if (m->Header.SignalState < 0) m->Header.SignalState++;
        else free_mutex_locked(m, wake);
    }
    wake.wake();
    return STATUS_SUCCESS;
}

void abandon_mutexes(Thread *owner) {
    WakeList wake;
    {
        Locked l(g_dispatcher);
        while (!list_empty(&owner->wait.owned_mutexes)) {
            auto *m = reinterpret_cast<KMUTEX *>(reinterpret_cast<uint8_t *>(owner->wait.owned_mutexes.Flink) -
                                                 offsetof(KMUTEX, MutantListEntry));
            m->Abandoned = 1;
            free_mutex_locked(m, wake);
        }
    }
    wake.wake();
}

void signal_object(DISPATCHER_HEADER *h) {
    WakeList wake;
    {
        Locked l(g_dispatcher);
        h->SignalState = 1;
        satisfy_waiters(h, wake);
    }
    wake.wake();
}

NTSTATUS wait_for(std::span<DISPATCHER_HEADER *const> objects, bool all, bool alertable, uint64_t deadline) {
    Thread *t = current();
    WaitState &w = t->wait;
    {
        Locked l(g_dispatcher);
        unsigned ready = 0;
        for (unsigned i = 0; i < objects.size(); i++) {
            check_header(objects[i]);
            if (!is_signaled(objects[i], t)) continue;
            if (!all) {
                bool abandoned = consume(objects[i], t);
                return (abandoned ? STATUS_ABANDONED_WAIT_0 : 0) + int32_t(i);
            }
            ready++;
        }
        if (all && ready == objects.size()) {
            bool abandoned = false;
            for (auto *h : objects) abandoned |= consume(h, t);
            return abandoned ? STATUS_ABANDONED_WAIT_0 : STATUS_SUCCESS;
        }
        if (deadline == 0) return STATUS_TIMEOUT;
        if (alertable && t->terminate) return STATUS_ALERTED;
        for (unsigned i = 0; i < objects.size(); i++) {
            w.blocks[i] = {{}, t, objects[i], i};
            list_add_tail(&objects[i]->WaitListHead, &w.blocks[i].link);
        }
        w.count = static_cast<unsigned>(objects.size());
        w.all = all;
        w.alertable = alertable;
        w.done.store(0, std::memory_order_relaxed);
    }
    while (w.done.load(std::memory_order_acquire) == 0) {
        if (deadline == ~uint64_t{0}) {
            futex_wait(&w.done, 0);
        } else if (!futex_wait_until(&w.done, 0, deadline)) {
            Locked l(g_dispatcher);
            if (w.done.load(std::memory_order_relaxed) != 0) break;
            unlink_blocks(w);
            return STATUS_TIMEOUT;
        }
    }
    return w.status;
}

void alert_thread(Thread *t) {
    WakeList wake;
    {
        Locked l(g_dispatcher);
        if (t->wait.count != 0 && t->wait.alertable) finish_wait(t->wait, STATUS_ALERTED, t, wake);
    }
    wake.wake();
}

uint64_t deadline_of(const int64_t *timeout) {
    if (timeout == nullptr) return ~uint64_t{0};
    int64_t v = *timeout;
    if (v == 0) return 0;
    if (v < 0) {
        uint64_t ns = v < -(INT64_MAX / 100) ? uint64_t(INT64_MAX) / 2 : uint64_t(-v) * 100;
        return monotonic_ns() + ns;
    }
    uint64_t now = system_time();
    return uint64_t(v) <= now ? 0 : monotonic_ns() + (uint64_t(v) - now) * 100;
}

void init_timer(KTIMER *t, bool synchronization) {
    *t = KTIMER{};
    t->Header.Type = synchronization ? SynchronizationTimerType : NotificationTimerType;
    t->Header.Size = sizeof(KTIMER) / 4;
    list_init(&t->Header.WaitListHead);
}

static bool disarm_locked(KTIMER *t) {
    if (t->Header.Inserted == 0) return false;
    auto [from, to] = g_timers.equal_range(t->DueTime);
    for (auto it = from; it != to; ++it)
        if (it->second == t) {
            g_timers.erase(it);
            break;
        }
    t->Header.Inserted = 0;
    return true;
}

bool set_timer(KTIMER *t, int64_t due, int32_t period_ms, KDPC *dpc) {
    bool was_armed, first;
    {
        Locked l(g_dispatcher);
        check_header(&t->Header);
        was_armed = disarm_locked(t);
        t->Header.SignalState = 0;
        t->Dpc = dpc;
        t->Period = period_ms;
        uint64_t deadline = deadline_of(&due);
        t->DueTime = deadline == 0 ? monotonic_ns() : deadline;
        t->Header.Inserted = 1;
        auto at = g_timers.emplace(t->DueTime, t);
        first = at == g_timers.begin();
    }
    if (first) poke_cpu();
    return was_armed;
}

bool cancel_timer(KTIMER *t) {
    Locked l(g_dispatcher);
    return disarm_locked(t);
}

uint64_t expire_timers(uint64_t now) {
    WakeList wake;
    uint64_t next = ~uint64_t{0};
    {
        Locked l(g_dispatcher);
        while (!g_timers.empty()) {
            auto it = g_timers.begin();
            if (it->first > now) {
                next = it->first;
                break;
            }
            KTIMER *t = it->second;
            g_timers.erase(it);
            t->Header.Inserted = 0;
            t->Header.SignalState = 1;
            if (t->Dpc != nullptr) queue_dpc(t->Dpc, nullptr, nullptr, false);
            if (t->Period > 0) {
                t->DueTime += uint64_t(t->Period) * 1000000;
                if (t->DueTime < now) t->DueTime = now + uint64_t(t->Period) * 1000000;
                t->Header.Inserted = 1;
                g_timers.emplace(t->DueTime, t);
            }
            satisfy_waiters(&t->Header, wake);
        }
    }
    wake.wake();
    return next;
}

bool timer_armed_in(uint64_t first, uint64_t last) {
    Locked l(g_dispatcher);
    for (auto &[due, t] : g_timers) {
        auto a = reinterpret_cast<uint64_t>(t);
        if (a >= first && a <= last) return true;
    }
    return false;
}

}  // namespace nth
