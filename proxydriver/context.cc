// SPDX-License-Identifier: GPL-2.0-or-later
//
// context.cc: IRP_MJ_CREATE, CLEANUP and CLOSE, and the end of a context in all its ways.
#include "context.h"

namespace sanproxy {

namespace {

NTSTATUS finish(PIRP irp, NTSTATUS status) {
    irp->IoStatus.Status = status;
    irp->IoStatus.Information = 0;
    IoCompleteRequest(irp, IO_NO_INCREMENT);
    return status;
}

Context *context_of(PIRP irp) {
    return static_cast<Context *>(IoGetCurrentIrpStackLocation(irp)->FileObject->FsContext);
}

// Takes one object of that kind out of the context, or nullptr.
Object *withdraw_one(Context &context, Kind kind) {
    Object *found = nullptr;
    {
        SpinGuard guard(context.device->lock);
        for (LIST_ENTRY *e = context.objects.Flink; e != &context.objects && !found; e = e->Flink) {
            auto *object = CONTAINING_RECORD(e, Object, context_link);
            if (object->kind == kind) found = object;
        }
    }
    return found && object_withdraw(context, found) ? found : nullptr;
}

} // namespace

NTSTATUS dispatch_create(PDEVICE_OBJECT fdo, PIRP irp) {
    Device &dev = device_of(fdo);
    if (!dev.started) return finish(irp, STATUS_DEVICE_NOT_READY);
    if (dev.removed) return finish(irp, STATUS_NO_SUCH_DEVICE);
    auto *context = pool_new<Context>();
    if (!context) return finish(irp, STATUS_INSUFFICIENT_RESOURCES);
    context->device = &dev;
    context->process = PsGetCurrentProcess();
    context->process_id = PsGetCurrentProcessId();
    ObReferenceObject(context->process);
    KeInitializeEvent(&context->teardown_done, NotificationEvent, FALSE);
    InitializeListHead(&context->objects);
    InitializeListHead(&context->ready);
    InterlockedIncrement(&dev.open_handles);
    {
        SpinGuard guard(dev.lock);
        InsertTailList(&dev.contexts, &context->link);
    }
    IoGetCurrentIrpStackLocation(irp)->FileObject->FsContext = context;
    return finish(irp, STATUS_SUCCESS);
}

void context_teardown(Context &context) {
    if (InterlockedExchange(&context.torn_down, 1) != 0) {
        KeWaitForSingleObject(&context.teardown_done, Executive, KernelMode, FALSE, nullptr);
        return;
    }
    context.users.close();
    cancel_wait(context);

    KAPC_STATE apc;
    const bool attach = PsGetCurrentProcess() != context.process;
    if (attach) KeStackAttachProcess(reinterpret_cast<PKPROCESS>(context.process), &apc);
    // Connections first, so that the peers learn of it at once; then memory; queues last.
    constexpr Kind order[] = {Kind::listener, Kind::qp, Kind::region, Kind::cq};
    for (Kind kind : order)
        while (Object *object = withdraw_one(context, kind)) {
            object_close(object);
            object_release(object);
        }
    context_unmap(context);
    if (attach) KeUnstackDetachProcess(&apc);
    KeSetEvent(&context.teardown_done, IO_NO_INCREMENT, FALSE);
}

void context_release(Context *context) {
    if (InterlockedDecrement(&context->references) != 0) return;
    InterlockedDecrement(&context->device->open_handles);
    ObDereferenceObject(context->process);
    pool_delete(context);
}

NTSTATUS dispatch_cleanup(PDEVICE_OBJECT, PIRP irp) {
    if (Context *context = context_of(irp)) context_teardown(*context);
    return finish(irp, STATUS_SUCCESS);
}

NTSTATUS dispatch_close(PDEVICE_OBJECT fdo, PIRP irp) {
    Device &dev = device_of(fdo);
    if (Context *context = context_of(irp)) {
        {
            SpinGuard guard(dev.lock);
            RemoveEntryList(&context->link);
        }
        context_release(context);
    }
    return finish(irp, STATUS_SUCCESS);
}

void context_unmap(Context &context) {
    MutexGuard guard(context.mutex);
    if (!context.opened) return;
    context.opened = false;
    if (context.doorbell_va) MmUnmapLockedPages(context.doorbell_va, context.doorbell_mdl);
    context.doorbell_va = nullptr;
    if (context.doorbell_mdl) IoFreeMdl(context.doorbell_mdl);
    context.doorbell_mdl = nullptr;
    Device &dev = *context.device;
    if (context.pd) {
        Command command(SNIC_CMD_DESTROY_PD);
        command.body<snic_cmd_pd>().pd = context.pd;
        hardware_release(dev, command);
    }
    if (context.doorbell_page) {
        Command command(SNIC_CMD_DETACH_DOORBELL);
        command.body<snic_cmd_handle>().handle = context.doorbell_page;
        hardware_release(dev, command);
    }
}

} // namespace sanproxy
