// SPDX-License-Identifier: GPL-2.0-or-later
// guest_memory.h: reading and writing the computer's RAM through Host::map. Everything that a guest can change under us is copied
// once into a local before it is looked at; indices and flags that both sides touch are single atomic accesses.
#pragma once

#include <cstddef>
#include <cstdint>

#include "host.h"
#include "page_map.h"

namespace snic {

// False when any byte is not RAM (or not writable); then a part may have been copied.
bool guest_read(Host &host, uint64_t addr, void *to, size_t len);
bool guest_write(Host &host, uint64_t addr, const void *from, size_t len);

// The same by offset in a page map. Precondition: offset + len <= map.length().
bool guest_read(Host &host, const PageMap &map, uint64_t offset, void *to, size_t len);
bool guest_write(Host &host, const PageMap &map, uint64_t offset, const void *from, size_t len);

// 4-byte aligned words shared with the guest's processors.
bool guest_load(Host &host, uint64_t addr, uint32_t &value);         // acquire
bool guest_store(Host &host, uint64_t addr, uint32_t value);         // release
bool guest_store(Host &host, const PageMap &map, uint64_t offset, uint32_t value);

// A list of host memory pieces, as scattered guest memory becomes visible to memcpy.
struct Piece {
    std::byte *at;
    size_t len;
};
class Pieces {
  public:
    static constexpr size_t kMax = 192;
    // False when there is no room for another piece. Adjacent pieces become one.
    bool add(std::byte *at, size_t len) {
        if (len == 0) return true;
        total_ += len;
        if (count_ && pieces_[count_ - 1].at + pieces_[count_ - 1].len == at) {
            pieces_[count_ - 1].len += len;
            return true;
        }
        if (count_ == kMax) return false;
        pieces_[count_++] = {at, len};
        return true;
    }
    void clear() { count_ = 0, total_ = 0; }
    size_t count() const { return count_; }
    size_t total() const { return total_; }
    const Piece *begin() const { return pieces_; }
    const Piece *end() const { return pieces_ + count_; }

  private:
    Piece pieces_[kMax];
    size_t count_ = 0;
    size_t total_ = 0;
};

// Adds the host memory of `len` bytes at `offset` of `map`. False: not RAM, or too many pieces.
bool guest_pieces(Host &host, const PageMap &map, uint64_t offset, size_t len, bool write, Pieces &out);

// Copies from one list to another of the same total. Each byte is written once.
void copy_pieces(const Pieces &to, const Pieces &from);

}  // namespace snic
