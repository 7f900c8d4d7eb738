// SPDX-License-Identifier: GPL-2.0-or-later
// ip_text.h: an IPv4 address, a number in host order here, as people write it.
#pragma once

#include <cstdint>
#include <string>

namespace snic {

inline std::string dotted(uint32_t ip) {
    return std::to_string(ip >> 24) + '.' + std::to_string(ip >> 16 & 255) + '.' + std::to_string(ip >> 8 & 255) + '.' +
           std::to_string(ip & 255);
}

}  // namespace snic
