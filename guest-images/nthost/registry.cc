// SPDX-License-Identifier: GPL-2.0-or-later
#include "registry.h"

#include <cstdlib>
#include <cstring>

namespace nth {

Registry &registry() {
    static Registry r;
    return r;
}

namespace {

NamedValue *find_value(RegistryKey &key, const std::string &name) {
    for (NamedValue &v : key.values)
        if (lower(v.name) == lower(name)) return &v;
    return nullptr;
}

}  // namespace

bool Registry::has_key(const std::string &path) {
    Locked l(lock_);
    return keys_.contains(lower(path));
}

RegistryKey &Registry::make(const std::string &path) {
    auto [it, fresh] = keys_.try_emplace(lower(path));
    if (fresh) {
        it->second.path = path;
        size_t slash = path.find_last_of('\\');
        if (slash != 0 && slash != std::string::npos) make(path.substr(0, slash));
    }
    return it->second;
}

bool Registry::create_key(const std::string &path, const std::string &key_class) {
    Locked l(lock_);
    if (keys_.contains(lower(path))) return false;
    make(path).key_class = key_class;
    return true;
}

bool Registry::has_subkeys(const std::string &lower_path) const {
    auto it = keys_.lower_bound(lower_path + "\\");
    return it != keys_.end() && it->first.rfind(lower_path + "\\", 0) == 0;
}

Registry::Removed Registry::remove_key(const std::string &path) {
    Locked l(lock_);
    auto it = keys_.find(lower(path));
    if (it == keys_.end()) return Removed::NoSuchKey;
    if (has_subkeys(it->first)) return Removed::HasSubkeys;
    keys_.erase(it);
    return Removed::Yes;
}

bool Registry::query(const std::string &path, const std::string &name, RegistryValue *out) {
    Locked l(lock_);
    auto k = keys_.find(lower(path));
    if (k == keys_.end()) return false;
    NamedValue *v = find_value(k->second, name);
    if (v == nullptr) return false;
    *out = v->value;
    return true;
}

void Registry::set(const std::string &path, const std::string &name, RegistryValue value) {
    Locked l(lock_);
    RegistryKey &key = make(path);
    if (NamedValue *v = find_value(key, name)) v->value = std::move(value);
    else key.values.push_back({name, std::move(value)});
}

bool Registry::remove_value(const std::string &path, const std::string &name) {
    Locked l(lock_);
    auto k = keys_.find(lower(path));
    if (k == keys_.end()) return false;
    return std::erase_if(k->second.values, [&](const NamedValue &v) { return lower(v.name) == lower(name); }) != 0;
}

std::optional<RegistryKey> Registry::key(const std::string &path) {
    Locked l(lock_);
    auto k = keys_.find(lower(path));
    if (k == keys_.end()) return std::nullopt;
    return k->second;
}

std::vector<RegistryKey> Registry::keys_below(const std::string &path) {
    Locked l(lock_);
    std::vector<RegistryKey> out;
    std::string prefix = lower(path) + "\\";
    for (auto it = keys_.lower_bound(prefix); it != keys_.end() && it->first.rfind(prefix, 0) == 0; ++it)
        out.push_back(it->second);
    return out;
}

std::vector<std::string> Registry::subkeys(const std::string &path) {
    std::vector<std::string> out;
    for (RegistryKey &k : keys_below(path)) {
        std::string name = k.path.substr(path.size() + 1);
        if (name.find('\\') == std::string::npos) out.push_back(name);
    }
    return out;
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
