// SPDX-License-Identifier: GPL-2.0-or-later
//
// pnp.h: the plug-and-play manager and the bus driver below the driver under test: loads the driver, makes the PDO of
// the one PCI function, starts it with raw and translated resources, removes it and unloads the driver at the end.
#pragma once

#include <string>
#include <vector>

#include "nt_status.h"

namespace nth {

inline constexpr uint32_t LINE_VECTOR = 0xb0;  // translated vector of the interrupt line; messages follow

// Loads and starts; gives up with a message when it cannot be loaded or does not start. Missing imports end nthost.
void load_driver(const std::string &path);
// Removes the device and unloads the driver, then looks for what it left behind.
void unload_driver();
// The device is pulled out of its slot, then the driver told (surprise removal); it goes when the programs have ended.
void unplug_device();
bool driver_loaded();
extern bool g_list_devices;  // --devices: unload_driver lists the device objects first

// IoRegisterDeviceInterface and its kin.
nt::NTSTATUS register_interface(nt::DEVICE_OBJECT *pdo, const nt::GUID &guid, nt::UNICODE_STRING *name);
nt::NTSTATUS set_interface_state(const std::u16string &name, bool enable);
nt::NTSTATUS device_property(nt::DEVICE_OBJECT *pdo, int property, uint32_t size, void *out, uint32_t *needed);
// Symbolic names of enabled interfaces of that class (empty guid: all), for SetupDi-like look-ups and reports.
std::vector<std::u16string> enabled_interfaces(const nt::GUID &guid);

}  // namespace nth
