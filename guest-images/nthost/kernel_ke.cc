// SPDX-License-Identifier: GPL-2.0-or-later
//
// ntoskrnl.exe and hal.dll: Ke: dispatcher objects, waits, spin locks, IRQL, DPCs, timers, time, bugchecks.
#include <sched.h>
#include <unistd.h>

#include <cstring>

#include "cpu.h"
#include "exception.h"
#include "imports.h"
#include "process.h"
#include "verifier.h"

namespace nth {

using namespace nt;

namespace {

void NTAPI KeInitializeEvent(KEVENT *e, int type, BOOLEAN state) {
    init_event(e, type == 1, state != 0);
}
LONG NTAPI KeSetEvent(KEVENT *e, LONG, BOOLEAN) {
    require_irql(DISPATCH_LEVEL, "KeSetEvent");
    return set_event(e);
}
LONG NTAPI KeResetEvent(KEVENT *e) {
    require_irql(DISPATCH_LEVEL, "KeResetEvent");
    return reset_event(e);
}
void NTAPI KeClearEvent(KEVENT *e) {
    reset_event(e);
}
LONG NTAPI KePulseEvent(KEVENT *e, LONG, BOOLEAN) {
    return pulse_event(e);
}
LONG NTAPI KeReadStateEvent(KEVENT *e) {
    return e->Header.SignalState;
}
void NTAPI KeInitializeSemaphore(KSEMAPHORE *s, LONG count, LONG limit) {
    init_semaphore(s, count, limit);
}
LONG NTAPI KeReleaseSemaphore(KSEMAPHORE *s, LONG, LONG count, BOOLEAN) {
    require_irql(DISPATCH_LEVEL, "KeReleaseSemaphore");
    int32_t old = 0;
    if (!release_semaphore(s, count, &old)) raise_status(STATUS_SEMAPHORE_LIMIT_EXCEEDED);
    return old;
}
LONG NTAPI KeReadStateSemaphore(KSEMAPHORE *s) {
    return s->Header.SignalState;
}
void NTAPI KeInitializeMutex(KMUTEX *m, ULONG) {
    init_mutex(m, nullptr);
}
LONG NTAPI KeReleaseMutex(KMUTEX *m, BOOLEAN) {
    int32_t old = 0;
    if (!nt_success(release_mutex(m, &old))) raise_status(STATUS_MUTANT_NOT_OWNED);
    return old;
}
LONG NTAPI KeReadStateMutex(KMUTEX *m) {
    return m->Header.SignalState;
}

NTSTATUS NTAPI KeWaitForMultipleObjects(ULONG count, DISPATCHER_HEADER **objects, int type, int, CCHAR mode,
                                        BOOLEAN alertable, const int64_t *timeout, void *) {
    bool polls = timeout != nullptr && *timeout == 0;
    require_irql(polls ? DISPATCH_LEVEL : APC_LEVEL, "KeWaitForSingleObject/MultipleObjects");
    if (count == 0 || count > MAX_WAIT_OBJECTS) bugcheck(0x0c, "MAXIMUM_WAIT_OBJECTS_EXCEEDED", "%u objects", count);
    // A user-mode wait ends when the thread is to end; so does an alertable one.
    NTSTATUS s = wait_for(std::span(objects, count), type == 0, mode == UserMode || alertable, deadline_of(timeout));
    return s == STATUS_ALERTED ? STATUS_USER_APC : s;
}
NTSTATUS NTAPI KeWaitForSingleObject(DISPATCHER_HEADER *object, int reason, CCHAR mode, BOOLEAN alertable,
                                     const int64_t *timeout) {
    return KeWaitForMultipleObjects(1, &object, 1, reason, mode, alertable, timeout, nullptr);
}
NTSTATUS NTAPI KeDelayExecutionThread(CCHAR mode, BOOLEAN alertable, const int64_t *interval) {
    require_irql(APC_LEVEL, "KeDelayExecutionThread");
    KEVENT never;
    init_event(&never, false, false);
    NTSTATUS s = wait_for_one(&never.Header, deadline_of(interval), mode == UserMode || alertable);
    return s == STATUS_ALERTED ? STATUS_USER_APC : STATUS_SUCCESS;
}

// ---- spin locks
void NTAPI KeInitializeSpinLock(uint64_t *l) {
    *l = 0;
}
KIRQL NTAPI KeAcquireSpinLockRaiseToDpc(uint64_t *l) {
    if (current()->irql > DISPATCH_LEVEL)
        bugcheck(0x0a, "IRQL_NOT_LESS_OR_EQUAL", "KeAcquireSpinLock at IRQL %u", current()->irql);
    KIRQL old = raise_irql(DISPATCH_LEVEL);
    acquire_spin_lock(l, "KeAcquireSpinLock");
    return old;
}
void NTAPI KeAcquireSpinLock(uint64_t *l, KIRQL *old) {
    *old = KeAcquireSpinLockRaiseToDpc(l);
}
void NTAPI KeReleaseSpinLock(uint64_t *l, KIRQL old) {
    release_spin_lock(l, "KeReleaseSpinLock");
    lower_irql(old);
}
void NTAPI KeAcquireSpinLockAtDpcLevel(uint64_t *l) {
    if (g_verifier && current()->irql < DISPATCH_LEVEL)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "KeAcquireSpinLockAtDpcLevel at IRQL %u", current()->irql);
    acquire_spin_lock(l, "KeAcquireSpinLockAtDpcLevel");
}
void NTAPI KeReleaseSpinLockFromDpcLevel(uint64_t *l) {
    release_spin_lock(l, "KeReleaseSpinLockFromDpcLevel");
}
BOOLEAN NTAPI KeTryToAcquireSpinLockAtDpcLevel(uint64_t *l) {
    return try_spin_lock(l);
}
void NTAPI KeAcquireInStackQueuedSpinLock(uint64_t *l, KLOCK_QUEUE_HANDLE *h) {
    h->Lock = l;
    h->OldIrql = KeAcquireSpinLockRaiseToDpc(l);
}
void NTAPI KeReleaseInStackQueuedSpinLock(KLOCK_QUEUE_HANDLE *h) {
    KeReleaseSpinLock(static_cast<uint64_t *>(h->Lock), h->OldIrql);
}
void NTAPI KeAcquireInStackQueuedSpinLockAtDpcLevel(uint64_t *l, KLOCK_QUEUE_HANDLE *h) {
    h->Lock = l;
    KeAcquireSpinLockAtDpcLevel(l);
}
void NTAPI KeReleaseInStackQueuedSpinLockFromDpcLevel(KLOCK_QUEUE_HANDLE *h) {
    KeReleaseSpinLockFromDpcLevel(static_cast<uint64_t *>(h->Lock));
}

// ---- IRQL
KIRQL NTAPI KeGetCurrentIrql() {
    return current()->irql;
}
KIRQL NTAPI KfRaiseIrql(KIRQL to) {
    return raise_irql(to);
}
void NTAPI KeLowerIrql(KIRQL to) {
    lower_irql(to);
}
KIRQL NTAPI KeRaiseIrqlToDpcLevel() {
    return raise_irql(DISPATCH_LEVEL);
}
void NTAPI KeEnterCriticalRegion() {}
BOOLEAN NTAPI KeAreApcsDisabled() {
    return current()->irql >= APC_LEVEL;
}

// ---- DPCs and timers
void NTAPI KeInitializeDpc(KDPC *d, KDEFERRED_ROUTINE *routine, void *context) {
    memset(static_cast<void *>(d), 0, sizeof *d);
    d->Type = 19;
    d->DeferredRoutine = routine;
    d->DeferredContext = context;
}
BOOLEAN NTAPI KeInsertQueueDpc(KDPC *d, void *a, void *b) {
    return queue_dpc(d, a, b);
}
BOOLEAN NTAPI KeRemoveQueueDpc(KDPC *d) {
    return remove_dpc(d);
}
void NTAPI KeFlushQueuedDpcs() {
    require_irql(PASSIVE_LEVEL, "KeFlushQueuedDpcs");
    flush_dpcs();
}
void NTAPI KeSetImportanceDpc(KDPC *d, int i) {
    d->Importance = static_cast<UCHAR>(i);
}
void NTAPI KeSetTargetProcessorDpc(KDPC *, CCHAR) {}
void NTAPI KeInitializeTimer(KTIMER *t) {
    init_timer(t, false);
}
void NTAPI KeInitializeTimerEx(KTIMER *t, int type) {
    init_timer(t, type == 1);
}
BOOLEAN NTAPI KeSetTimerEx(KTIMER *t, int64_t due, LONG period, KDPC *dpc) {
    require_irql(DISPATCH_LEVEL, "KeSetTimer");
    return set_timer(t, due, period, dpc);
}
BOOLEAN NTAPI KeSetTimer(KTIMER *t, int64_t due, KDPC *dpc) {
    return KeSetTimerEx(t, due, 0, dpc);
}
BOOLEAN NTAPI KeCancelTimer(KTIMER *t) {
    require_irql(DISPATCH_LEVEL, "KeCancelTimer");
    return cancel_timer(t);
}
BOOLEAN NTAPI KeReadStateTimer(KTIMER *t) {
    return t->Header.SignalState != 0;
}

// ---- time
int64_t NTAPI KeQueryPerformanceCounter(int64_t *frequency) {
    if (frequency != nullptr) *frequency = 1000000000;
    return static_cast<int64_t>(monotonic_ns());
}
uint64_t NTAPI KeQueryInterruptTime() {
    return monotonic_ns() / 100;
}
void NTAPI KeQuerySystemTime(int64_t *t) {
    *t = static_cast<int64_t>(system_time());
}
void NTAPI KeQueryTickCount(int64_t *t) {
    *t = static_cast<int64_t>(monotonic_ns() / 15625000);
}
ULONG NTAPI KeQueryTimeIncrement() {
    return 156250;
}
void NTAPI KeStallExecutionProcessor(ULONG us) {
    uint64_t until = monotonic_ns() + uint64_t{us} * 1000;
    while (monotonic_ns() < until) __builtin_ia32_pause();
}

// ---- processors, threads
CCHAR KeNumberProcessors = static_cast<CCHAR>(sysconf(_SC_NPROCESSORS_ONLN));
uint64_t NTAPI KeQueryActiveProcessors() {
    return (uint64_t{1} << KeNumberProcessors) - 1;
}
ULONG NTAPI KeQueryActiveProcessorCount(uint64_t *mask) {
    if (mask != nullptr) *mask = KeQueryActiveProcessors();
    return static_cast<ULONG>(KeNumberProcessors);
}
ULONG NTAPI KeGetCurrentProcessorNumber() {
    return 0;
}
Thread *NTAPI KeGetCurrentThread() {
    return current();
}
KPRIORITY NTAPI KeSetPriorityThread(Thread *t, KPRIORITY p) {
    KPRIORITY old = t->priority;
    t->priority = p;
    return old;
}
KPRIORITY NTAPI KeQueryPriorityThread(Thread *t) {
    return t->priority;
}
void NTAPI KeSetSystemAffinityThread(uint64_t) {}
void NTAPI KeRevertToUserAffinityThread() {}

// ---- attaching
void NTAPI KeStackAttachProcess(Process *p, KAPC_STATE *state) {
    require_irql(APC_LEVEL, "KeStackAttachProcess");
    Thread *t = current();
    if (object_kind(p) != ObjectKind::Process)
        bugcheck(0x05, "INVALID_PROCESS_ATTACH_ATTEMPT", "%p is not a process", (void *)p);
    if (p->header.SignalState != 0) bugcheck(0x05, "INVALID_PROCESS_ATTACH_ATTEMPT", "process %u is gone", p->id);
    state->Process = t->attached;
    p->attached++;
    t->attached = p;
}
void NTAPI KeUnstackDetachProcess(KAPC_STATE *state) {
    Thread *t = current();
    t->attached->attached--;
    t->attached = static_cast<Process *>(state->Process);
}
void NTAPI KeAttachProcess(Process *p) {
    KAPC_STATE s;
    KeStackAttachProcess(p, &s);
}
void NTAPI KeDetachProcess() {
    Thread *t = current();
    t->attached->attached--;
    t->attached = t->process;
}

// ---- synchronisation with the interrupt
BOOLEAN NTAPI KeSynchronizeExecution(InterruptObject *o, BOOLEAN(NTAPI *routine)(void *), void *context) {
    Thread *t = current();
    KIRQL old = t->irql;
    t->irql = o->synchronize_irql;
    acquire_spin_lock(o->spin_lock, "KeSynchronizeExecution");
    BOOLEAN r = call_pe(routine, context);
    release_spin_lock(o->spin_lock, "KeSynchronizeExecution");
    t->irql = old;
    return r;
}
KIRQL NTAPI KeAcquireInterruptSpinLock(InterruptObject *o) {
    KIRQL old = raise_irql(o->synchronize_irql);
    acquire_spin_lock(o->spin_lock, "KeAcquireInterruptSpinLock");
    return old;
}
void NTAPI KeReleaseInterruptSpinLock(InterruptObject *o, KIRQL old) {
    release_spin_lock(o->spin_lock, "KeReleaseInterruptSpinLock");
    lower_irql(old);
}

// ---- device queues are not offered; bugchecks are
void NTAPI KeBugCheckEx(ULONG code, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
    bugcheck(code, "KeBugCheckEx", "by the driver: 0x%llx 0x%llx 0x%llx 0x%llx", (unsigned long long)a,
             (unsigned long long)b, (unsigned long long)c, (unsigned long long)d);
}
void NTAPI KeBugCheck(ULONG code) {
    KeBugCheckEx(code, 0, 0, 0, 0);
}
void NTAPI KeMemoryBarrier_() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
}
NTSTATUS NTAPI KeSaveFloatingPointState(void *) {
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI KeRestoreFloatingPointState(void *) {
    return STATUS_SUCCESS;
}
void NTAPI KeFlushIoBuffers(MDL *, BOOLEAN, BOOLEAN) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
}
NTSTATUS NTAPI ZwYieldExecution() {
    sched_yield();
    return STATUS_SUCCESS;
}

