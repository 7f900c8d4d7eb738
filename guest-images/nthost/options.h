// SPDX-License-Identifier: GPL-2.0-or-later
//
// options.h: "key=value,key=value" of --device. The first thing that is wrong is kept as one line; keys that nobody
// asked for are wrong too.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace nth {

class DeviceOptions {
  public:
    explicit DeviceOptions(const std::string &text);
    std::string text(const std::string &key, const std::string &absent);
    uint32_t number(const std::string &key, uint32_t absent, uint32_t low, uint32_t high);
    uint64_t number64(const std::string &key, uint64_t absent);
    // Index of the value in `accepted`; the first is the default.
    unsigned choice(const std::string &key, const std::vector<std::string> &accepted);
    std::string error();  // after all keys were asked for

  private:
    std::map<std::string, std::string> values_;
    std::string error_, known_;
    const std::string *take(const std::string &key);
    std::map<std::string, std::string> taken_;
};

}  // namespace nth
