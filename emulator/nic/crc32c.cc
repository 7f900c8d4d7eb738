// SPDX-License-Identifier: GPL-2.0-or-later
#include "crc32c.h"

#include <array>

namespace snic {

namespace {

constexpr std::array<uint32_t, 256> make_table() {
    std::array<uint32_t, 256> t{};
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;
        t[i] = c;
    }
    return t;
}
constexpr auto kTable = make_table();

}  // namespace

uint32_t crc32c(std::span<const std::byte> data, size_t skip) {
    uint32_t c = ~0u;
    for (size_t i = 0; i < data.size(); i++) {
        uint8_t b = i - skip < 4 ? 0 : static_cast<uint8_t>(data[i]);
        c = kTable[(c ^ b) & 0xFF] ^ c >> 8;
    }
    c = ~c;
    return c ? c : 1;
}

}  // namespace snic
