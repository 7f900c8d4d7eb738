// SPDX-License-Identifier: GPL-2.0-or-later
//
// ntoskrnl.exe: Ex: pool, fast mutexes, resources, lookaside lists, interlocked lists, work items; Io remove locks.
#include <cstring>
#include <map>

#include "cpu.h"
#include "exception.h"
#include "imports.h"
#include "io.h"
#include "process.h"
#include "verifier.h"

namespace nth {

using namespace nt;

namespace {

constexpr uint32_t NO_TAG = 0x656e6f4e;

void *NTAPI ExAllocatePoolWithTag(int type, uint64_t size, ULONG tag) {
    require_irql((type & 1) != 0 ? APC_LEVEL : DISPATCH_LEVEL, "ExAllocatePoolWithTag");
    void *p = pool_allocate(size, tag, true);
    if (p == nullptr && (type & 0x10) != 0) raise_status(STATUS_INSUFFICIENT_RESOURCES);
    return p;
}
void *NTAPI ExAllocatePool(int type, uint64_t size) {
    return ExAllocatePoolWithTag(type, size, NO_TAG);
}
void *NTAPI ExAllocatePoolWithQuotaTag(int type, uint64_t size, ULONG tag) {
    void *p = ExAllocatePoolWithTag(type & ~8, size, tag);
    if (p == nullptr && (type & 8) == 0) raise_status(STATUS_INSUFFICIENT_RESOURCES);
    return p;
}
void NTAPI ExFreePoolWithTag(void *p, ULONG tag) {
    require_irql(DISPATCH_LEVEL, "ExFreePoolWithTag");
    if (g_verifier && dpc_queued_in(reinterpret_cast<uint64_t>(p), reinterpret_cast<uint64_t>(p)))
        bugcheck(0xc7, "TIMER_OR_DPC_INVALID", "pool block %p was freed with a queued DPC in it", p);
    pool_free(p, tag, true);
}
void NTAPI ExFreePool(void *p) {
    ExFreePoolWithTag(p, 0);
}

// ---- fast mutexes
void lock_fast(FAST_MUTEX *m) {
    if (m->Owner == current())
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "fast mutex %p acquired twice by one thread", (void *)m);
    if (__atomic_sub_fetch(&m->Count, 1, __ATOMIC_ACQUIRE) != 0) {
        m->Contention++;
        wait_for_one(&m->Event.Header);
    }
    m->Owner = current();
}
void unlock_fast(FAST_MUTEX *m) {
    if (m->Owner != current())
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "fast mutex %p released by a thread that does not hold it",
                 (void *)m);
    m->Owner = nullptr;
    if (__atomic_add_fetch(&m->Count, 1, __ATOMIC_RELEASE) <= 0) set_event(&m->Event);
}
void NTAPI ExAcquireFastMutex(FAST_MUTEX *m) {
    require_irql(APC_LEVEL, "ExAcquireFastMutex");
    KIRQL old = current()->irql;
    current()->irql = APC_LEVEL;
    lock_fast(m);
    m->OldIrql = old;
}
void NTAPI ExReleaseFastMutex(FAST_MUTEX *m) {
    require_irql(APC_LEVEL, "ExReleaseFastMutex");
    auto old = static_cast<KIRQL>(m->OldIrql);
    unlock_fast(m);
    current()->irql = old;
}
BOOLEAN NTAPI ExTryToAcquireFastMutex(FAST_MUTEX *m) {
    require_irql(APC_LEVEL, "ExTryToAcquireFastMutex");
    LONG free = 1;
    if (!__atomic_compare_exchange_n(&m->Count, &free, 0, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) return 0;
    m->OldIrql = current()->irql;
    current()->irql = APC_LEVEL;
    m->Owner = current();
    return 1;
}
void NTAPI ExAcquireFastMutexUnsafe(FAST_MUTEX *m) {
    lock_fast(m);
}
void NTAPI ExReleaseFastMutexUnsafe(FAST_MUTEX *m) {
    unlock_fast(m);
}
void NTAPI ExInitializeFastMutex(FAST_MUTEX *m) {
    memset(static_cast<void *>(m), 0, sizeof *m);
    m->Count = 1;
    init_event(&m->Event, true, false);
}

// ---- executive resources: state outside the driver's memory
struct Resource {
    FutexLock lock;  // guards the rest
    Thread *exclusive = nullptr;
    unsigned depth = 0;
    std::map<Thread *, unsigned> shared;
    unsigned waiting_exclusive = 0;
    std::atomic<uint32_t> changes{0};
};
Resource *resource(ERESOURCE *r) {
    if (r->OwnerTable == nullptr)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "ERESOURCE %p was never initialised", (void *)r);
    return static_cast<Resource *>(r->OwnerTable);
}
NTSTATUS NTAPI ExInitializeResourceLite(ERESOURCE *r) {
    memset(static_cast<void *>(r), 0, sizeof *r);
    r->OwnerTable = new Resource;
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI ExDeleteResourceLite(ERESOURCE *r) {
    Resource *x = resource(r);
    if (x->exclusive != nullptr || !x->shared.empty())
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "ERESOURCE %p was deleted while held", (void *)r);
    delete x;
    r->OwnerTable = nullptr;
    return STATUS_SUCCESS;
}
template <class Try>
BOOLEAN acquire(ERESOURCE *r, BOOLEAN wait, Try attempt) {
    require_irql(APC_LEVEL, "ExAcquireResource");
    Resource *x = resource(r);
    for (;;) {
        uint32_t seen = x->changes;
        {
            Locked l(x->lock);
            if (attempt(x)) {
                r->ActiveCount = 1;
                return 1;
            }
        }
        if (!wait) return 0;
        futex_wait(&x->changes, seen);
    }
}
BOOLEAN NTAPI ExAcquireResourceExclusiveLite(ERESOURCE *r, BOOLEAN wait) {
    Thread *me = current();
    return acquire(r, wait, [&](Resource *x) {
        if (x->exclusive == me) return ++x->depth, true;
        if (x->exclusive != nullptr || !x->shared.empty()) return false;
        x->exclusive = me;
        x->depth = 1;
        return true;
    });
}
BOOLEAN NTAPI ExAcquireResourceSharedLite(ERESOURCE *r, BOOLEAN wait) {
    Thread *me = current();
    return acquire(r, wait, [&](Resource *x) {
        if (x->exclusive == me) return ++x->depth, true;
        if (x->exclusive != nullptr) return false;
        x->shared[me]++;
        return true;
    });
}
void NTAPI ExReleaseResourceLite(ERESOURCE *r) {
    Resource *x = resource(r);
    Thread *me = current();
    Locked l(x->lock);
    if (x->exclusive == me) {
        if (--x->depth == 0) x->exclusive = nullptr;
    } else if (auto it = x->shared.find(me); it != x->shared.end()) {
        if (--it->second == 0) x->shared.erase(it);
    } else {
        bugcheck(0xe3, "RESOURCE_NOT_OWNED", "ERESOURCE %p is not held by this thread", (void *)r);
    }
    if (x->exclusive == nullptr && x->shared.empty()) r->ActiveCount = 0;
    x->changes++;
    futex_wake(&x->changes, 1 << 30);
}
BOOLEAN NTAPI ExIsResourceAcquiredExclusiveLite(ERESOURCE *r) {
    return resource(r)->exclusive == current();
}
ULONG NTAPI ExIsResourceAcquiredSharedLite(ERESOURCE *r) {
    Resource *x = resource(r);
    Locked l(x->lock);
    return x->exclusive == current() ? x->depth : x->shared.contains(current()) ? x->shared[current()] : 0;
}

