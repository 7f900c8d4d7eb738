// SPDX-License-Identifier: GPL-2.0-or-later
#include "registry.h"

#include <cstdlib>
#include <cstring>

namespace nth {

Registry &registry() {
    static Registry r;
    return r;
}

bool Registry::has_key(const std::string &path) {
    Locked l(lock_);
    return keys_.contains(lower(path));
}

void Registry::create_key(const std::string &path) {
    Locked l(lock_);
    keys_[lower(path)];
}

bool Registry::query(const std::string &path, const std::string &name, RegistryValue *out) {
    Locked l(lock_);
    auto k = keys_.find(lower(path));
    if (k == keys_.end()) return false;
    auto v = k->second.find(lower(name));
    if (v == k->second.end()) return false;
    *out = v->second;
    return true;
}

void Registry::set(const std::string &path, const std::string &name, RegistryValue value) {
    Locked l(lock_);
    keys_[lower(path)][lower(name)] = std::move(value);
}

bool set_device_parameter(const std::string &text) {
    size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) return false;
    std::string name = text.substr(0, equals), value = text.substr(equals + 1);
    char *end;
    unsigned long long n = strtoull(value.c_str(), &end, 0);
    RegistryValue v;
    if (!value.empty() && *end == 0 && n <= 0xffffffff) {
        auto dword = static_cast<uint32_t>(n);
        v.type = 4;
        v.data.resize(4);
        memcpy(v.data.data(), &dword, 4);
    } else {
        std::u16string w = widen(value);
        v.type = 1;
        v.data.resize(w.size() * 2 + 2);
        memcpy(v.data.data(), w.c_str(), v.data.size());
    }
    registry().set(DEVICE_KEY, name, v);
    registry().set(DRIVER_KEY, name, v);
    return true;
}

}  // namespace nth
