// SPDX-License-Identifier: GPL-2.0-or-later
// probe.sys: what a driver does with a kernel, right and wrong, on request. See probe.h.
#include <intrin.h>
#define InterlockedBitTestAndSet wdm_InterlockedBitTestAndSet
#define InterlockedBitTestAndReset wdm_InterlockedBitTestAndReset
extern "C" {
#include <ntifs.h>
}
#undef InterlockedBitTestAndSet
#undef InterlockedBitTestAndReset
#include <stddef.h>

#include "probe.h"

// The same list that nthost's own structures are checked with.
#define NT_SIZE(type, size) static_assert(sizeof(type) == (size), #type);
#define NT_OFFSET(type, member, offset) static_assert(offsetof(type, member) == (offset), #type "." #member);
#include "nt_layout.inc"

#undef GetExceptionInformation
#define GetExceptionInformation() ((PEXCEPTION_POINTERS)_exception_info())

extern "C" POBJECT_TYPE *__imp_ExEventObjectType;

namespace {

constexpr ULONG tag = 'borP';

struct File {  // FsContext
    MDL *locked;
    MDL *view_mdl;
    void *view_page, *view;
    HANDLE secure;
};

struct Extension {
    KSPIN_LOCK lock;  // guards pended
    LIST_ENTRY pended;
    KTIMER timer;
    KDPC timer_dpc;
    IRP *timed;
    LONG ends_seen, cleanups;
    MDL *leaked;
};

DEVICE_OBJECT *g_device;
Extension *extension() { return static_cast<Extension *>(g_device->DeviceExtension); }

NTSTATUS complete(IRP *irp, NTSTATUS status, ULONG_PTR information) {
    irp->IoStatus.Status = status;
    irp->IoStatus.Information = information;
    IoCompleteRequest(irp, IO_NO_INCREMENT);
    return status;
}

probe_request *request_of(IRP *irp) { return static_cast<probe_request *>(irp->AssociatedIrp.SystemBuffer); }

__attribute__((noinline)) unsigned long long peek(const volatile unsigned long long *p) { return *p; }

// ---- exceptions
void user_read(probe_request *r) {
    __try {
        memcpy(&r->result[0], reinterpret_cast<void *>(r->a), 8);
    } __except (EXCEPTION_EXECUTE_HANDLER) {
        r->result[1] = static_cast<ULONG>(GetExceptionCode());
    }
}
void user_read_by_accessor(probe_request *r) {
    __try {
        r->result[0] = peek(reinterpret_cast<unsigned long long *>(r->a));
    } __except (EXCEPTION_EXECUTE_HANDLER) {
        r->result[1] = static_cast<ULONG>(GetExceptionCode());
    }
}
void user_write(probe_request *r) {
    __try {
        ProbeForWrite(reinterpret_cast<void *>(r->a), 8, 1);
        memcpy(reinterpret_cast<void *>(r->a), &r->b, 8);
    } __except (EXCEPTION_EXECUTE_HANDLER) {
        r->result[1] = static_cast<ULONG>(GetExceptionCode());
    }
}
void note_order(probe_request *r, unsigned digit) { r->result[0] = r->result[0] * 10 + digit; }
__attribute__((noinline)) void seh_inner(probe_request *r) {
    __try {
        note_order(r, 1);
        ExRaiseStatus(STATUS_DEVICE_BUSY);
    } __finally {
        note_order(r, AbnormalTermination() ? 3 : 9);
    }
    note_order(r, 9);
}
int filter_note(probe_request *r, unsigned digit, int answer) {
    note_order(r, digit);
    return answer;
}
void seh_order(probe_request *r) {
    __try {
        __try {
            seh_inner(r);
        } __finally {
            note_order(r, 4);
        }
    } __except (filter_note(
        r, 2, GetExceptionCode() == STATUS_DEVICE_BUSY ? EXCEPTION_EXECUTE_HANDLER : EXCEPTION_CONTINUE_SEARCH)) {
        note_order(r, 5);
    }
    __try {  // no exception: the __finally runs once, normally
        note_order(r, 6);
    } __finally {
        note_order(r, AbnormalTermination() ? 9 : 7);
    }
}
void seh_filter(probe_request *r) {
    __try {
        __try {
            ExRaiseStatus(STATUS_DEVICE_BUSY);
        } __except (filter_note(r, 1, EXCEPTION_CONTINUE_SEARCH)) {
            note_order(r, 9);
        }
    } __except (filter_note(r, 2, EXCEPTION_EXECUTE_HANDLER)) {
        note_order(r, 3);
        __try {  // a second exception inside the handler of the first
            peek(nullptr);
        } __except (EXCEPTION_EXECUTE_HANDLER) {
            note_order(r, 4);
        }
    }
}

// ---- pending requests
void NTAPI cancel_pended(DEVICE_OBJECT *, IRP *irp) {
    IoReleaseCancelSpinLock(irp->CancelIrql);
    KIRQL old = KeAcquireSpinLockRaiseToDpc(&extension()->lock);
    RemoveEntryList(&irp->Tail.Overlay.ListEntry);
    KeReleaseSpinLock(&extension()->lock, old);
    complete(irp, STATUS_CANCELLED, 0);
}
NTSTATUS pend(IRP *irp) {
    KIRQL old = KeAcquireSpinLockRaiseToDpc(&extension()->lock);
    IoMarkIrpPending(irp);
    InsertTailList(&extension()->pended, &irp->Tail.Overlay.ListEntry);
    IoSetCancelRoutine(irp, cancel_pended);
    bool cancelled = irp->Cancel && IoSetCancelRoutine(irp, nullptr);
    if (cancelled) RemoveEntryList(&irp->Tail.Overlay.ListEntry);
    KeReleaseSpinLock(&extension()->lock, old);
    if (cancelled) complete(irp, STATUS_CANCELLED, 0);
    return STATUS_PENDING;
}
unsigned release_pended(FILE_OBJECT *file) {
    unsigned n = 0;
    for (;;) {
        IRP *found = nullptr;
        KIRQL old = KeAcquireSpinLockRaiseToDpc(&extension()->lock);
        for (LIST_ENTRY *e = extension()->pended.Flink; e != &extension()->pended; e = e->Flink) {
            IRP *irp = CONTAINING_RECORD(e, IRP, Tail.Overlay.ListEntry);
            if (file && IoGetCurrentIrpStackLocation(irp)->FileObject != file) continue;
            if (!IoSetCancelRoutine(irp, nullptr)) continue;
            RemoveEntryList(e);
            found = irp;
            break;
        }
        KeReleaseSpinLock(&extension()->lock, old);
        if (!found) return n;
        request_of(found)->result[0] = ++n;
        complete(found, STATUS_SUCCESS, sizeof(probe_request));
    }
}
void NTAPI timer_fired(KDPC *, void *, void *, void *) {
    IRP *irp = static_cast<IRP *>(
        InterlockedExchangePointer(reinterpret_cast<void *volatile *>(&extension()->timed), nullptr));
    if (!irp) return;
    request_of(irp)->result[0] = KeGetCurrentIrql();
    complete(irp, STATUS_SUCCESS, sizeof(probe_request));
}
struct WorkContext {
    PIO_WORKITEM item;
    IRP *irp;
};
void NTAPI work(DEVICE_OBJECT *, void *p) {
    auto *w = static_cast<WorkContext *>(p);
    IRP *irp = w->irp;
    IoFreeWorkItem(w->item);
    ExFreePoolWithTag(w, tag);
    request_of(irp)->result[0] = 77;
    complete(irp, STATUS_SUCCESS, sizeof(probe_request));
}
void NTAPI thread_main(void *p) {
    *static_cast<HANDLE *>(p) = PsGetCurrentThreadId();
    PsTerminateSystemThread(STATUS_SUCCESS);
}
NTSTATUS run_thread(probe_request *r) {
    HANDLE id = nullptr, handle;
    NTSTATUS s = PsCreateSystemThread(&handle, THREAD_ALL_ACCESS, nullptr, nullptr, nullptr, thread_main, &id);
    if (!NT_SUCCESS(s)) return s;
    void *thread;
    s = ObReferenceObjectByHandle(handle, THREAD_ALL_ACCESS, nullptr, KernelMode, &thread, nullptr);
    ZwClose(handle);
    if (!NT_SUCCESS(s)) return s;
    KeWaitForSingleObject(thread, Executive, KernelMode, FALSE, nullptr);
    ObDereferenceObject(thread);
    r->result[0] = id != nullptr && id != PsGetCurrentThreadId();
    return STATUS_SUCCESS;
}

// ---- memory
NTSTATUS lock_range(probe_request *r, MDL **out) {
    MDL *mdl = IoAllocateMdl(reinterpret_cast<void *>(r->a), static_cast<ULONG>(r->b), FALSE, FALSE, nullptr);
    if (!mdl) return STATUS_INSUFFICIENT_RESOURCES;
    __try {
        MmProbeAndLockPages(mdl, UserMode, r->c ? IoWriteAccess : IoReadAccess);
    } __except (EXCEPTION_EXECUTE_HANDLER) {
        r->result[1] = static_cast<ULONG>(GetExceptionCode());
    }
    if (r->result[1]) {
        IoFreeMdl(mdl);
        return STATUS_SUCCESS;
    }
    *out = mdl;
    return STATUS_SUCCESS;
}
void unlock(MDL **mdl) {
    if (!*mdl) return;
    MmUnlockPages(*mdl);
    IoFreeMdl(*mdl);
    *mdl = nullptr;
}
NTSTATUS map_page(probe_request *r, File *f) {
    f->view_page = ExAllocatePoolWithTag(NonPagedPool, PAGE_SIZE, tag);
    if (!f->view_page) return STATUS_INSUFFICIENT_RESOURCES;
    memset(f->view_page, 0, PAGE_SIZE);
    *static_cast<unsigned long long *>(f->view_page) = 0x1122334455667788;
    f->view_mdl = IoAllocateMdl(f->view_page, PAGE_SIZE, FALSE, FALSE, nullptr);
    if (!f->view_mdl) return STATUS_INSUFFICIENT_RESOURCES;
    MmBuildMdlForNonPagedPool(f->view_mdl);
    __try {
        f->view = MmMapLockedPagesSpecifyCache(f->view_mdl, UserMode, MmCached, nullptr, FALSE, NormalPagePriority);
    } __except (EXCEPTION_EXECUTE_HANDLER) {
        r->result[1] = static_cast<ULONG>(GetExceptionCode());
    }
    r->result[0] = reinterpret_cast<unsigned long long>(f->view);
    return STATUS_SUCCESS;
}
void unmap_page(File *f) {
    if (f->view) MmUnmapLockedPages(f->view, f->view_mdl);
    if (f->view_mdl) IoFreeMdl(f->view_mdl);
    if (f->view_page) ExFreePoolWithTag(f->view_page, tag);
    f->view = f->view_page = f->view_mdl = nullptr;
}
NTSTATUS attach(probe_request *r) {
    PEPROCESS process;
    NTSTATUS s = PsLookupProcessByProcessId(reinterpret_cast<HANDLE>(r->a), &process);
    if (!NT_SUCCESS(s)) return s;
    probe_request inner = {};
    inner.a = r->b;
    inner.b = r->c;
    MDL *mdl = nullptr;
    KAPC_STATE state;
    KeStackAttachProcess(reinterpret_cast<PKPROCESS>(process), &state);
    s = lock_range(&inner, &mdl);
    KeUnstackDetachProcess(&state);
    r->result[1] = inner.result[1];
    if (mdl) {
        void *p = MmGetSystemAddressForMdlSafe(mdl, NormalPagePriority);
        if (p) r->result[0] = peek(static_cast<unsigned long long *>(p));
        unlock(&mdl);
    }
    ObDereferenceObject(process);
    return s;
}

void strings(probe_request *r) {
    UNICODE_STRING a, b;
    WCHAR buffer[32];
    RtlInitUnicodeString(&a, reinterpret_cast<const WCHAR *>(u"Probe"));
    b.Buffer = buffer;
    b.Length = 0;
    b.MaximumLength = sizeof buffer;
    RtlCopyUnicodeString(&b, &a);
    bool ok = RtlEqualUnicodeString(&a, &b, FALSE) &&
              NT_SUCCESS(RtlAppendUnicodeToString(&b, reinterpret_cast<const WCHAR *>(u"XY"))) && b.Length == 14 &&
              !RtlEqualUnicodeString(&a, &b, TRUE) && RtlCompareUnicodeString(&a, &b, TRUE) < 0;
    ANSI_STRING ansi;
    ok = ok && NT_SUCCESS(RtlUnicodeStringToAnsiString(&ansi, &b, TRUE)) && ansi.Length == 7 &&
         memcmp(ansi.Buffer, "ProbeXY", 7) == 0;
    if (ok) RtlFreeAnsiString(&ansi);
    r->result[0] = ok;
}

void NTAPI process_notify(HANDLE, HANDLE, BOOLEAN create) {
    if (!create) InterlockedIncrement(&extension()->ends_seen);
}

// ---- mistakes
NTSTATUS misbehave(IRP *irp, probe_request *r, File *f) {
    switch (r->op) {
        case PROBE_BAD_TOUCH_USER: r->result[0] = peek(reinterpret_cast<unsigned long long *>(r->a)); break;
        case PROBE_BAD_NULL: r->result[0] = peek(nullptr); break;
        case PROBE_BAD_WAIT_AT_DISPATCH: {
            KEVENT e;
            KeInitializeEvent(&e, NotificationEvent, TRUE);
            KIRQL old = KeAcquireSpinLockRaiseToDpc(&extension()->lock);
            KeWaitForSingleObject(&e, Executive, KernelMode, FALSE, nullptr);
            KeReleaseSpinLock(&extension()->lock, old);
            break;
        }
        case PROBE_BAD_COMPLETE_TWICE: complete(irp, STATUS_SUCCESS, 0); break;
        case PROBE_BAD_LEAK_POOL: (void)ExAllocatePoolWithTag(NonPagedPool, 321, 'kaeL'); break;
        case PROBE_BAD_LEAK_LOCK: lock_range(r, &extension()->leaked); break;
        case PROBE_BAD_UNLOCK_TWICE: {
            MDL *mdl = nullptr;
            lock_range(r, &mdl);
            MmUnlockPages(mdl);
            MmUnlockPages(mdl);
            break;
        }
        case PROBE_BAD_FREE_LOCKED: {
            MDL *mdl = nullptr;
            lock_range(r, &mdl);
            IoFreeMdl(mdl);
            break;
        }
        case PROBE_BAD_OVERRUN: {
            auto *p = static_cast<char *>(ExAllocatePoolWithTag(NonPagedPool, 100, tag));
            memset(p, 0, 101);
            ExFreePoolWithTag(p, tag);
            break;
        }
        case PROBE_BAD_WRITE_FREED: {
            auto *p = static_cast<char *>(ExAllocatePoolWithTag(NonPagedPool, 100, tag));
            ExFreePoolWithTag(p, tag);
            memset(p, 1, 8);
            for (int i = 0; i < 1000; ++i) ExFreePoolWithTag(ExAllocatePoolWithTag(NonPagedPool, 100, tag), tag);
            break;
        }
        case PROBE_BAD_FREE_TWICE: {
            void *p = ExAllocatePoolWithTag(NonPagedPool, 100, tag);
            ExFreePoolWithTag(p, tag);
            ExFreePoolWithTag(p, tag);
            break;
        }
        case PROBE_BAD_PENDING: complete(irp, STATUS_SUCCESS, 0); return STATUS_PENDING;
        case PROBE_BAD_RETURN: return STATUS_SUCCESS;
        case PROBE_BAD_SPIN_TWICE:
            KeAcquireSpinLockRaiseToDpc(&extension()->lock);
            KeAcquireSpinLockAtDpcLevel(&extension()->lock);
            break;
        case PROBE_BAD_FAULT_AT_DISPATCH: {
            KIRQL old = KeAcquireSpinLockRaiseToDpc(&extension()->lock);
            user_read(r);
            KeReleaseSpinLock(&extension()->lock, old);
            break;
        }
        case PROBE_BAD_LEAVE_RAISED: {
            complete(irp, STATUS_SUCCESS, 0);
            KIRQL old;
            KeRaiseIrql(DISPATCH_LEVEL, &old);
            return STATUS_SUCCESS;
        }
        case PROBE_BAD_INFORMATION: return complete(irp, STATUS_SUCCESS, 100000);
        case PROBE_BAD_LEAK_VIEW: {
            File lost = {};
            map_page(r, &lost);
            break;
        }
        case PROBE_BAD_UNSECURE: MmUnsecureVirtualMemory(reinterpret_cast<HANDLE>(0x1230)); break;
        case PROBE_BAD_DEREFERENCE: ObDereferenceObject(f); break;
        case PROBE_BAD_NO_CANCEL: IoMarkIrpPending(irp); return STATUS_PENDING;
        default: return complete(irp, STATUS_INVALID_PARAMETER, 0);
    }
    return complete(irp, STATUS_SUCCESS, sizeof *r);
}

NTSTATUS operate(IRP *irp, IO_STACK_LOCATION *sl, probe_request *r) {
    auto *f = static_cast<File *>(sl->FileObject->FsContext);
    NTSTATUS s = STATUS_SUCCESS;
    switch (r->op) {
        case PROBE_ECHO: r->result[0] = r->a ^ r->b; break;
        case PROBE_READ: user_read(r); break;
        case PROBE_ACCESSOR: user_read_by_accessor(r); break;
        case PROBE_WRITE: user_write(r); break;
        case PROBE_SEH_ORDER: seh_order(r); break;
        case PROBE_SEH_FILTER: seh_filter(r); break;
        case PROBE_PEND: return pend(irp);
        case PROBE_RELEASE: r->result[0] = release_pended(nullptr); break;
        case PROBE_DELAY: {
            IoMarkIrpPending(irp);
            extension()->timed = irp;
            LARGE_INTEGER due;
            due.QuadPart = -static_cast<LONGLONG>(r->a) * 10000;
            KeSetTimer(&extension()->timer, due, &extension()->timer_dpc);
            return STATUS_PENDING;
        }
        case PROBE_WORK: {
            auto *w = static_cast<WorkContext *>(ExAllocatePoolWithTag(NonPagedPool, sizeof(WorkContext), tag));
            if (!w) return complete(irp, STATUS_INSUFFICIENT_RESOURCES, 0);
            w->item = IoAllocateWorkItem(g_device);
            w->irp = irp;
            IoMarkIrpPending(irp);
            IoQueueWorkItem(w->item, work, DelayedWorkQueue, w);
            return STATUS_PENDING;
        }
        case PROBE_THREAD: s = run_thread(r); break;
        case PROBE_SET_EVENT: {
            void *event;
            s = ObReferenceObjectByHandle(reinterpret_cast<HANDLE>(r->a), EVENT_MODIFY_STATE, *__imp_ExEventObjectType,
                                          UserMode, &event, nullptr);
            if (!NT_SUCCESS(s)) break;
            KeSetEvent(static_cast<PKEVENT>(event), IO_NO_INCREMENT, FALSE);
            ObDereferenceObject(event);
            break;
        }
        case PROBE_LOCK: s = f->locked ? STATUS_DEVICE_BUSY : lock_range(r, &f->locked); break;
        case PROBE_UNLOCK: unlock(&f->locked); break;
        case PROBE_PEEK:
        case PROBE_POKE: {
            auto *p =
                f->locked ? static_cast<char *>(MmGetSystemAddressForMdlSafe(f->locked, NormalPagePriority)) : nullptr;
            if (!p || r->a + 8 > MmGetMdlByteCount(f->locked)) {
                s = STATUS_INVALID_PARAMETER;
                break;
            }
            if (r->op == PROBE_PEEK) memcpy(&r->result[0], p + r->a, 8);
            else memcpy(p + r->a, &r->b, 8);
            break;
        }
        case PROBE_SECURE:
            r->result[0] = reinterpret_cast<unsigned long long>(
                MmSecureVirtualMemory(reinterpret_cast<void *>(r->a), r->b, r->c ? PAGE_READWRITE : PAGE_READONLY));
            break;
        case PROBE_UNSECURE: MmUnsecureVirtualMemory(reinterpret_cast<HANDLE>(r->a)); break;
        case PROBE_MAP: s = f->view ? STATUS_DEVICE_BUSY : map_page(r, f); break;
        case PROBE_UNMAP: unmap_page(f); break;
        case PROBE_ATTACH: s = attach(r); break;
        case PROBE_PROCESS:
            r->result[0] = reinterpret_cast<unsigned long long>(PsGetCurrentProcessId());
            r->result[1] = static_cast<unsigned>(extension()->ends_seen);
            r->result[2] = static_cast<unsigned>(extension()->cleanups);
            break;
        case PROBE_TIME: {
            LARGE_INTEGER t, frequency;
            KeQuerySystemTime(&t);
            r->result[0] = static_cast<unsigned long long>(t.QuadPart);
            r->result[1] = KeQueryInterruptTime();
            KeQueryTickCount(&t);
            r->result[2] = static_cast<unsigned long long>(t.QuadPart) * KeQueryTimeIncrement();
            t = KeQueryPerformanceCounter(&frequency);
            r->result[3] = static_cast<unsigned long long>(t.QuadPart) /
                           (static_cast<unsigned long long>(frequency.QuadPart) / 1000);
            break;
        }
        case PROBE_IRQL: {
            KIRQL old;
            r->result[0] = KeGetCurrentIrql();
            KeRaiseIrql(DISPATCH_LEVEL, &old);
            r->result[0] = r->result[0] * 10 + KeGetCurrentIrql();
            KeLowerIrql(old);
            r->result[0] = r->result[0] * 10 + KeGetCurrentIrql();
            break;
        }
        case PROBE_POOL: {
            void *p = ExAllocatePoolWithTag(NonPagedPool, r->a, tag);
            r->result[0] = p != nullptr;
            if (p) ExFreePoolWithTag(p, tag);
            break;
        }
        case PROBE_STRINGS: strings(r); break;
        default: return misbehave(irp, r, f);
    }
    return complete(irp, s, NT_SUCCESS(s) ? sizeof *r : 0);
}

NTSTATUS NTAPI control(DEVICE_OBJECT *, IRP *irp) {
    IO_STACK_LOCATION *sl = IoGetCurrentIrpStackLocation(irp);
    ULONG in = sl->Parameters.DeviceIoControl.InputBufferLength,
          out = sl->Parameters.DeviceIoControl.OutputBufferLength;
    switch (sl->Parameters.DeviceIoControl.IoControlCode) {
        case PROBE_IOCTL:
            if (in < sizeof(probe_request) || out < sizeof(probe_request))
                return complete(irp, STATUS_BUFFER_TOO_SMALL, 0);
            return operate(irp, sl, request_of(irp));
        case PROBE_IOCTL_OUT_DIRECT: {  // fills the whole output with the byte that came in
            if (in < 1 || !irp->MdlAddress) return complete(irp, STATUS_INVALID_PARAMETER, 0);
            void *p = MmGetSystemAddressForMdlSafe(irp->MdlAddress, NormalPagePriority);
            if (!p) return complete(irp, STATUS_INSUFFICIENT_RESOURCES, 0);
            memset(p, *static_cast<char *>(irp->AssociatedIrp.SystemBuffer), MmGetMdlByteCount(irp->MdlAddress));
            return complete(irp, STATUS_SUCCESS, MmGetMdlByteCount(irp->MdlAddress));
        }
        case PROBE_IOCTL_NEITHER: {  // copies input to output, both the caller's
            NTSTATUS s = STATUS_SUCCESS;
            ULONG n = in < out ? in : out;
            __try {
                ProbeForRead(sl->Parameters.DeviceIoControl.Type3InputBuffer, n, 1);
                ProbeForWrite(irp->UserBuffer, n, 1);
                memcpy(irp->UserBuffer, sl->Parameters.DeviceIoControl.Type3InputBuffer, n);
            } __except (EXCEPTION_EXECUTE_HANDLER) {
                s = GetExceptionCode();
            }
            return complete(irp, s, NT_SUCCESS(s) ? n : 0);
        }
        default: return complete(irp, STATUS_INVALID_DEVICE_REQUEST, 0);
    }
}

NTSTATUS NTAPI create(DEVICE_OBJECT *, IRP *irp) {
    auto *f = static_cast<File *>(ExAllocatePoolWithTag(NonPagedPool, sizeof(File), tag));
    if (!f) return complete(irp, STATUS_INSUFFICIENT_RESOURCES, 0);
    memset(f, 0, sizeof *f);
    IoGetCurrentIrpStackLocation(irp)->FileObject->FsContext = f;
    return complete(irp, STATUS_SUCCESS, 0);
}
NTSTATUS NTAPI cleanup(DEVICE_OBJECT *, IRP *irp) {
    FILE_OBJECT *file = IoGetCurrentIrpStackLocation(irp)->FileObject;
    auto *f = static_cast<File *>(file->FsContext);
    release_pended(file);
    unlock(&f->locked);
    unmap_page(f);
    InterlockedIncrement(&extension()->cleanups);
    return complete(irp, STATUS_SUCCESS, 0);
}
NTSTATUS NTAPI close(DEVICE_OBJECT *, IRP *irp) {
    ExFreePoolWithTag(IoGetCurrentIrpStackLocation(irp)->FileObject->FsContext, tag);
    return complete(irp, STATUS_SUCCESS, 0);
}
void NTAPI unload(DRIVER_OBJECT *) {
    UNICODE_STRING link;
    RtlInitUnicodeString(&link, reinterpret_cast<const WCHAR *>(u"\\DosDevices\\NthostProbe"));
    IoDeleteSymbolicLink(&link);
    PsSetCreateProcessNotifyRoutine(process_notify, TRUE);
    KeCancelTimer(&extension()->timer);
    KeFlushQueuedDpcs();
    IoDeleteDevice(g_device);
}

}  // namespace

