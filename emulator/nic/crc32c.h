// SPDX-License-Identifier: GPL-2.0-or-later
// crc32c.h: the CRC of fabric records (Castagnoli polynomial, as iSCSI's).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace snic {

// CRC-32C of `data`, with the four bytes at `skip` (if below data.size()) taken as zero. Never 0: a record whose CRC would be 0
// carries 1, since 0 on the wire means "not computed".
uint32_t crc32c(std::span<const std::byte> data, size_t skip = SIZE_MAX);

}  // namespace snic
