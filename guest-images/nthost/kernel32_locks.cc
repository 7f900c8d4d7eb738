// SPDX-License-Identifier: GPL-2.0-or-later
//
// kernel32.dll: the locks that live in the program's memory (critical sections, slim locks, condition variables), and
// TLS.
#include <cstring>

#include "exception.h"
#include "imports.h"
#include "user.h"

namespace nth {

using namespace nt;

namespace {

// ---- critical sections: LockSemaphore's low word is the futex lock
struct CriticalSection {
    void *debug;
    LONG lock_count, recursion;
    uint64_t owner;
    FutexLock futex;
    uint32_t pad;
    uint64_t spin;
};
static_assert(sizeof(CriticalSection) == 40);
void NTAPI InitializeCriticalSection(CriticalSection *c) {
    memset(static_cast<void *>(c), 0, sizeof *c);
    c->lock_count = -1;
}
BOOL NTAPI InitializeCriticalSectionAndSpinCount(CriticalSection *c, DWORD) {
    InitializeCriticalSection(c);
    return 1;
}
BOOL NTAPI InitializeCriticalSectionEx(CriticalSection *c, DWORD, DWORD) {
    InitializeCriticalSection(c);
    return 1;
}
void NTAPI DeleteCriticalSection(CriticalSection *c) {
    memset(static_cast<void *>(c), 0, sizeof *c);
}
void NTAPI EnterCriticalSection(CriticalSection *c) {
    uint64_t id = current()->id;
    if (c->owner == id) {
        c->recursion++;
        return;
    }
    if (!c->futex.lock_unless([] { return current()->terminate.load(); })) check_termination();
    c->owner = id;
    c->recursion = 1;
}
BOOL NTAPI TryEnterCriticalSection(CriticalSection *c) {
    uint64_t id = current()->id;
    if (c->owner == id) {
        c->recursion++;
        return 1;
    }
    if (!c->futex.try_lock()) return 0;
    c->owner = id;
    c->recursion = 1;
    return 1;
}
void NTAPI LeaveCriticalSection(CriticalSection *c) {
    if (c->owner != current()->id) {
        note("process %u: LeaveCriticalSection by a thread that does not own it", current()->process->id);
        raise_status(STATUS_INVALID_PARAMETER);
    }
    if (--c->recursion > 0) return;
    c->owner = 0;
    c->futex.unlock();
}

// ---- slim locks: 0 free, n readers, ~0 writer; upper word counts wake-ups
struct SrwLock {
    std::atomic<uint32_t> state, sleepers;
};
void srw_wait(SrwLock *l, uint32_t seen) {
    l->sleepers++;
    futex_wait(&l->state, seen);
    l->sleepers--;
    check_termination();
}
void NTAPI InitializeSRWLock(SrwLock *l) {
    l->state = 0, l->sleepers = 0;
}
void NTAPI AcquireSRWLockExclusive(SrwLock *l) {
    for (;;) {
        uint32_t s = 0;
        if (l->state.compare_exchange_strong(s, ~0u)) return;
        srw_wait(l, s);
    }
}
BOOLEAN NTAPI TryAcquireSRWLockExclusive(SrwLock *l) {
    uint32_t s = 0;
    return l->state.compare_exchange_strong(s, ~0u);
}
void NTAPI ReleaseSRWLockExclusive(SrwLock *l) {
    l->state = 0;
    if (l->sleepers != 0) futex_wake(&l->state, 1 << 30);
}
void NTAPI AcquireSRWLockShared(SrwLock *l) {
    for (;;) {
        uint32_t s = l->state;
        if (s == ~0u) {
            srw_wait(l, s);
            continue;
        }
        if (l->state.compare_exchange_weak(s, s + 1)) return;
    }
}
void NTAPI ReleaseSRWLockShared(SrwLock *l) {
    if (--l->state == 0 && l->sleepers != 0) futex_wake(&l->state, 1 << 30);
}
struct ConditionVariable {
    std::atomic<uint32_t> sequence, waiters;
};
void NTAPI InitializeConditionVariable(ConditionVariable *c) {
    c->sequence = 0, c->waiters = 0;
}
template <class Unlock, class Lock>
BOOL sleep_on(ConditionVariable *c, DWORD ms, Unlock unlock, Lock lock) {
    uint32_t seen = c->sequence;
    c->waiters++;
    unlock();
    bool ok = true;
    if (ms == 0xffffffff) futex_wait(&c->sequence, seen);
    else ok = futex_wait_until(&c->sequence, seen, monotonic_ns() + uint64_t{ms} * 1000000);
    c->waiters--;
    check_termination();
    lock();
    return ok ? 1 : fail(1460);
}
BOOL NTAPI SleepConditionVariableCS(ConditionVariable *c, CriticalSection *cs, DWORD ms) {
    return sleep_on(
        c, ms, [&] { LeaveCriticalSection(cs); }, [&] { EnterCriticalSection(cs); });
}
BOOL NTAPI SleepConditionVariableSRW(ConditionVariable *c, SrwLock *l, DWORD ms, DWORD flags) {
    if (flags & 1)
        return sleep_on(
            c, ms, [&] { ReleaseSRWLockShared(l); }, [&] { AcquireSRWLockShared(l); });
    return sleep_on(
        c, ms, [&] { ReleaseSRWLockExclusive(l); }, [&] { AcquireSRWLockExclusive(l); });
}
void NTAPI WakeConditionVariable(ConditionVariable *c) {
    c->sequence++;
    if (c->waiters != 0) futex_wake(&c->sequence, 1);
}
void NTAPI WakeAllConditionVariable(ConditionVariable *c) {
    c->sequence++;
    if (c->waiters != 0) futex_wake(&c->sequence, 1 << 30);
}

// ---- TLS
DWORD NTAPI TlsAlloc() {
    Process *p = current()->process;
    uint64_t used = p->tls_used;
    for (;;) {
        if (used == ~uint64_t{0}) return fail(259), 0xffffffff;
        auto i = static_cast<unsigned>(__builtin_ctzll(~used));
        if (p->tls_used.compare_exchange_weak(used, used | uint64_t{1} << i)) {
            Locked l(p->lock);
            for (Thread *t : p->threads) t->gs->at(TEB_TLS_SLOTS + i * 8) = 0;
            return i;
        }
    }
}
BOOL NTAPI TlsFree(DWORD i) {
    if (i >= TLS_SLOTS) return fail(ERROR_INVALID_PARAMETER);
    current()->process->tls_used &= ~(uint64_t{1} << i);
    return 1;
}
void *NTAPI TlsGetValue(DWORD i) {
    Thread *t = current();
    t->set_last_error(0);
    if (i >= TLS_SLOTS) return t->set_last_error(ERROR_INVALID_PARAMETER), nullptr;
    return reinterpret_cast<void *>(t->gs->at(TEB_TLS_SLOTS + i * 8));
}
BOOL NTAPI TlsSetValue(DWORD i, void *v) {
    if (i >= TLS_SLOTS) return fail(ERROR_INVALID_PARAMETER);
    current()->gs->at(TEB_TLS_SLOTS + i * 8) = reinterpret_cast<uint64_t>(v);
    return 1;
}

const Import imports[] = {
    FN(InitializeCriticalSection),
    FN(InitializeCriticalSectionAndSpinCount),
    FN(InitializeCriticalSectionEx),
    FN(DeleteCriticalSection),
    LEAF(EnterCriticalSection),
    LEAF(TryEnterCriticalSection),
    FN(LeaveCriticalSection),
    FN(InitializeSRWLock),
    LEAF(AcquireSRWLockExclusive),
    LEAF(TryAcquireSRWLockExclusive),
    LEAF(ReleaseSRWLockExclusive),
    LEAF(AcquireSRWLockShared),
    LEAF(ReleaseSRWLockShared),
    FN(InitializeConditionVariable),
    FN(SleepConditionVariableCS),
    FN(SleepConditionVariableSRW),
    FN(WakeConditionVariable),
    FN(WakeAllConditionVariable),
    FN(TlsAlloc),
    FN(TlsFree),
    LEAF(TlsGetValue),
    LEAF(TlsSetValue),
};
const ImportTable registered("kernel32.dll", imports);

}  // namespace

}  // namespace nth
