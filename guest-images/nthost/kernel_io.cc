// SPDX-License-Identifier: GPL-2.0-or-later
//
// ntoskrnl.exe: Io and Po: devices, IRPs, cancel-safe queues, interfaces, symbolic links, interrupts, DMA adapter.
#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "cpu.h"
#include "device.h"
#include "exception.h"
#include "imports.h"
#include "io.h"
#include "mdl.h"
#include "pnp.h"
#include "process.h"
#include "verifier.h"

namespace nth {

using namespace nt;

uint64_t allocate_common_buffer(uint64_t bytes);
bool free_common_buffer(uint64_t at);

namespace {

std::u16string text_of(const UNICODE_STRING *s) {
    return std::u16string(s->Buffer, s->Length / 2);
}

NTSTATUS NTAPI IoCreateDevice(DRIVER_OBJECT *driver, ULONG extension, UNICODE_STRING *name, ULONG type,
                              ULONG characteristics, BOOLEAN exclusive, DEVICE_OBJECT **out) {
    require_irql(APC_LEVEL, "IoCreateDevice");
    if (should_fail(Fail::Pool)) return STATUS_INSUFFICIENT_RESOURCES;
    return create_device(driver, extension, name, type, characteristics, exclusive != 0, out);
}
void NTAPI IoDeleteDevice(DEVICE_OBJECT *d) {
    require_irql(APC_LEVEL, "IoDeleteDevice");
    delete_device(d);
}
DEVICE_OBJECT *NTAPI IoAttachDeviceToDeviceStack(DEVICE_OBJECT *source, DEVICE_OBJECT *target) {
    return attach_device(source, target);
}
void NTAPI IoDetachDevice(DEVICE_OBJECT *target) {
    detach_device(target);
}
DEVICE_OBJECT *NTAPI IoGetAttachedDeviceReference(DEVICE_OBJECT *d) {
    return top_of_stack(d);
}
DEVICE_OBJECT *NTAPI IoGetAttachedDevice(DEVICE_OBJECT *d) {
    DEVICE_OBJECT *top = top_of_stack(d);
    object_release(top);
    return top;
}
NTSTATUS NTAPI IoGetDeviceObjectPointer(UNICODE_STRING *name, ULONG, FILE_OBJECT **, DEVICE_OBJECT **) {
    note("IoGetDeviceObjectPointer(%s): there are no other drivers", narrow(name->Buffer, name->Length / 2).c_str());
    return STATUS_OBJECT_NAME_NOT_FOUND;
}

// ---- IRPs
NTSTATUS NTAPI IofCallDriver(DEVICE_OBJECT *d, IRP *irp) {
    require_irql(DISPATCH_LEVEL, "IoCallDriver");
    return call_driver(d, irp);
}
void NTAPI IofCompleteRequest(IRP *irp, CCHAR) {
    complete_irp(irp);
}
IRP *NTAPI IoAllocateIrp(CCHAR stack, BOOLEAN) {
    require_irql(DISPATCH_LEVEL, "IoAllocateIrp");
    return allocate_irp(stack, true);
}
void NTAPI IoFreeIrp(IRP *irp) {
    free_irp(irp);
}
void NTAPI IoInitializeIrp(IRP *irp, USHORT size, CCHAR stack) {
    memset(static_cast<void *>(irp), 0, size);
    irp->Type = 6;
    irp->Size = size;
    irp->StackCount = stack;
    irp->CurrentLocation = static_cast<CCHAR>(stack + 1);
    irp->Tail.CurrentStackLocation = reinterpret_cast<IO_STACK_LOCATION *>(irp + 1) + stack;
    list_init(&irp->ThreadListEntry);
}
void NTAPI IoReuseIrp(IRP *irp, NTSTATUS status) {
    UCHAR flags = irp->AllocationFlags;
    IoInitializeIrp(irp, irp->Size, irp->StackCount);
    irp->AllocationFlags = flags;
    irp->IoStatus.Status = status;
}
USHORT NTAPI IoSizeOfIrp_(CCHAR stack) {
    return static_cast<USHORT>(sizeof(IRP) + uint64_t(stack) * sizeof(IO_STACK_LOCATION));
}
IRP *NTAPI IoBuildDeviceIoControlRequest(ULONG code, DEVICE_OBJECT *d, void *input, ULONG input_length, void *output,
                                         ULONG output_length, BOOLEAN internal, KEVENT *event, IO_STATUS_BLOCK *iosb) {
    if ((code & 3) != 0 && (code & 3) != 3) return nullptr;  // direct methods are not offered
    IRP *irp = allocate_irp(d->StackSize, true);
    if (irp == nullptr) return nullptr;
    irp->UserIosb = iosb;
    irp->UserEvent = event;
    irp->UserBuffer = output;
    irp->Tail.Thread = current();
    IO_STACK_LOCATION *sl = next_location(irp);
    sl->MajorFunction = internal ? IRP_MJ_INTERNAL_DEVICE_CONTROL : IRP_MJ_DEVICE_CONTROL;
    sl->Parameters.DeviceIoControl = {output_length, input_length, code, (code & 3) == 3 ? input : nullptr};
    ULONG size = std::max(input_length, output_length);
    if ((code & 3) == 0 && size != 0) {
        irp->AssociatedIrp.SystemBuffer = pool_allocate(size, 0x20425649, false);
        if (irp->AssociatedIrp.SystemBuffer == nullptr) {
            free_irp(irp);
            return nullptr;
        }
        memcpy(irp->AssociatedIrp.SystemBuffer, input, input_length);
        irp->Flags = 0x10 | (output != nullptr ? 0x40 : 0);
    }
    return irp;
}
IRP *NTAPI IoBuildSynchronousFsdRequest(ULONG major, DEVICE_OBJECT *d, void *, ULONG, int64_t *, KEVENT *event,
                                        IO_STATUS_BLOCK *iosb) {
    if (major != IRP_MJ_PNP && major != 9 /* flush */ && major != 0x10 /* shutdown */) return nullptr;
    IRP *irp = allocate_irp(d->StackSize, true);
    if (irp == nullptr) return nullptr;
    irp->UserIosb = iosb;
    irp->UserEvent = event;
    irp->Tail.Thread = current();
    next_location(irp)->MajorFunction = static_cast<UCHAR>(major);
    return irp;
}
BOOLEAN NTAPI IoCancelIrp(IRP *irp) {
    require_irql(DISPATCH_LEVEL, "IoCancelIrp");
    return cancel_irp(irp);
}
void NTAPI IoAcquireCancelSpinLock(KIRQL *old) {
    *old = raise_irql(DISPATCH_LEVEL);
    acquire_spin_lock(&g_cancel_lock, "IoAcquireCancelSpinLock");
}
void NTAPI IoReleaseCancelSpinLock(KIRQL old) {
    release_spin_lock(&g_cancel_lock, "IoReleaseCancelSpinLock");
    lower_irql(old);
}
Process *NTAPI IoGetRequestorProcess(IRP *irp) {
    auto *t = static_cast<Thread *>(irp->Tail.Thread);
    return t != nullptr ? t->process : nullptr;
}
ULONG NTAPI IoGetRequestorProcessId(IRP *irp) {
    return IoGetRequestorProcess(irp)->id;
}
NTSTATUS NTAPI IoSetCompletionRoutineEx(DEVICE_OBJECT *, IRP *irp, IO_COMPLETION_ROUTINE *routine, void *context,
                                        BOOLEAN success, BOOLEAN error, BOOLEAN cancel) {
    IO_STACK_LOCATION *sl = next_location(irp);
    sl->CompletionRoutine = routine;
    sl->Context = context;
    sl->Control = static_cast<UCHAR>((success ? SL_INVOKE_ON_SUCCESS : 0) | (error ? SL_INVOKE_ON_ERROR : 0) |
                                     (cancel ? SL_INVOKE_ON_CANCEL : 0));
    return STATUS_SUCCESS;
}

// ---- cancel-safe queues
using CsqInsert = void NTAPI(IO_CSQ *, IRP *);
using CsqInsertEx = NTSTATUS NTAPI(IO_CSQ *, IRP *, void *);
using CsqPeek = IRP *NTAPI(IO_CSQ *, IRP *, void *);
using CsqAcquire = void NTAPI(IO_CSQ *, KIRQL *);
using CsqRelease = void NTAPI(IO_CSQ *, KIRQL);
template <class F>
F *csq(void *p) {
    return reinterpret_cast<F *>(p);
}
void csq_lock(IO_CSQ *q, KIRQL *old) {
    call_pe(csq<CsqAcquire>(q->CsqAcquireLock), q, old);
}
void csq_unlock(IO_CSQ *q, KIRQL old) {
    call_pe(csq<CsqRelease>(q->CsqReleaseLock), q, old);
}

void NTAPI csq_cancel(DEVICE_OBJECT *, IRP *irp) {
    IoReleaseCancelSpinLock(irp->CancelIrql);
    auto *head = static_cast<ULONG *>(irp->Tail.DriverContext[3]);
    IO_CSQ *q = *head == 2 ? reinterpret_cast<IO_CSQ_IRP_CONTEXT *>(head)->Csq : reinterpret_cast<IO_CSQ *>(head);
    KIRQL old;
    csq_lock(q, &old);
    call_pe(csq<CsqInsert>(q->CsqRemoveIrp), q, irp);
    if (*head == 2) reinterpret_cast<IO_CSQ_IRP_CONTEXT *>(head)->Irp = nullptr;
    irp->Tail.DriverContext[3] = nullptr;
    csq_unlock(q, old);
    call_pe(csq<CsqInsert>(q->CsqCompleteCanceledIrp), q, irp);
}
NTSTATUS NTAPI IoCsqInitialize(IO_CSQ *q, void *insert, void *remove, void *peek, void *lock, void *unlock,
                               void *complete) {
    *q = {1, insert, remove, peek, lock, unlock, complete, nullptr};
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI IoCsqInitializeEx(IO_CSQ *q, void *insert, void *remove, void *peek, void *lock, void *unlock,
                                 void *complete) {
    *q = {3, insert, remove, peek, lock, unlock, complete, nullptr};
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI IoCsqInsertIrpEx(IO_CSQ *q, IRP *irp, IO_CSQ_IRP_CONTEXT *context, void *insert_context) {
    KIRQL old;
    csq_lock(q, &old);
    NTSTATUS s = STATUS_SUCCESS;
    if (context != nullptr) {
        *context = {2, irp, q};
        irp->Tail.DriverContext[3] = context;
    } else {
        irp->Tail.DriverContext[3] = q;
    }
    if (q->Type == 3) s = call_pe(csq<CsqInsertEx>(q->CsqInsertIrp), q, irp, insert_context);
    else call_pe(csq<CsqInsert>(q->CsqInsertIrp), q, irp);
    if (!nt_success(s)) {
        csq_unlock(q, old);
        return s;
    }
    current_location(irp)->Control |= SL_PENDING_RETURNED;  // IoMarkIrpPending
    DRIVER_CANCEL *routine = csq_cancel;
    __atomic_exchange(&irp->CancelRoutine, &routine, &routine, __ATOMIC_ACQ_REL);
    bool cancelled = irp->Cancel && __atomic_exchange_n(&irp->CancelRoutine, nullptr, __ATOMIC_ACQ_REL) != nullptr;
    if (cancelled) {
        call_pe(csq<CsqInsert>(q->CsqRemoveIrp), q, irp);
        if (context != nullptr) context->Irp = nullptr;
        irp->Tail.DriverContext[3] = nullptr;
    }
    csq_unlock(q, old);
    if (cancelled) call_pe(csq<CsqInsert>(q->CsqCompleteCanceledIrp), q, irp);
    return s;
}
void NTAPI IoCsqInsertIrp(IO_CSQ *q, IRP *irp, IO_CSQ_IRP_CONTEXT *context) {
    IoCsqInsertIrpEx(q, irp, context, nullptr);
}
IRP *NTAPI IoCsqRemoveNextIrp(IO_CSQ *q, void *peek) {
    KIRQL old;
    csq_lock(q, &old);
    IRP *irp = nullptr;
    while ((irp = call_pe(csq<CsqPeek>(q->CsqPeekNextIrp), q, irp, peek)) != nullptr) {
        if (__atomic_exchange_n(&irp->CancelRoutine, nullptr, __ATOMIC_ACQ_REL) == nullptr)
            continue;  // being cancelled
        call_pe(csq<CsqInsert>(q->CsqRemoveIrp), q, irp);
        auto *head = static_cast<ULONG *>(irp->Tail.DriverContext[3]);
        if (*head == 2) reinterpret_cast<IO_CSQ_IRP_CONTEXT *>(head)->Irp = nullptr;
        irp->Tail.DriverContext[3] = nullptr;
        break;
    }
    csq_unlock(q, old);
    return irp;
}
IRP *NTAPI IoCsqRemoveIrp(IO_CSQ *q, IO_CSQ_IRP_CONTEXT *context) {
    KIRQL old;
    csq_lock(q, &old);
    IRP *irp = context->Irp;
    if (irp != nullptr) {
        if (__atomic_exchange_n(&irp->CancelRoutine, nullptr, __ATOMIC_ACQ_REL) == nullptr) {
            irp = nullptr;
        } else {
            call_pe(csq<CsqInsert>(q->CsqRemoveIrp), q, irp);
            context->Irp = nullptr;
            irp->Tail.DriverContext[3] = nullptr;
        }
    }
    csq_unlock(q, old);
    return irp;
}

// ---- names and interfaces
NTSTATUS NTAPI IoCreateSymbolicLink(UNICODE_STRING *name, UNICODE_STRING *target) {
    require_irql(PASSIVE_LEVEL, "IoCreateSymbolicLink");
    return name_space().link(text_of(name), text_of(target)) ? STATUS_SUCCESS : STATUS_OBJECT_NAME_COLLISION;
}
NTSTATUS NTAPI IoDeleteSymbolicLink(UNICODE_STRING *name) {
    require_irql(PASSIVE_LEVEL, "IoDeleteSymbolicLink");
    return name_space().unlink(text_of(name)) ? STATUS_SUCCESS : STATUS_OBJECT_NAME_NOT_FOUND;
}
NTSTATUS NTAPI IoRegisterDeviceInterface(DEVICE_OBJECT *pdo, const GUID *guid, UNICODE_STRING *, UNICODE_STRING *out) {
    require_irql(PASSIVE_LEVEL, "IoRegisterDeviceInterface");
    return register_interface(pdo, *guid, out);
}
NTSTATUS NTAPI IoSetDeviceInterfaceState(UNICODE_STRING *name, BOOLEAN enable) {
    require_irql(PASSIVE_LEVEL, "IoSetDeviceInterfaceState");
    return set_interface_state(text_of(name), enable != 0);
}
NTSTATUS NTAPI IoGetDeviceProperty(DEVICE_OBJECT *pdo, int property, ULONG size, void *out, ULONG *needed) {
    return device_property(pdo, property, size, out, needed);
}
void NTAPI IoInvalidateDeviceRelations(DEVICE_OBJECT *, int) {}
void NTAPI IoInvalidateDeviceState(DEVICE_OBJECT *) {}

// ---- interrupts
constexpr uint32_t INTERRUPT_TAG = 0x72746e49;
InterruptObject *new_interrupt(void *context, uint64_t *lock, KIRQL irql) {
    void *p = pool_allocate(sizeof(InterruptObject), INTERRUPT_TAG, false);
    if (p == nullptr) return nullptr;
    auto *o = new (p) InterruptObject{};
    o->context = context;
    o->spin_lock = lock != nullptr ? lock : &o->own_lock;
    o->irql = DEVICE_LEVEL;
    o->synchronize_irql = std::max(irql, DEVICE_LEVEL);
    return o;
}
NTSTATUS NTAPI IoConnectInterrupt(InterruptObject **out, KSERVICE_ROUTINE *routine, void *context, uint64_t *lock,
                                  ULONG vector, KIRQL irql, KIRQL synchronize, int mode, BOOLEAN share,
                                  KAFFINITY affinity, BOOLEAN) {
    require_irql(PASSIVE_LEVEL, "IoConnectInterrupt");
    *out = nullptr;
    if (g_device == nullptr || vector != LINE_VECTOR || irql != DEVICE_LEVEL || mode != 0 || !share || affinity == 0) {
        if (g_verifier)
            note(
                "IoConnectInterrupt(vector %u, IRQL %u, mode %d, share %u): the line has vector %u, IRQL %u, is "
                "level-sensitive (0) and shared",
                vector, irql, mode, share, LINE_VECTOR, DEVICE_LEVEL);
        return STATUS_INVALID_PARAMETER;
    }
    InterruptObject *o = new_interrupt(context, lock, synchronize);
    if (o == nullptr) return STATUS_INSUFFICIENT_RESOURCES;
    o->line_routine = routine;
    g_device->use_line();
    connect_interrupt(o, false);
    *out = o;
    return STATUS_SUCCESS;
}
void NTAPI IoDisconnectInterrupt(InterruptObject *o) {
    require_irql(PASSIVE_LEVEL, "IoDisconnectInterrupt");
    disconnect_interrupt(o);
    pool_free(o, INTERRUPT_TAG, true);
    if (connected_interrupts() == 0) g_device->stop_interrupts();
}

struct MessageTable {  // allocation behind IO_INTERRUPT_MESSAGE_INFO
    std::vector<InterruptObject *> objects;
};
std::map<void *, MessageTable> g_message_tables;

NTSTATUS connect_messages(IO_CONNECT_INTERRUPT_PARAMETERS *p) {
    auto &m = p->MessageBased;
    unsigned count = g_message_interrupts ? g_device->vectors() : 0;
    if (count == 0) {  // the caller's fall-back on the line
        if (m.FallBackServiceRoutine == nullptr) return STATUS_NOT_FOUND;
        InterruptObject *o = new_interrupt(m.ServiceContext, m.SpinLock, m.SynchronizeIrql);
        if (o == nullptr) return STATUS_INSUFFICIENT_RESOURCES;
        o->line_routine = m.FallBackServiceRoutine;
        g_device->use_line();
        connect_interrupt(o, false);
        *m.ConnectionContext.InterruptObject = o;
        p->Version = 2;
        return STATUS_SUCCESS;
    }
    uint64_t bytes = sizeof(IO_INTERRUPT_MESSAGE_INFO) + count * sizeof(IO_INTERRUPT_MESSAGE_INFO_ENTRY);
    auto *info = static_cast<IO_INTERRUPT_MESSAGE_INFO *>(pool_allocate(bytes, INTERRUPT_TAG, false));
    if (info == nullptr) return STATUS_INSUFFICIENT_RESOURCES;
    memset(static_cast<void *>(info), 0, bytes);
    info->UnifiedIrql = DEVICE_LEVEL;
    info->MessageCount = count;
    MessageTable table;
    for (unsigned i = 0; i < count; i++) {
        InterruptObject *o = new_interrupt(m.ServiceContext, m.SpinLock, m.SynchronizeIrql);
        if (o == nullptr) host_bug("no kernel memory for an interrupt object");
        o->message_routine = m.MessageServiceRoutine;
        o->message = i;
        info->MessageInfo[i].InterruptObject = o;
        info->MessageInfo[i].Vector = LINE_VECTOR + 1 + i;
        info->MessageInfo[i].MessageData = i;
        info->MessageInfo[i].Irql = DEVICE_LEVEL;
        info->MessageInfo[i].Mode = 1;
        info->MessageInfo[i].TargetProcessorSet = 1;
        connect_interrupt(o, true);
        table.objects.push_back(o);
    }
    g_message_tables[info] = std::move(table);
    g_device->use_messages(count);
    *m.ConnectionContext.InterruptMessageTable = info;
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI IoConnectInterruptEx(IO_CONNECT_INTERRUPT_PARAMETERS *p) {
    require_irql(PASSIVE_LEVEL, "IoConnectInterruptEx");
    if (g_device == nullptr) return STATUS_NOT_FOUND;
    switch (p->Version) {
        case 1: {  // fully specified
            auto &f = p->FullySpecified;
            if (f.Vector > LINE_VECTOR) {  // one message, by its translated vector
                InterruptObject *o = new_interrupt(f.ServiceContext, f.SpinLock, f.SynchronizeIrql);
                if (o == nullptr) return STATUS_INSUFFICIENT_RESOURCES;
                o->line_routine = f.ServiceRoutine;
                o->message = f.Vector - LINE_VECTOR - 1;
                if (!connect_interrupt(o, true)) return STATUS_INVALID_PARAMETER;
                g_device->use_messages(g_device->vectors());
                *f.InterruptObject = o;
                return STATUS_SUCCESS;
            }
            return IoConnectInterrupt(reinterpret_cast<InterruptObject **>(f.InterruptObject), f.ServiceRoutine,
                                      f.ServiceContext, f.SpinLock, f.Vector, f.Irql, f.SynchronizeIrql,
                                      static_cast<int>(f.InterruptMode), f.ShareVector, f.ProcessorEnableMask,
                                      f.FloatingSave);
        }
        case 2: {
            auto &l = p->LineBased;
            return IoConnectInterrupt(reinterpret_cast<InterruptObject **>(l.InterruptObject), l.ServiceRoutine,
                                      l.ServiceContext, l.SpinLock, LINE_VECTOR, DEVICE_LEVEL, l.SynchronizeIrql, 0, 1,
                                      1, 0);
        }
        case 3: return connect_messages(p);
        default: return STATUS_NOT_SUPPORTED;
    }
}
struct DisconnectParameters {
    ULONG version;
    void *context;
};
void NTAPI IoDisconnectInterruptEx(DisconnectParameters *p) {
    require_irql(PASSIVE_LEVEL, "IoDisconnectInterruptEx");
    auto it = g_message_tables.find(p->context);
    if (it == g_message_tables.end()) {
        IoDisconnectInterrupt(static_cast<InterruptObject *>(p->context));
        return;
    }
    g_device->stop_interrupts();
    for (InterruptObject *o : it->second.objects) {
        disconnect_interrupt(o);
        pool_free(o, INTERRUPT_TAG, true);
    }
    pool_free(p->context, INTERRUPT_TAG, true);
    g_message_tables.erase(it);
}

// ---- DMA adapter
struct Adapter {
    DMA_ADAPTER head;
    std::atomic<int> buffers;
};
constexpr uint32_t DMA_TAG = 0x41616d44;
void NTAPI dma_put(Adapter *a) {
    if (a->buffers != 0)
        bugcheck(0xe6, "DRIVER_VERIFIER_DMA_VIOLATION", "PutDmaAdapter with %d common buffers left", a->buffers.load());
    pool_free(a, DMA_TAG, true);
}
uint64_t NTAPI dma_allocate(Adapter *a, ULONG length, int64_t *logical, BOOLEAN) {
    uint64_t at = allocate_common_buffer(length);
    if (at == 0) return 0;
    *logical = static_cast<int64_t>(*memory().pfn_of(at) << 12);
    a->buffers++;
    return at;
}
void NTAPI dma_free(Adapter *a, ULONG, int64_t, uint64_t at, BOOLEAN) {
    if (!free_common_buffer(at))
        bugcheck(0xe6, "DRIVER_VERIFIER_DMA_VIOLATION", "FreeCommonBuffer: 0x%llx is none", (unsigned long long)at);
    a->buffers--;
}
ULONG NTAPI dma_alignment(Adapter *) {
    return 1;
}
void NTAPI dma_missing(Adapter *) {
    bugcheck(0xe6, "DRIVER_VERIFIER_DMA_VIOLATION",
             "a DMA operation that nthost does not offer (only common buffers are)");
}
DMA_ADAPTER *NTAPI IoGetDmaAdapter(DEVICE_OBJECT *, void *, ULONG *registers) {
    require_irql(PASSIVE_LEVEL, "IoGetDmaAdapter");
    static PVOID operations[16];
    if (operations[1] == nullptr) {
        for (auto &o : operations) o = const_cast<void *>(find_import("hal.dll", "nthost.dma_missing"));
        operations[0] = reinterpret_cast<void *>(uint64_t{sizeof operations});
        operations[1] = const_cast<void *>(find_import("hal.dll", "nthost.dma_put"));
        operations[2] = const_cast<void *>(find_import("hal.dll", "nthost.dma_allocate"));
        operations[3] = const_cast<void *>(find_import("hal.dll", "nthost.dma_free"));
        operations[9] = const_cast<void *>(find_import("hal.dll", "nthost.dma_alignment"));
    }
    void *p = pool_allocate(sizeof(Adapter), DMA_TAG, true);
    if (p == nullptr) return nullptr;
    auto *a = new (p) Adapter{{1, sizeof(DMA_ADAPTER), operations}, {0}};
    if (registers != nullptr) *registers = 65536;
    return &a->head;
}

// ---- power
NTSTATUS NTAPI PoCallDriver(DEVICE_OBJECT *d, IRP *irp) {
    return call_driver(d, irp);
}
void NTAPI PoStartNextPowerIrp(IRP *) {}
int NTAPI PoSetPowerState(DEVICE_OBJECT *, int, int state) {
    return state;
}
NTSTATUS NTAPI PoRequestPowerIrp(DEVICE_OBJECT *, UCHAR, int, void *, void *, IRP **) {
    return STATUS_NOT_SUPPORTED;
}

// ---- driver level
NTSTATUS NTAPI IoAllocateDriverObjectExtension(DRIVER_OBJECT *, void *, ULONG size, void **out) {
    *out = pool_allocate(size, 0x65764944, false);
    return *out != nullptr ? STATUS_SUCCESS : STATUS_INSUFFICIENT_RESOURCES;
}
NTSTATUS NTAPI IoWMIRegistrationControl(DEVICE_OBJECT *, ULONG) {
    return STATUS_SUCCESS;
}
void NTAPI IoWriteErrorLogEntry(void *p) {
    pool_free(p, 0x4c6f4945, true);
}
void *NTAPI IoAllocateErrorLogEntry(void *, UCHAR size) {
    return pool_allocate(size, 0x4c6f4945, false);
}
NTSTATUS NTAPI IoRegisterShutdownNotification(DEVICE_OBJECT *) {
    return STATUS_SUCCESS;
}
void NTAPI IoUnregisterShutdownNotification(DEVICE_OBJECT *) {}

// Names that NT 5.2 lacks are hidden when the machine is to look like it.
const void *NTAPI MmGetSystemRoutineAddress(UNICODE_STRING *name) {
    std::string n = narrow(name->Buffer, name->Length / 2);
    static constexpr const char *newer[] = {"IoConnectInterruptEx", "IoDisconnectInterruptEx",
                                            "KeQueryActiveProcessorCount", "PsSetCreateProcessNotifyRoutineEx"};
    if (!g_message_interrupts)
        for (const char *x : newer)
            if (n == x) return nullptr;
    const void *p = find_import("ntoskrnl.exe", n);
    return p != nullptr ? p : find_import("hal.dll", n);
}

const Import imports[] = {
    FN(IoCreateDevice),
    FN(IoDeleteDevice),
    FN(IoAttachDeviceToDeviceStack),
    FN(IoDetachDevice),
    FN(IoGetAttachedDeviceReference),
    FN(IoGetAttachedDevice),
    FN(IoGetDeviceObjectPointer),
    FN(IofCallDriver),
    FN_AS("IoCallDriver", IofCallDriver),
    FN(IofCompleteRequest),
    FN_AS("IoCompleteRequest", IofCompleteRequest),
    FN(IoAllocateIrp),
    FN(IoFreeIrp),
    FN(IoInitializeIrp),
    FN(IoReuseIrp),
    FN_AS("IoSizeOfIrp", IoSizeOfIrp_),
    FN(IoBuildDeviceIoControlRequest),
    FN(IoBuildSynchronousFsdRequest),
    FN(IoCancelIrp),
    FN(IoAcquireCancelSpinLock),
    FN(IoReleaseCancelSpinLock),
    FN(IoGetRequestorProcess),
    FN(IoGetRequestorProcessId),
    FN(IoSetCompletionRoutineEx),
    FN(IoCsqInitialize),
    FN(IoCsqInitializeEx),
    FN(IoCsqInsertIrp),
    FN(IoCsqInsertIrpEx),
    FN(IoCsqRemoveNextIrp),
    FN(IoCsqRemoveIrp),
    FN(IoCreateSymbolicLink),
    FN_AS("IoCreateUnprotectedSymbolicLink", IoCreateSymbolicLink),
    FN(IoDeleteSymbolicLink),
    FN(IoRegisterDeviceInterface),
    FN(IoSetDeviceInterfaceState),
    FN(IoGetDeviceProperty),
    FN(IoInvalidateDeviceRelations),
    FN(IoInvalidateDeviceState),
    FN(IoConnectInterrupt),
    FN(IoDisconnectInterrupt),
    FN(IoConnectInterruptEx),
    FN(IoDisconnectInterruptEx),
    FN(IoGetDmaAdapter),
    FN(PoCallDriver),
    FN(PoStartNextPowerIrp),
    FN(PoSetPowerState),
    FN(PoRequestPowerIrp),
    FN(IoAllocateDriverObjectExtension),
    FN(IoWMIRegistrationControl),
    FN(IoWriteErrorLogEntry),
    FN(IoAllocateErrorLogEntry),
    FN(IoRegisterShutdownNotification),
    FN(IoUnregisterShutdownNotification),
    FN(MmGetSystemRoutineAddress),
};
const Import hal_imports[] = {
    FN_AS("nthost.dma_missing", dma_missing),     FN_AS("nthost.dma_put", dma_put),
    FN_AS("nthost.dma_allocate", dma_allocate),   FN_AS("nthost.dma_free", dma_free),
    FN_AS("nthost.dma_alignment", dma_alignment),
};
const ImportTable registered("ntoskrnl.exe", imports);
const ImportTable registered_hal("hal.dll", hal_imports);

}  // namespace

}  // namespace nth
