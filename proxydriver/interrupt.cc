// SPDX-License-Identifier: GPL-2.0-or-later
//
// interrupt.cc: message-signalled interrupts where the system has IoConnectInterruptEx and gave us messages, the shared,
// level-triggered line otherwise. Both only queue the DPC, which looks at completions and events alike.
#include "device.h"

namespace sanproxy {

namespace {

using ConnectEx = NTSTATUS(NTAPI *)(PIO_CONNECT_INTERRUPT_PARAMETERS);
using DisconnectEx = VOID(NTAPI *)(PIO_DISCONNECT_INTERRUPT_PARAMETERS);

BOOLEAN NTAPI on_line(PKINTERRUPT, PVOID context) {
    Device &dev = *static_cast<Device *>(context);
    const uint32_t cause = dev.read32(SNIC_REG_IRQ_CAUSE);
    if (cause == 0 || cause == ~0u) return FALSE; // somebody else's, or the NIC has been pulled
    dev.write32(SNIC_REG_IRQ_CAUSE, cause);       // lowers the line
    KeInsertQueueDpc(&dev.dpc, nullptr, nullptr);
    return TRUE;
}

BOOLEAN NTAPI on_message(PKINTERRUPT, PVOID context, ULONG) {
    KeInsertQueueDpc(&static_cast<Device *>(context)->dpc, nullptr, nullptr);
    return TRUE;
}

VOID NTAPI on_dpc(PKDPC, PVOID context, PVOID, PVOID) {
    Device &dev = *static_cast<Device *>(context);
    dev.admin.on_interrupt();
    if (dev.eqn) drain_events(dev);
}

NTSTATUS connect_messages(Device &dev) {
    auto connect = reinterpret_cast<ConnectEx>(system_routine(L"IoConnectInterruptEx"));
    if (!connect) return STATUS_NOT_SUPPORTED;
    IO_CONNECT_INTERRUPT_PARAMETERS p;
    memset(&p, 0, sizeof p);
    p.Version = CONNECT_MESSAGE_BASED;
    p.MessageBased.PhysicalDeviceObject = dev.pdo;
    p.MessageBased.ConnectionContext.InterruptMessageTable = &dev.messages;
    p.MessageBased.MessageServiceRoutine = on_message;
    p.MessageBased.ServiceContext = &dev;
    p.MessageBased.FallBackServiceRoutine = on_line;
    const NTSTATUS status = connect(&p);
    if (!NT_SUCCESS(status)) return status;
    if (p.Version != CONNECT_MESSAGE_BASED) { // it fell back: what it filled in is the interrupt object
        dev.line = reinterpret_cast<PKINTERRUPT>(dev.messages);
        dev.messages = nullptr;
        return STATUS_SUCCESS;
    }
    dev.vectors = dev.messages->MessageCount;
    return STATUS_SUCCESS;
}

} // namespace

NTSTATUS interrupt_connect(Device &dev, PCM_RESOURCE_LIST translated) {
    KeInitializeDpc(&dev.dpc, on_dpc, &dev);
    dev.vectors = 1;
    const CM_PARTIAL_RESOURCE_LIST &list = translated->List[0].PartialResourceList;
    for (ULONG i = 0; i < list.Count; ++i) {
        const CM_PARTIAL_RESOURCE_DESCRIPTOR &d = list.PartialDescriptors[i];
        if (d.Type != CmResourceTypeInterrupt) continue;
        if (d.Flags & CM_RESOURCE_INTERRUPT_MESSAGE) return connect_messages(dev);
        const KIRQL irql = static_cast<KIRQL>(d.u.Interrupt.Level);
        const bool latched = d.Flags & CM_RESOURCE_INTERRUPT_LATCHED;
        return IoConnectInterrupt(&dev.line, on_line, &dev, nullptr, d.u.Interrupt.Vector, irql, irql,
                                  latched ? Latched : LevelSensitive,
                                  d.ShareDisposition == CmResourceShareShared, d.u.Interrupt.Affinity, FALSE);
    }
    DbgPrint("sanproxy: the NIC was given no interrupt\n");
    return STATUS_DEVICE_CONFIGURATION_ERROR;
}

void interrupt_disconnect(Device &dev) {
    if (dev.line) {
        IoDisconnectInterrupt(dev.line);
    } else if (dev.messages) {
        auto disconnect = reinterpret_cast<DisconnectEx>(system_routine(L"IoDisconnectInterruptEx"));
        IO_DISCONNECT_INTERRUPT_PARAMETERS p;
        memset(&p, 0, sizeof p);
        p.Version = CONNECT_MESSAGE_BASED;
        p.ConnectionContext.InterruptMessageTable = dev.messages;
        if (disconnect) disconnect(&p);
    }
    dev.line = nullptr;
    dev.messages = nullptr;
    KeRemoveQueueDpc(&dev.dpc);
    KeFlushQueuedDpcs(); // one may be running on another processor
}

} // namespace sanproxy
