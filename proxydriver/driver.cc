// SPDX-License-Identifier: GPL-2.0-or-later
//
// driver.cc: DriverEntry, the dispatch table, and the notice of processes that end.
#include "context.h"

namespace sanproxy {

namespace {

PDRIVER_OBJECT driver_object;

// A process may end while somebody else holds a duplicate of its handle; its pages must not stay locked then. Called in
// the ending process.
VOID NTAPI on_process(HANDLE, HANDLE process_id, BOOLEAN create) {
    if (!create) process_ended(process_id);
}

NTSTATUS NTAPI dispatch_system_control(PDEVICE_OBJECT fdo, PIRP irp) {
    IoSkipCurrentIrpStackLocation(irp);
    return IoCallDriver(device_of(fdo).lower, irp);
}

VOID NTAPI unload(PDRIVER_OBJECT) { PsSetCreateProcessNotifyRoutine(on_process, TRUE); }

// The dispatch routines with the system's calling convention.
NTSTATUS NTAPI on_create(PDEVICE_OBJECT fdo, PIRP irp) { return dispatch_create(fdo, irp); }
NTSTATUS NTAPI on_cleanup(PDEVICE_OBJECT fdo, PIRP irp) { return dispatch_cleanup(fdo, irp); }
NTSTATUS NTAPI on_close(PDEVICE_OBJECT fdo, PIRP irp) { return dispatch_close(fdo, irp); }
NTSTATUS NTAPI on_control(PDEVICE_OBJECT fdo, PIRP irp) { return dispatch_control(fdo, irp); }
NTSTATUS NTAPI on_pnp(PDEVICE_OBJECT fdo, PIRP irp) { return dispatch_pnp(fdo, irp); }
NTSTATUS NTAPI on_power(PDEVICE_OBJECT fdo, PIRP irp) { return dispatch_power(fdo, irp); }
NTSTATUS NTAPI on_add_device(PDRIVER_OBJECT driver, PDEVICE_OBJECT pdo) { return add_device(driver, pdo); }

} // namespace

// Finds the contexts of the process one at a time: each leaves the search by being torn down.
void process_ended(HANDLE process_id) {
    for (PDEVICE_OBJECT fdo = driver_object->DeviceObject; fdo; fdo = fdo->NextDevice) {
        Device &dev = device_of(fdo);
        limbo_process_ended(dev, process_id);
        for (;;) {
            Context *found = nullptr;
            {
                SpinGuard guard(dev.lock);
                for (LIST_ENTRY *e = dev.contexts.Flink; e != &dev.contexts && !found; e = e->Flink) {
                    auto *context = CONTAINING_RECORD(e, Context, link);
                    if (context->process_id != process_id || context->torn_down) continue;
                    found = context;
                    InterlockedIncrement(&found->references);
                }
            }
            if (!found) break;
            context_teardown(*found);
            context_release(found);
        }
    }
}

} // namespace sanproxy

extern "C" NTSTATUS NTAPI DriverEntry(PDRIVER_OBJECT driver, PUNICODE_STRING) {
    using namespace sanproxy;
    driver_object = driver;
    driver->MajorFunction[IRP_MJ_CREATE] = on_create;
    driver->MajorFunction[IRP_MJ_CLEANUP] = on_cleanup;
    driver->MajorFunction[IRP_MJ_CLOSE] = on_close;
    driver->MajorFunction[IRP_MJ_DEVICE_CONTROL] = on_control;
    driver->MajorFunction[IRP_MJ_PNP] = on_pnp;
    driver->MajorFunction[IRP_MJ_POWER] = on_power;
    driver->MajorFunction[IRP_MJ_SYSTEM_CONTROL] = dispatch_system_control;
    driver->DriverExtension->AddDevice = on_add_device;
    driver->DriverUnload = unload;
    return PsSetCreateProcessNotifyRoutine(on_process, FALSE);
}
