// SPDX-License-Identifier: GPL-2.0-or-later
#include "options.h"

#include <cstdlib>

namespace nth {

DeviceOptions::DeviceOptions(const std::string &text) {
    size_t at = 0;
    while (at < text.size()) {
        size_t comma = std::min(text.find(',', at), text.size());
        std::string item = text.substr(at, comma - at);
        size_t equals = item.find('=');
        if (equals == std::string::npos || equals == 0) {
            if (error_.empty()) error_ = "device option '" + item + "': expected key=value";
        } else if (!values_.emplace(item.substr(0, equals), item.substr(equals + 1)).second) {
            if (error_.empty()) error_ = "device option '" + item.substr(0, equals) + "' is given twice";
        }
        at = comma + 1;
    }
}

const std::string *DeviceOptions::take(const std::string &key) {
    known_ += (known_.empty() ? "" : ", ") + key;
    auto it = values_.find(key);
    if (it == values_.end()) return nullptr;
    auto t = taken_.insert_or_assign(key, it->second).first;
    values_.erase(it);
    return &t->second;
}

std::string DeviceOptions::text(const std::string &key, const std::string &absent) {
    const std::string *v = take(key);
    return v != nullptr ? *v : absent;
}

uint64_t DeviceOptions::number64(const std::string &key, uint64_t absent) {
    const std::string *v = take(key);
    if (v == nullptr) return absent;
    char *end;
    uint64_t n = strtoull(v->c_str(), &end, 0);
    if ((v->empty() || *end != 0 || (*v)[0] == '-') && error_.empty())
        error_ = "device option " + key + "=" + *v + ": expected a number";
    return n;
}

uint32_t DeviceOptions::number(const std::string &key, uint32_t absent, uint32_t low, uint32_t high) {
    const std::string *v = take(key);
    if (v == nullptr) return absent;
    char *end;
    unsigned long long n = strtoull(v->c_str(), &end, 0);
    if ((v->empty() || *end != 0 || (*v)[0] == '-' || n < low || n > high) && error_.empty())
        error_ = "device option " + key + "=" + *v + ": expected a number from " + std::to_string(low) + " to " +
                 std::to_string(high);
    return static_cast<uint32_t>(n);
}

unsigned DeviceOptions::choice(const std::string &key, const std::vector<std::string> &accepted) {
    const std::string *v = take(key);
    if (v == nullptr) return 0;
    std::string list;
    for (unsigned i = 0; i < accepted.size(); i++) {
        if (*v == accepted[i]) return i;
        list += (list.empty() ? "" : " or ") + accepted[i];
    }
    if (error_.empty()) error_ = "device option " + key + "=" + *v + ": expected " + list;
    return 0;
}

std::string DeviceOptions::error() {
    if (error_.empty() && !values_.empty())
        error_ = "device option '" + values_.begin()->first + "' is unknown; known are " + known_;
    return error_;
}

}  // namespace nth