// ---- singly linked lists: word 0 depth, word 1 first entry, under one lock
FutexLock g_slist;
SLIST_ENTRY *NTAPI ExpInterlockedPushEntrySList(SLIST_HEADER *h, SLIST_ENTRY *e) {
    Locked l(g_slist);
    auto *old = reinterpret_cast<SLIST_ENTRY *>(h->Word[1]);
    e->Next = old;
    h->Word[1] = reinterpret_cast<uint64_t>(e);
    h->Word[0]++;
    return old;
}
SLIST_ENTRY *NTAPI ExpInterlockedPopEntrySList(SLIST_HEADER *h) {
    Locked l(g_slist);
    auto *e = reinterpret_cast<SLIST_ENTRY *>(h->Word[1]);
    if (e == nullptr) return nullptr;
    h->Word[1] = reinterpret_cast<uint64_t>(e->Next);
    h->Word[0]--;
    return e;
}
SLIST_ENTRY *NTAPI ExpInterlockedFlushSList(SLIST_HEADER *h) {
    Locked l(g_slist);
    auto *e = reinterpret_cast<SLIST_ENTRY *>(h->Word[1]);
    *h = SLIST_HEADER{};
    return e;
}
USHORT NTAPI ExQueryDepthSList(SLIST_HEADER *h) {
    return static_cast<USHORT>(h->Word[0]);
}
void NTAPI InitializeSListHead(SLIST_HEADER *h) {
    *h = SLIST_HEADER{};
}

