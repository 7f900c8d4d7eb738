// SPDX-License-Identifier: GPL-2.0-or-later
//
// nt.h: the kernel's headers for C++, and the few idioms that the whole driver shares: locks as objects, pool memory that
// is zeroed and owned, run-down of a thing that may go away.
//
// The driver has no C++ run time: no exceptions, no static constructors, no guards for static locals.
#pragma once

#include <intrin.h>
// mingw declares these two as intrinsics and defines them again in wdm.h, which C++ refuses.
#define InterlockedBitTestAndSet wdm_InterlockedBitTestAndSet
#define InterlockedBitTestAndReset wdm_InterlockedBitTestAndReset
extern "C" {
#include <ntifs.h>
}
#undef InterlockedBitTestAndSet
#undef InterlockedBitTestAndReset

#include <stddef.h>
#include <stdint.h>

namespace sanproxy {

constexpr ULONG pool_tag = 'xPaS';

// Zeroed nonpaged pool; nullptr when there is none.
inline void *pool_alloc(size_t bytes) {
    void *p = ExAllocatePoolWithTag(NonPagedPool, bytes, pool_tag);
    if (p) memset(p, 0, bytes);
    return p;
}
inline void pool_free(void *p) {
    if (p) ExFreePoolWithTag(p, pool_tag);
}

// Objects in pool memory: zeroed, then constructed by their members' initialisers.
template <typename T> T *pool_new() {
    void *p = pool_alloc(sizeof(T));
    return p ? new (p) T : nullptr;
}
template <typename T> void pool_delete(T *object) {
    if (!object) return;
    object->~T();
    pool_free(object);
}

class SpinLock {
  public:
    SpinLock() { KeInitializeSpinLock(&lock_); }
    KIRQL acquire() { return KeAcquireSpinLockRaiseToDpc(&lock_); }
    void release(KIRQL old) { KeReleaseSpinLock(&lock_, old); }

  private:
    KSPIN_LOCK lock_;
};

// At or below DISPATCH_LEVEL.
class SpinGuard {
  public:
    explicit SpinGuard(SpinLock &lock) : lock_(lock), old_(lock.acquire()) {}
    ~SpinGuard() { lock_.release(old_); }
    SpinGuard(const SpinGuard &) = delete;
    SpinGuard &operator=(const SpinGuard &) = delete;

  private:
    SpinLock &lock_;
    KIRQL old_;
};

class Mutex {
  public:
    Mutex() { ExInitializeFastMutex(&mutex_); }
    void acquire() { ExAcquireFastMutex(&mutex_); }
    void release() { ExReleaseFastMutex(&mutex_); }

  private:
    FAST_MUTEX mutex_;
};

// PASSIVE_LEVEL to APC_LEVEL; APC_LEVEL inside.
class MutexGuard {
  public:
    explicit MutexGuard(Mutex &mutex) : mutex_(mutex) { mutex_.acquire(); }
    ~MutexGuard() { mutex_.release(); }
    MutexGuard(const MutexGuard &) = delete;
    MutexGuard &operator=(const MutexGuard &) = delete;

  private:
    Mutex &mutex_;
};

// Users enter and leave; close() refuses newcomers and waits for those inside.
class Rundown {
  public:
    Rundown() { KeInitializeEvent(&empty_, NotificationEvent, FALSE); }
    bool enter() {
        InterlockedIncrement(&users_);
        if (!closed_) return true;
        leave();
        return false;
    }
    void leave() {
        if (InterlockedDecrement(&users_) == 0 && closed_) KeSetEvent(&empty_, IO_NO_INCREMENT, FALSE);
    }
    // True for the first caller, which has waited for the users; false for all others, which have not.
    bool close() {
        if (InterlockedExchange(&closed_, 1) != 0) return false;
        if (InterlockedCompareExchange(&users_, 0, 0) != 0)
            KeWaitForSingleObject(&empty_, Executive, KernelMode, FALSE, nullptr);
        return true;
    }
    bool closed() const { return closed_ != 0; }

  private:
    volatile LONG users_ = 0;
    volatile LONG closed_ = 0;
    KEVENT empty_;
};

// Between what software writes for the NIC and the doorbell, and between a phase and the entry that it vouches for.
inline void memory_barrier() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

// Looks up what newer systems have and NT 5.2 lacks.
inline void *system_routine(const wchar_t *name) {
    UNICODE_STRING string;
    RtlInitUnicodeString(&string, reinterpret_cast<PCWSTR>(name));
    return MmGetSystemRoutineAddress(&string);
}

} // namespace sanproxy

inline void *operator new(size_t, void *where) noexcept { return where; }
