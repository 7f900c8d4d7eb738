// SPDX-License-Identifier: GPL-2.0-or-later
//
// registry.h: as much of a registry as a driver sees: keys are paths, values live in memory. Names compare without
// case.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base.h"

namespace nth {

// The device's hardware key and its driver key, as IoOpenDeviceRegistryKey opens them.
inline constexpr const char *DEVICE_KEY =
    "\\Registry\\Machine\\System\\CurrentControlSet\\Enum\\PCI\\Device\\0\\Device Parameters";
inline constexpr const char *DRIVER_KEY =
    "\\Registry\\Machine\\System\\CurrentControlSet\\Control\\Class\\Driver\\0000";

struct RegistryValue {
    uint32_t type;  // 1 string, 3 binary, 4 dword, 11 qword
    std::vector<uint8_t> data;
};

class Registry {
  public:
    bool has_key(const std::string &path);
    void create_key(const std::string &path);
    bool query(const std::string &path, const std::string &name, RegistryValue *out);
    void set(const std::string &path, const std::string &name, RegistryValue value);

  private:
    FutexLock lock_;
    std::map<std::string, std::map<std::string, RegistryValue>> keys_;
};

Registry &registry();

// "name=number" or "name=text" for the device's key (option --set). false: no '='.
bool set_device_parameter(const std::string &text);

}  // namespace nth
