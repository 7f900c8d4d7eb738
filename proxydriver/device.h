// SPDX-License-Identifier: GPL-2.0-or-later
//
// device.h: one NIC: its PnP state, registers, interrupt, admin queue, event queue and table of objects. It is the device
// extension of the FDO.
//
// Lock order: Object::mutex, then WriterSet::mutex, then AdminQueue's own or give_up_mutex, then Device::lock (a spin lock: table,
// events, pended waits).
#pragma once

#include "admin_queue.h"
#include "objects.h"

namespace sanproxy {

struct Limbo; // handover.cc

struct Device {
    PDEVICE_OBJECT fdo = nullptr, pdo = nullptr, lower = nullptr;
    uint32_t instance = 0;
    UNICODE_STRING interface_name = {};
    bool interface_enabled = false;
    bool symbolic_link = false;
    volatile LONG started = 0;
    volatile LONG open_handles = 0;
    LIST_ENTRY link; // in the driver's list of devices (driver.cc)

    // Resources.
    volatile uint8_t *registers = nullptr;
    volatile uint8_t *doorbells = nullptr;
    size_t doorbell_bytes = 0;
    snic_device_info info = {};

    // Interrupt (interrupt.cc): one of the two is set while connected.
    PKINTERRUPT line = nullptr;
    PIO_INTERRUPT_MESSAGE_INFO messages = nullptr;
    uint32_t vectors = 1; // that reach us
    KDPC dpc;

    AdminQueue admin;
    Mutex give_up_mutex;
    bool given_up = false; // under give_up_mutex
    bool removed = false;  // the function has been pulled: nobody opens it any more

    // Event queue (events.cc), read by the DPC only.
    static constexpr uint32_t eq_entries = 1024;
    DmaBuffer eq_ring, eq_record;
    uint32_t eqn = 0;
    uint32_t eq_ci = 0;

    SpinLock lock;
    ObjectTable table;   // under lock
    LIST_ENTRY contexts; // under lock: all open handles
    Limbo *limbo = nullptr; // while started

    uint32_t read32(uint32_t reg) const { return *reinterpret_cast<volatile uint32_t *>(registers + reg); }
    void write32(uint32_t reg, uint32_t value) { *reinterpret_cast<volatile uint32_t *>(registers + reg) = value; }
    void write64(uint32_t reg, uint64_t value) {
        write32(reg, static_cast<uint32_t>(value));
        write32(reg + 4, static_cast<uint32_t>(value >> 32));
    }
};

// pnp.cc
NTSTATUS add_device(PDRIVER_OBJECT driver, PDEVICE_OBJECT pdo);
NTSTATUS dispatch_pnp(PDEVICE_OBJECT fdo, PIRP irp);
NTSTATUS dispatch_power(PDEVICE_OBJECT fdo, PIRP irp);
// hardware.cc: from mapped registers to a NIC that takes commands and delivers events, and back.
NTSTATUS hardware_map(Device &dev, PCM_RESOURCE_LIST translated);
NTSTATUS hardware_start(Device &dev);
void hardware_stop(Device &dev, bool present);
void hardware_unmap(Device &dev);
// Resets a NIC that does not answer, or has been pulled, and tells all processes; it stays out of use until the next start.
// Returns when the NIC uses no memory any more, whoever has reset it.
void hardware_give_up(Device &dev);
// A command that takes something away from the NIC. When it returns the NIC has let go of it: one that refuses is asked again,
// and reset in the end.
void hardware_release(Device &dev, Command &command);
// handover.cc: what is on its way from one process to another.
NTSTATUS limbo_start(Device &dev);
void limbo_stop(Device &dev);
void limbo_process_ended(Device &dev, HANDLE process_id);
// interrupt.cc
NTSTATUS interrupt_connect(Device &dev, PCM_RESOURCE_LIST translated);
void interrupt_disconnect(Device &dev);
// events.cc
void drain_events(Device &dev);
void post_to_all(Device &dev, uint32_t events); // SANPROXY_EVENT_*, of the handle itself
// A reference to the object that `id` names, or nullptr. context: nullptr for any.
Object *object_lookup(Device &dev, Context *context, uint32_t id);
void object_release(Object *object); // object.cc frees it with the last reference

inline Device &device_of(PDEVICE_OBJECT fdo) { return *static_cast<Device *>(fdo->DeviceExtension); }

} // namespace sanproxy
