// SPDX-License-Identifier: GPL-2.0-or-later
//
// pnp.cc: the life of the device object: add, start, stop, removal, power.
#include "context.h"

namespace sanproxy {

namespace {

const GUID interface_guid = SANPROXY_INTERFACE_GUID;
volatile LONG next_instance = 0;

// SANPROXY_DEVICE_NAME with a prefix, and a number for all but the first NIC.
struct Name {
    wchar_t text[48];
    UNICODE_STRING string;
    Name(const wchar_t *prefix, uint32_t instance) {
        wchar_t *out = text;
        for (const wchar_t *p = prefix; *p; ++p) *out++ = *p;
        for (const char *p = SANPROXY_DEVICE_NAME; *p; ++p) *out++ = *p;
        if (instance >= 10) *out++ = L'0' + instance / 10 % 10;
        if (instance >= 1) *out++ = L'0' + instance % 10;
        *out = 0;
        RtlInitUnicodeString(&string, reinterpret_cast<PCWSTR>(text));
    }
};

NTSTATUS NTAPI signal_event(PDEVICE_OBJECT, PIRP, PVOID event) {
    KeSetEvent(static_cast<PKEVENT>(event), IO_NO_INCREMENT, FALSE);
    return STATUS_MORE_PROCESSING_REQUIRED;
}

// Sends the request down and waits for it to come back; the caller completes it.
NTSTATUS forward_and_wait(Device &dev, PIRP irp) {
    KEVENT event;
    KeInitializeEvent(&event, NotificationEvent, FALSE);
    IoCopyCurrentIrpStackLocationToNext(irp);
    IoSetCompletionRoutine(irp, signal_event, &event, TRUE, TRUE, TRUE);
    NTSTATUS status = IoCallDriver(dev.lower, irp);
    if (status == STATUS_PENDING) {
        KeWaitForSingleObject(&event, Executive, KernelMode, FALSE, nullptr);
        status = irp->IoStatus.Status;
    }
    return status;
}

NTSTATUS forward(Device &dev, PIRP irp) {
    IoSkipCurrentIrpStackLocation(irp);
    return IoCallDriver(dev.lower, irp);
}

NTSTATUS complete(PIRP irp, NTSTATUS status) {
    irp->IoStatus.Status = status;
    IoCompleteRequest(irp, IO_NO_INCREMENT);
    return status;
}

void stop(Device &dev, bool present) {
    if (dev.interface_enabled) IoSetDeviceInterfaceState(&dev.interface_name, FALSE);
    dev.interface_enabled = false;
    if (InterlockedExchange(&dev.started, 0) == 0) return;
    limbo_stop(dev);
    hardware_stop(dev, present);
    interrupt_disconnect(dev);
    dev.eqn = 0;
    dev.eq_ring.free();
    dev.eq_record.free();
    dev.admin.free();
    hardware_unmap(dev);
}

NTSTATUS start(Device &dev, PIO_STACK_LOCATION stack) {
    PCM_RESOURCE_LIST translated = stack->Parameters.StartDevice.AllocatedResourcesTranslated;
    NTSTATUS status = hardware_map(dev, translated);
    if (!NT_SUCCESS(status)) return status;
    status = interrupt_connect(dev, translated);
    if (!NT_SUCCESS(status)) {
        hardware_unmap(dev);
        return status;
    }
    InterlockedExchange(&dev.started, 1);
    status = hardware_start(dev);
    if (NT_SUCCESS(status)) status = limbo_start(dev);
    if (!NT_SUCCESS(status)) {
        stop(dev, true);
        return status;
    }
    if (dev.interface_name.Buffer && NT_SUCCESS(IoSetDeviceInterfaceState(&dev.interface_name, TRUE)))
        dev.interface_enabled = true;
    return STATUS_SUCCESS;
}

void remove(Device &dev) {
    stop(dev, true);
    if (dev.symbolic_link) {
        Name link(L"\\DosDevices\\", dev.instance);
        IoDeleteSymbolicLink(&link.string);
    }
    if (dev.interface_name.Buffer) RtlFreeUnicodeString(&dev.interface_name);
    dev.table.free();
}

} // namespace

NTSTATUS add_device(PDRIVER_OBJECT driver, PDEVICE_OBJECT pdo) {
    const uint32_t instance = static_cast<uint32_t>(InterlockedIncrement(&next_instance)) - 1;
    Name name(L"\\Device\\", instance), link(L"\\DosDevices\\", instance);
    PDEVICE_OBJECT fdo;
    NTSTATUS status = IoCreateDevice(driver, sizeof(Device), &name.string, FILE_DEVICE_NETWORK,
                                     FILE_DEVICE_SECURE_OPEN, FALSE, &fdo);
    if (!NT_SUCCESS(status)) return status;
    memset(fdo->DeviceExtension, 0, sizeof(Device));
    Device &dev = *new (fdo->DeviceExtension) Device;
    dev.fdo = fdo;
    dev.pdo = pdo;
    dev.instance = instance;
    InitializeListHead(&dev.contexts);
    dev.lower = IoAttachDeviceToDeviceStack(fdo, pdo);
    if (!dev.lower) {
        IoDeleteDevice(fdo);
        return STATUS_NO_SUCH_DEVICE;
    }
    status = IoCreateSymbolicLink(&link.string, &name.string);
    if (!NT_SUCCESS(status)) {
        IoDetachDevice(dev.lower);
        IoDeleteDevice(fdo);
        return status;
    }
    dev.symbolic_link = true;
    if (!NT_SUCCESS(IoRegisterDeviceInterface(pdo, &interface_guid, nullptr, &dev.interface_name)))
        dev.interface_name = {}; // the symbolic link is enough
    fdo->Flags |= DO_DIRECT_IO | (dev.lower->Flags & DO_POWER_PAGABLE);
    fdo->Flags &= ~DO_DEVICE_INITIALIZING;
    return STATUS_SUCCESS;
}

NTSTATUS dispatch_pnp(PDEVICE_OBJECT fdo, PIRP irp) {
    Device &dev = device_of(fdo);
    PIO_STACK_LOCATION stack = IoGetCurrentIrpStackLocation(irp);
    switch (stack->MinorFunction) {
    case IRP_MN_START_DEVICE: {
        NTSTATUS status = forward_and_wait(dev, irp);
        if (NT_SUCCESS(status)) status = start(dev, stack);
        return complete(irp, status);
    }
    case IRP_MN_QUERY_STOP_DEVICE:
    case IRP_MN_QUERY_REMOVE_DEVICE:
        if (dev.open_handles) return complete(irp, STATUS_DEVICE_BUSY);
        irp->IoStatus.Status = STATUS_SUCCESS;
        return forward(dev, irp);
    case IRP_MN_STOP_DEVICE:
        stop(dev, true);
        irp->IoStatus.Status = STATUS_SUCCESS;
        return forward(dev, irp);
    case IRP_MN_CANCEL_STOP_DEVICE:
    case IRP_MN_CANCEL_REMOVE_DEVICE:
        irp->IoStatus.Status = STATUS_SUCCESS;
        return forward(dev, irp);
    case IRP_MN_SURPRISE_REMOVAL:
        // Handles stay open; what they still do fails, and their memory is released when they close.
        dev.removed = true;
        hardware_give_up(dev);
        irp->IoStatus.Status = STATUS_SUCCESS;
        return forward(dev, irp);
    case IRP_MN_REMOVE_DEVICE: {
        remove(dev);
        irp->IoStatus.Status = STATUS_SUCCESS;
        PDEVICE_OBJECT lower = dev.lower;
        IoSkipCurrentIrpStackLocation(irp);
        const NTSTATUS status = IoCallDriver(lower, irp);
        IoDetachDevice(lower);
        IoDeleteDevice(fdo);
        return status;
    }
    default:
        return forward(dev, irp);
    }
}

NTSTATUS dispatch_power(PDEVICE_OBJECT fdo, PIRP irp) {
    PoStartNextPowerIrp(irp);
    IoSkipCurrentIrpStackLocation(irp);
    return PoCallDriver(device_of(fdo).lower, irp);
}

} // namespace sanproxy
