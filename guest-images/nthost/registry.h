// SPDX-License-Identifier: GPL-2.0-or-later
//
// registry.h: the machine's registry: keys are full paths ("\Registry\Machine\..."), values live in memory, in the order in which they
// were made. Names compare without case and keep the case in which they were first given. A key has all keys above it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base.h"

namespace nth {

// The device's hardware key and its driver key, as IoOpenDeviceRegistryKey opens them.
inline constexpr const char *DEVICE_KEY =
    "\\Registry\\Machine\\System\\CurrentControlSet\\Enum\\PCI\\Device\\0\\Device Parameters";
inline constexpr const char *DRIVER_KEY =
    "\\Registry\\Machine\\System\\CurrentControlSet\\Control\\Class\\Driver\\0000";
inline constexpr const char *MACHINE_KEY = "\\Registry\\Machine";

struct RegistryValue {
    uint32_t type;  // 1 string, 2 string to expand, 3 binary, 4 dword, 7 strings, 11 qword
    std::vector<uint8_t> data;
};
struct NamedValue {
    std::string name;
    RegistryValue value;
};
struct RegistryKey {
    std::string path, key_class;
    std::vector<NamedValue> values;
};

class Registry {
  public:
    bool has_key(const std::string &path);
    // Makes what is missing of the path; the class is the last key's. false: it was there.
    bool create_key(const std::string &path, const std::string &key_class = "");
    enum class Removed { Yes, NoSuchKey, HasSubkeys };
    Removed remove_key(const std::string &path);
    bool query(const std::string &path, const std::string &name, RegistryValue *out);
    void set(const std::string &path, const std::string &name, RegistryValue value);
    bool remove_value(const std::string &path, const std::string &name);

    // Copies, so that nothing is held while somebody looks.
    std::optional<RegistryKey> key(const std::string &path);
    std::vector<std::string> subkeys(const std::string &path);  // names
    std::vector<RegistryKey> keys_below(const std::string &path);

  private:
    RegistryKey &make(const std::string &path);
    bool has_subkeys(const std::string &lower_path) const;
    FutexLock lock_;
    std::map<std::string, RegistryKey> keys_;  // by path in lower case
};

Registry &registry();

// "name=number" or "name=text" for the device's key (option --set). false: no '='.
bool set_device_parameter(const std::string &text);

}  // namespace nth