#define BOTH_IRQL                                                                                                 \
    FN(KeGetCurrentIrql), FN(KfRaiseIrql), FN(KeLowerIrql), FN_AS("KfLowerIrql", KeLowerIrql),                    \
        FN(KeRaiseIrqlToDpcLevel), FN(KeAcquireSpinLock), FN(KeAcquireSpinLockRaiseToDpc), FN(KeReleaseSpinLock), \
        FN(KeAcquireInStackQueuedSpinLock), FN(KeReleaseInStackQueuedSpinLock), FN(KeQueryPerformanceCounter),    \
        FN(KeStallExecutionProcessor), FN(KeFlushIoBuffers)

const Import imports[] = {
    FN(KeInitializeEvent),
    FN(KeSetEvent),
    FN(KeResetEvent),
    FN(KeClearEvent),
    FN(KePulseEvent),
    FN(KeReadStateEvent),
    FN(KeInitializeSemaphore),
    FN(KeReleaseSemaphore),
    FN(KeReadStateSemaphore),
    FN(KeInitializeMutex),
    FN(KeReleaseMutex),
    FN(KeReadStateMutex),
    FN_AS("KeInitializeMutant", KeInitializeMutex),
    FN(KeWaitForSingleObject),
    FN(KeWaitForMultipleObjects),
    FN_AS("KeWaitForMutexObject", KeWaitForSingleObject),
    FN(KeDelayExecutionThread),
    FN(KeInitializeSpinLock),
    FN(KeAcquireSpinLockAtDpcLevel),
    FN(KeReleaseSpinLockFromDpcLevel),
    FN(KeTryToAcquireSpinLockAtDpcLevel),
    FN(KeAcquireInStackQueuedSpinLockAtDpcLevel),
    FN(KeReleaseInStackQueuedSpinLockFromDpcLevel),
    BOTH_IRQL,
    FN(KeEnterCriticalRegion),
    FN_AS("KeLeaveCriticalRegion", KeEnterCriticalRegion),
    FN_AS("KeEnterGuardedRegion", KeEnterCriticalRegion),
    FN_AS("KeLeaveGuardedRegion", KeEnterCriticalRegion),
    FN(KeAreApcsDisabled),
    FN(KeInitializeDpc),
    FN(KeInsertQueueDpc),
    FN(KeRemoveQueueDpc),
    FN(KeFlushQueuedDpcs),
    FN(KeSetImportanceDpc),
    FN(KeSetTargetProcessorDpc),
    FN(KeInitializeTimer),
    FN(KeInitializeTimerEx),
    FN(KeSetTimer),
    FN(KeSetTimerEx),
    FN(KeCancelTimer),
    FN(KeReadStateTimer),
    FN(KeQueryInterruptTime),
    FN(KeQuerySystemTime),
    FN(KeQueryTickCount),
    FN(KeQueryTimeIncrement),
    DATA(KeNumberProcessors),
    FN(KeQueryActiveProcessors),
    FN(KeQueryActiveProcessorCount),
    FN(KeGetCurrentProcessorNumber),
    FN(KeGetCurrentThread),
    FN(KeSetPriorityThread),
    FN(KeQueryPriorityThread),
    FN(KeSetSystemAffinityThread),
    FN(KeRevertToUserAffinityThread),
    FN(KeStackAttachProcess),
    FN(KeUnstackDetachProcess),
    FN(KeAttachProcess),
    FN(KeDetachProcess),
    FN(KeSynchronizeExecution),
    FN(KeAcquireInterruptSpinLock),
    FN(KeReleaseInterruptSpinLock),
    FN(KeBugCheckEx),
    FN(KeBugCheck),
    FN_AS("KeMemoryBarrier", KeMemoryBarrier_),
    FN(KeSaveFloatingPointState),
    FN(KeRestoreFloatingPointState),
    FN(ZwYieldExecution),
};
const Import hal_imports[] = {BOTH_IRQL};
const ImportTable registered("ntoskrnl.exe", imports);
const ImportTable registered_hal("hal.dll", hal_imports);

}  // namespace

}  // namespace nth