// ---- lookaside lists: depth 0, so that every block goes through the pool and its checks
struct Lookaside {  // GENERAL_LOOKASIDE's first part
    SLIST_HEADER head;
    USHORT depth, maximum_depth;
    ULONG total_allocates, allocate_misses, total_frees, free_misses;
    ULONG type, tag, size;
    void *allocate, *free;
};
static_assert(offsetof(Lookaside, type) == 0x24 && offsetof(Lookaside, allocate) == 0x30);
void init_lookaside(Lookaside *l, void *allocate, void *free, ULONG type, uint64_t size, ULONG tag) {
    memset(static_cast<void *>(l), 0, 0x60);
    l->type = type;
    l->tag = tag;
    l->size = static_cast<ULONG>(size);
    l->allocate =
        allocate != nullptr ? allocate : const_cast<void *>(find_import("ntoskrnl.exe", "ExAllocatePoolWithTag"));
    l->free = free != nullptr ? free : const_cast<void *>(find_import("ntoskrnl.exe", "ExFreePool"));
}
void NTAPI ExInitializeNPagedLookasideList(Lookaside *l, void *allocate, void *free, ULONG, uint64_t size, ULONG tag,
                                           USHORT) {
    init_lookaside(l, allocate, free, 0, size, tag);
}
void NTAPI ExInitializePagedLookasideList(Lookaside *l, void *allocate, void *free, ULONG, uint64_t size, ULONG tag,
                                          USHORT) {
    init_lookaside(l, allocate, free, 1, size, tag);
}
void NTAPI ExDeleteNPagedLookasideList(Lookaside *l) {
    while (SLIST_ENTRY *e = ExpInterlockedPopEntrySList(&l->head))
        call_pe(reinterpret_cast<void(NTAPI *)(void *)>(l->free), static_cast<void *>(e));
}

// ---- interlocked lists: under the caller's spin lock
struct InterlockedScope {
    KIRQL old;
    uint64_t *lock;
    explicit InterlockedScope(uint64_t *l) : old(current()->irql), lock(l) {
        if (old < DISPATCH_LEVEL) current()->irql = DISPATCH_LEVEL;
        acquire_spin_lock(l, "ExInterlocked...List");
    }
    ~InterlockedScope() {
        release_spin_lock(lock, "ExInterlocked...List");
        current()->irql = old;
    }
};
LIST_ENTRY *NTAPI ExInterlockedInsertTailList(LIST_ENTRY *h, LIST_ENTRY *e, uint64_t *lock) {
    InterlockedScope s(lock);
    LIST_ENTRY *old = list_empty(h) ? nullptr : h->Blink;
    list_add_tail(h, e);
    return old;
}
LIST_ENTRY *NTAPI ExInterlockedInsertHeadList(LIST_ENTRY *h, LIST_ENTRY *e, uint64_t *lock) {
    InterlockedScope s(lock);
    LIST_ENTRY *old = list_empty(h) ? nullptr : h->Flink;
    list_add_tail(h->Flink, e);
    return old;
}
LIST_ENTRY *NTAPI ExInterlockedRemoveHeadList(LIST_ENTRY *h, uint64_t *lock) {
    InterlockedScope s(lock);
    if (list_empty(h)) return nullptr;
    LIST_ENTRY *e = h->Flink;
    list_remove(e);
    return e;
}

// ---- work items
struct WorkItem {  // IO_WORKITEM, opaque to drivers
    DEVICE_OBJECT *device;
    void(NTAPI *routine)(DEVICE_OBJECT *, void *);
    void *context;
    std::atomic<bool> queued;
};
constexpr uint32_t WORK_TAG = 0x6b726f57;
WorkItem *NTAPI IoAllocateWorkItem(DEVICE_OBJECT *d) {
    void *p = pool_allocate(sizeof(WorkItem), WORK_TAG, true);
    return p != nullptr ? new (p) WorkItem{d, nullptr, nullptr, {false}} : nullptr;
}
void NTAPI IoFreeWorkItem(WorkItem *w) {
    if (w->queued)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "IoFreeWorkItem: %p is still queued", (void *)w);
    pool_free(w, WORK_TAG, true);
}
void NTAPI IoQueueWorkItem(WorkItem *w, void(NTAPI *routine)(DEVICE_OBJECT *, void *), int, void *context) {
    require_irql(DISPATCH_LEVEL, "IoQueueWorkItem");
    if (w->queued.exchange(true))
        bugcheck(0x96, "INVALID_WORK_QUEUE_ITEM", "work item %p is queued already", (void *)w);
    w->routine = routine;
    w->context = context;
    object_reference(w->device);  // until the routine has run, as in NT
    queue_work(
        [](void *p) {
            auto *item = static_cast<WorkItem *>(p);
            DEVICE_OBJECT *device = item->device;
            auto *r = item->routine;
            void *c = item->context;
            item->queued = false;  // the routine may free or queue it again
            call_pe(r, device, c);
            object_release(device);
        },
        w);
}
void NTAPI ExQueueWorkItem(WORK_QUEUE_ITEM *w, int) {
    queue_work(
        [](void *p) {
            auto *item = static_cast<WORK_QUEUE_ITEM *>(p);
            call_pe(item->WorkerRoutine, item->Parameter);
        },
        w);
}

