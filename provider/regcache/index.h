// SPDX-License-Identifier: GPL-2.0-or-later
//
// index.h: the hash table from (range, rights) to entries. Changes under the cache's lock; is read without it.
//
// A slot is one atomic word: 32 bits of the hash, which also say where the slot would like to be, and the entry's index in
// the pool plus one. Open addressing, linear probing, and removal that closes the gap. A reader that runs into a removal
// may overlook an entry, or find one that has left: so what a reader finds is a proposal, which the caller verifies, and what
// it does not find must be asked for again under the lock. Other than that it is never wrong.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace regcache {

class Index {
  public:
    static uint32_t hash(uint64_t first, uint64_t last, uint32_t rights) {
        uint64_t h = (first + (last << 29 | last >> 35)) * 0x9E3779B97F4A7C15ull;
        h = (h ^ h >> 29 ^ rights) * 0xBF58476D1CE4E5B9ull;
        return static_cast<uint32_t>(h >> 32);
    }

    // Room for so many, and as many again before anything is left out. Bytes to allocate.
    static size_t bytes(uint32_t entries) { return slots(entries) * sizeof(Slot); }
    void init(void *memory, uint32_t entries) {
        mask_ = slots(entries) - 1;
        slots_ = static_cast<Slot *>(memory);
        for (size_t i = 0; i <= mask_; ++i) new (slots_ + i) Slot(0);
    }
    void *memory() const { return slots_; }

    // Calls accept(index) for entries with that hash until one is taken. False: none was.
    template <typename Accept> bool find(uint32_t hash, Accept accept) const {
        size_t at = hash & mask_;
        for (unsigned probes = 0; probes < max_probes; ++probes, at = (at + 1) & mask_) {
            const uint64_t slot = slots_[at].load(std::memory_order_acquire);
            if (slot == 0) return false;
            if (slot >> 32 == hash && accept(static_cast<uint32_t>(slot) - 1)) return true;
        }
        return false;
    }

    // False: too full, the entry will not be found here. Then more is held at the same time than the cache was made for.
    bool insert(uint32_t hash, uint32_t index) {
        if (used_ >= mask_ - mask_ / 4) return false;
        size_t at = hash & mask_;
        for (unsigned probes = 0; load(at) != 0; at = (at + 1) & mask_)
            if (++probes == max_probes) return false;
        store(at, static_cast<uint64_t>(hash) << 32 | (index + 1));
        ++used_;
        return true;
    }

    void remove(uint32_t hash, uint32_t index) {
        const uint64_t wanted = static_cast<uint64_t>(hash) << 32 | (index + 1);
        size_t gap = hash & mask_;
        while (load(gap) != wanted) gap = (gap + 1) & mask_;
        for (size_t at = (gap + 1) & mask_;; at = (at + 1) & mask_) {
            const uint64_t slot = load(at);
            if (slot == 0) break;
            // Whatever does not lie between its home and itself with the gap outside may move into the gap.
            const size_t home = (slot >> 32) & mask_;
            if (((at - home) & mask_) < ((at - gap) & mask_)) continue;
            store(gap, slot);
            gap = at;
        }
        store(gap, 0);
        --used_;
    }

  private:
    using Slot = std::atomic<uint64_t>;
    static constexpr unsigned max_probes = 256;
    static size_t slots(uint32_t entries) {
        size_t n = 64;
        while (n < 2ull * entries && n < (size_t{1} << 28)) n *= 2;
        return n;
    }
    uint64_t load(size_t at) const { return slots_[at].load(std::memory_order_relaxed); }
    void store(size_t at, uint64_t slot) { slots_[at].store(slot, std::memory_order_release); }

    Slot *slots_ = nullptr;
    size_t mask_ = 0;
    size_t used_ = 0;
};

} // namespace regcache
