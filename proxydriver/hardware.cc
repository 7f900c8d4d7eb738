// SPDX-License-Identifier: GPL-2.0-or-later
//
// hardware.cc: from the resources that PnP assigned to a NIC that takes commands and delivers events, and back.
#include "context.h"

namespace sanproxy {

namespace {

constexpr unsigned max_wait_ms = 2000;
constexpr unsigned release_attempts = 5;
constexpr uint32_t default_timeout_ms = 10000, least_timeout_ms = 100, most_timeout_ms = 60000;
constexpr uint32_t page_count(size_t bytes) { return static_cast<uint32_t>(page_round_up(bytes) / page_size); }

void pause(unsigned ms) {
    LARGE_INTEGER interval;
    interval.QuadPart = -10000LL * ms;
    KeDelayExecutionThread(KernelMode, FALSE, &interval);
}

// Waits until the masked status has the value. False: it did not within two seconds.
bool await_status(Device &dev, uint32_t mask, uint32_t value) {
    for (unsigned ms = 0; ms < max_wait_ms; ++ms) {
        if ((dev.read32(SNIC_REG_STATUS) & mask) == value) return true;
        pause(1);
    }
    return false;
}

// A function that has been pulled reads as ones, and uses no memory, either.
bool gone(Device &dev) { return dev.read32(SNIC_REG_STATUS) == ~0u; }

bool reset(Device &dev) {
    dev.write32(SNIC_REG_CTRL, SNIC_CTRL_RESET);
    return gone(dev) || await_status(dev, SNIC_STATUS_RESETTING | SNIC_STATUS_READY, 0) || gone(dev);
}

// CommandTimeout in the driver's key of the device: milliseconds that a command may take.
uint32_t command_timeout(Device &dev) {
    HANDLE key;
    if (!NT_SUCCESS(IoOpenDeviceRegistryKey(dev.pdo, PLUGPLAY_REGKEY_DRIVER, KEY_READ, &key))) return default_timeout_ms;
    UNICODE_STRING name;
    RtlInitUnicodeString(&name, reinterpret_cast<PCWSTR>(L"CommandTimeout"));
    union {
        KEY_VALUE_PARTIAL_INFORMATION information;
        uint8_t bytes[sizeof(KEY_VALUE_PARTIAL_INFORMATION) + sizeof(uint32_t)];
    } value;
    ULONG size;
    uint32_t ms = default_timeout_ms;
    if (NT_SUCCESS(ZwQueryValueKey(key, &name, KeyValuePartialInformation, &value, sizeof value, &size)) &&
        value.information.Type == REG_DWORD && value.information.DataLength == sizeof ms)
        memcpy(&ms, value.information.Data, sizeof ms);
    ZwClose(key);
    if (ms >= least_timeout_ms && ms <= most_timeout_ms) return ms;
    DbgPrint("sanproxy: CommandTimeout %u is not from %u to %u (ms); %u is used\n", ms, least_timeout_ms, most_timeout_ms,
             default_timeout_ms);
    return default_timeout_ms;
}

void give_up(void *dev) { hardware_give_up(*static_cast<Device *>(dev)); }

NTSTATUS enable(Device &dev) {
    dev.given_up = false;
    dev.admin.start(reinterpret_cast<volatile uint32_t *>(dev.registers + SNIC_REG_AQ_DOORBELL), command_timeout(dev), give_up,
                    &dev);
    dev.write32(SNIC_REG_AQ_SIZE, AdminQueue::entries);
    dev.write64(SNIC_REG_AQ_BASE, dev.admin.command_bus());
    dev.write64(SNIC_REG_ACQ_BASE, dev.admin.completion_bus());
    dev.write32(SNIC_REG_IRQ_MASK, dev.line ? ~0u : 0u);
    dev.write32(SNIC_REG_CTRL, SNIC_CTRL_ENABLE);
    if (await_status(dev, SNIC_STATUS_READY, SNIC_STATUS_READY)) return STATUS_SUCCESS;
    DbgPrint("sanproxy: the NIC does not start: status %x, error %u\n", dev.read32(SNIC_REG_STATUS),
             dev.read32(SNIC_REG_ERROR));
    return STATUS_IO_DEVICE_ERROR;
}

NTSTATUS query(Device &dev) {
    DmaBuffer out;
    if (!out.alloc(sizeof(snic_device_info))) return STATUS_INSUFFICIENT_RESOURCES;
    Command command(SNIC_CMD_QUERY_DEVICE);
    command.body<snic_cmd_query_device>().out = out.bus();
    if (dev.admin.execute(command) != SNIC_OK) return STATUS_IO_DEVICE_ERROR;
    dev.info = *out.as<snic_device_info>();
    return STATUS_SUCCESS;
}

NTSTATUS create_event_queue(Device &dev) {
    if (!dev.eq_ring.alloc(Device::eq_entries * sizeof(snic_eqe)) || !dev.eq_record.alloc(sizeof(snic_eq_record)))
        return STATUS_INSUFFICIENT_RESOURCES;
    dev.eq_ci = 0;
    Command command(SNIC_CMD_CREATE_EQ);
    auto &body = command.body<snic_cmd_create_eq>();
    body.entries = Device::eq_entries;
    body.vector = dev.vectors > 1 ? SNIC_VECTOR_ADMIN + 1 : SNIC_VECTOR_ADMIN;
    static_assert(page_count(Device::eq_entries * sizeof(snic_eqe)) <= SNIC_PAGE_LIST_ENTRIES);
    body.pages.root = dev.eq_ring.bus();
    body.pages.page_shift = SNIC_PAGE_SHIFT;
    body.record = dev.eq_record.bus();
    if (dev.admin.execute(command) != SNIC_OK) return STATUS_IO_DEVICE_ERROR;
    dev.eqn = static_cast<uint32_t>(command.cpl.result[0]);
    return STATUS_SUCCESS;
}

} // namespace

NTSTATUS hardware_map(Device &dev, PCM_RESOURCE_LIST translated) {
    if (!translated || translated->Count == 0) return STATUS_DEVICE_CONFIGURATION_ERROR;
    const CM_PARTIAL_RESOURCE_LIST &list = translated->List[0].PartialResourceList;
    unsigned bar = 0;
    for (ULONG i = 0; i < list.Count; ++i) {
        const CM_PARTIAL_RESOURCE_DESCRIPTOR &d = list.PartialDescriptors[i];
        if (d.Type != CmResourceTypeMemory) continue;
        // BARs come in their order: registers, doorbell pages, MSI-X (the system's business).
        if (bar == 0 && d.u.Memory.Length >= SNIC_REGISTER_BAR_SIZE) {
            dev.registers = static_cast<volatile uint8_t *>(
                MmMapIoSpace(d.u.Memory.Start, SNIC_REGISTER_BAR_SIZE, MmNonCached));
        } else if (bar == 1) {
            dev.doorbell_bytes = d.u.Memory.Length;
            dev.doorbells =
                static_cast<volatile uint8_t *>(MmMapIoSpace(d.u.Memory.Start, d.u.Memory.Length, MmNonCached));
        }
        ++bar;
    }
    if (!dev.registers || !dev.doorbells) {
        DbgPrint("sanproxy: registers or doorbell pages are missing from the NIC's resources\n");
        hardware_unmap(dev);
        return STATUS_DEVICE_CONFIGURATION_ERROR;
    }
    const uint32_t version = dev.read32(SNIC_REG_VERSION);
    if (version >> 16 != SNIC_VERSION_MAJOR) {
        DbgPrint("sanproxy: the NIC has version %u.%u, this driver knows %u.x\n", version >> 16, version & 0xffff,
                 SNIC_VERSION_MAJOR);
        hardware_unmap(dev);
        return STATUS_REVISION_MISMATCH;
    }
    return STATUS_SUCCESS;
}

void hardware_unmap(Device &dev) {
    if (dev.registers) MmUnmapIoSpace(const_cast<uint8_t *>(dev.registers), SNIC_REGISTER_BAR_SIZE);
    if (dev.doorbells) MmUnmapIoSpace(const_cast<uint8_t *>(dev.doorbells), dev.doorbell_bytes);
    dev.registers = dev.doorbells = nullptr;
}

// With the interrupt connected.
NTSTATUS hardware_start(Device &dev) {
    if (!reset(dev)) return STATUS_IO_DEVICE_ERROR;
    if (!dev.admin.alloc()) return STATUS_INSUFFICIENT_RESOURCES;
    NTSTATUS status = enable(dev);
    if (NT_SUCCESS(status)) status = query(dev);
    if (NT_SUCCESS(status)) status = create_event_queue(dev);
    return status;
}

// present: the NIC can still be talked to. Afterwards it uses no memory.
void hardware_stop(Device &dev, bool present) {
    dev.admin.fail();
    MutexGuard guard(dev.give_up_mutex);
    dev.given_up = true;
    if (present && dev.registers) {
        dev.write32(SNIC_REG_IRQ_MASK, 0);
        reset(dev);
    }
}

void hardware_give_up(Device &dev) {
    dev.admin.fail();
    {
        MutexGuard guard(dev.give_up_mutex); // the second one waits until the first has done it
        if (dev.given_up) return;
        dev.given_up = true;
        if (dev.registers && !reset(dev)) DbgPrint("sanproxy: the NIC does not even reset\n");
    }
    post_to_all(dev, SANPROXY_EVENT_FAILED);
}

void hardware_release(Device &dev, Command &command) {
    for (unsigned attempt = 0; attempt < release_attempts; ++attempt) {
        if (attempt) pause(1);
        const uint16_t status = dev.admin.execute(command);
        // HANDLE: it is gone already.
        if (status == SNIC_OK || status == SNIC_ERR_HANDLE || status == AdminQueue::no_answer) return;
    }
    DbgPrint("sanproxy: the NIC does not let go of something (command %u, status %u): it is reset\n", command.cmd.opcode,
             command.cpl.status);
    hardware_give_up(dev);
}

} // namespace sanproxy