// ---- remove locks
void NTAPI IoInitializeRemoveLockEx(IO_REMOVE_LOCK_COMMON_BLOCK *l, ULONG, ULONG, ULONG, ULONG) {
    l->Removed = 0;
    l->IoCount = 1;
    init_event(&l->RemoveEvent, true, false);
}
NTSTATUS NTAPI IoAcquireRemoveLockEx(IO_REMOVE_LOCK_COMMON_BLOCK *l, void *, const char *, ULONG, ULONG) {
    __atomic_add_fetch(&l->IoCount, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&l->Removed, __ATOMIC_SEQ_CST)) return STATUS_SUCCESS;
    if (__atomic_sub_fetch(&l->IoCount, 1, __ATOMIC_SEQ_CST) == 0) set_event(&l->RemoveEvent);
    return STATUS_DELETE_PENDING;
}
void NTAPI IoReleaseRemoveLockEx(IO_REMOVE_LOCK_COMMON_BLOCK *l, void *, ULONG) {
    LONG left = __atomic_sub_fetch(&l->IoCount, 1, __ATOMIC_SEQ_CST);
    if (left < 0 || (left == 0 && !l->Removed))
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "remove lock %p was released once too often", (void *)l);
    if (left == 0) set_event(&l->RemoveEvent);
}
void NTAPI IoReleaseRemoveLockAndWaitEx(IO_REMOVE_LOCK_COMMON_BLOCK *l, void *, ULONG) {
    require_irql(PASSIVE_LEVEL, "IoReleaseRemoveLockAndWait");
    __atomic_store_n(&l->Removed, 1, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(&l->IoCount, 1, __ATOMIC_SEQ_CST);
    if (__atomic_sub_fetch(&l->IoCount, 1, __ATOMIC_SEQ_CST) > 0) wait_for_one(&l->RemoveEvent.Header);
}

// ---- pool type tags of newer drivers
ULONG NTAPI ExSetTimerResolution(ULONG, BOOLEAN) {
    return 156250;
}
BOOLEAN NTAPI ExVerifySuite(int) {
    return 0;
}
NTSTATUS NTAPI ExUuidCreate(GUID *g) {
    for (unsigned i = 0; i < sizeof *g; i++)
        reinterpret_cast<uint8_t *>(g)[i] = static_cast<uint8_t>(monotonic_ns() >> (i & 7));
    return STATUS_SUCCESS;
}

const Import imports[] = {
    FN(ExAllocatePoolWithTag),
    FN(ExAllocatePool),
    FN(ExAllocatePoolWithQuotaTag),
    FN(ExFreePoolWithTag),
    FN(ExFreePool),
    FN(ExAcquireFastMutex),
    FN(ExReleaseFastMutex),
    FN(ExTryToAcquireFastMutex),
    FN(ExAcquireFastMutexUnsafe),
    FN(ExReleaseFastMutexUnsafe),
    FN(ExInitializeFastMutex),
    FN_AS("KeAcquireGuardedMutex", ExAcquireFastMutex),
    FN_AS("KeReleaseGuardedMutex", ExReleaseFastMutex),
    FN_AS("KeInitializeGuardedMutex", ExInitializeFastMutex),
    FN(ExInitializeResourceLite),
    FN(ExDeleteResourceLite),
    FN(ExAcquireResourceExclusiveLite),
    FN(ExAcquireResourceSharedLite),
    FN(ExReleaseResourceLite),
    FN(ExIsResourceAcquiredExclusiveLite),
    FN(ExIsResourceAcquiredSharedLite),
    FN(ExpInterlockedPushEntrySList),
    FN(ExpInterlockedPopEntrySList),
    FN(ExpInterlockedFlushSList),
    FN(ExQueryDepthSList),
    FN(InitializeSListHead),
    FN(ExInitializeNPagedLookasideList),
    FN(ExInitializePagedLookasideList),
    FN(ExDeleteNPagedLookasideList),
    FN_AS("ExDeletePagedLookasideList", ExDeleteNPagedLookasideList),
    FN(ExInterlockedInsertTailList),
    FN(ExInterlockedInsertHeadList),
    FN(ExInterlockedRemoveHeadList),
    FN(IoAllocateWorkItem),
    FN(IoFreeWorkItem),
    FN(IoQueueWorkItem),
    FN(ExQueueWorkItem),
    FN(IoInitializeRemoveLockEx),
    FN(IoAcquireRemoveLockEx),
    FN(IoReleaseRemoveLockEx),
    FN(IoReleaseRemoveLockAndWaitEx),
    FN(ExSetTimerResolution),
    FN(ExVerifySuite),
    FN(ExUuidCreate),
};
const ImportTable registered("ntoskrnl.exe", imports);

}  // namespace

}  // namespace nth