extern "C" NTSTATUS NTAPI DriverEntry(DRIVER_OBJECT *driver, UNICODE_STRING *) {
    UNICODE_STRING name, link;
    RtlInitUnicodeString(&name, reinterpret_cast<const WCHAR *>(u"\\Device\\NthostProbe"));
    RtlInitUnicodeString(&link, reinterpret_cast<const WCHAR *>(u"\\DosDevices\\NthostProbe"));
    NTSTATUS s = IoCreateDevice(driver, sizeof(Extension), &name, FILE_DEVICE_UNKNOWN, 0, FALSE, &g_device);
    if (!NT_SUCCESS(s)) return s;
    s = IoCreateSymbolicLink(&link, &name);
    if (!NT_SUCCESS(s)) {
        IoDeleteDevice(g_device);
        return s;
    }
    Extension *x = extension();
    KeInitializeSpinLock(&x->lock);
    InitializeListHead(&x->pended);
    KeInitializeTimer(&x->timer);
    KeInitializeDpc(&x->timer_dpc, timer_fired, nullptr);
    driver->MajorFunction[IRP_MJ_CREATE] = create;
    driver->MajorFunction[IRP_MJ_CLEANUP] = cleanup;
    driver->MajorFunction[IRP_MJ_CLOSE] = close;
    driver->MajorFunction[IRP_MJ_DEVICE_CONTROL] = control;
    driver->DriverUnload = unload;
    return PsSetCreateProcessNotifyRoutine(process_notify, FALSE);
}
