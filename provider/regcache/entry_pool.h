// SPDX-License-Identifier: GPL-2.0-or-later
//
// entry_pool.h: the memory of the entries and of their reference counts. It grows by chunks, each as large as all before it
// together, and gives nothing back: at() and count() are right for any index that was ever handed out, on any thread,
// without a lock.
//
// References are counted in rows. A thread counts in the row of its number, so that two threads which hold and release the
// same entry write to different cache lines; only the sum over the rows means something, a row alone may be below zero.
// Rows lie apart, so that a thread's counts of sixteen entries share a line, which that thread alone writes.
#pragma once

#include <new>

#include "entry.h"

namespace regcache {

class EntryPool {
  public:
    static constexpr uint32_t rows = 8;      // for threads: powers of two
    static constexpr uint32_t exact = rows;  // one more, written under the lock only: holders of remote entries
    static constexpr uint32_t first_chunk = 64;

    Entry &at(uint32_t index) const {
        const unsigned k = chunk_of(index);
        return chunks_[k].entries[offset(index, k)];
    }
    std::atomic<uint32_t> &count(uint32_t index, uint32_t row) const {
        const unsigned k = chunk_of(index);
        return chunks_[k].counts[row * size_t{capacity(k)} + offset(index, k)];
    }
    // Of the threads' rows. Never less than what is held during the whole call, see regcache.h.
    uint32_t sum(uint32_t index) const {
        const unsigned k = chunk_of(index);
        const std::atomic<uint32_t> *at = chunks_[k].counts + offset(index, k);
        uint32_t n = 0;
        for (uint32_t row = 0; row < rows; ++row, at += capacity(k)) n += at->load(std::memory_order_seq_cst);
        return n;
    }

    // --- under the cache's lock
    // A free entry; nullptr: the pool must grow.
    Entry *take() {
        if (!free_.empty()) return free_.pop()->entry;
        if (fresh_ == total_) return nullptr;
        const uint32_t index = fresh_++;
        const unsigned k = chunk_of(index);
        for (uint32_t row = 0; row <= rows; ++row)
            new (chunks_[k].counts + row * size_t{capacity(k)} + offset(index, k)) std::atomic<uint32_t>(0);
        return new (chunks_[k].entries + offset(index, k)) Entry(index);
    }
    void give(Entry *entry) { free_.push(entry->ring_); }
    unsigned chunks() const { return used_chunks_; }
    // Takes over memory of chunk_bytes(chunks()).
    void grow(void *memory) {
        const unsigned k = used_chunks_++;
        const uintptr_t start = (reinterpret_cast<uintptr_t>(memory) + line - 1) & ~uintptr_t{line - 1};
        auto *entries = reinterpret_cast<Entry *>(start);
        chunks_[k] = {memory, entries, reinterpret_cast<std::atomic<uint32_t> *>(start + capacity(k) * sizeof(Entry))};
        total_ += capacity(k);
    }
    static size_t chunk_bytes(unsigned k) {
        return line + capacity(k) * (sizeof(Entry) + (rows + 1) * sizeof(std::atomic<uint32_t>));
    }
    static bool can_grow(unsigned k) { return k < max_chunks; }
    void *memory(unsigned k) const { return chunks_[k].memory; }

  private:
    static constexpr size_t line = 64;
    static constexpr unsigned max_chunks = 24;
    struct Chunk {
        void *memory;
        Entry *entries;
        std::atomic<uint32_t> *counts;
    };
    // Chunk k holds first_chunk << k entries, from index (first_chunk << k) - first_chunk on.
    static unsigned chunk_of(uint32_t index) {
        return 31 - static_cast<unsigned>(__builtin_clz(index + first_chunk)) - 6;
    }
    static_assert(first_chunk == 1u << 6);
    static uint32_t capacity(unsigned k) { return first_chunk << k; }
    static uint32_t offset(uint32_t index, unsigned k) { return index + first_chunk - capacity(k); }

    Chunk chunks_[max_chunks] = {}; // one is written before the first index in it is handed out
    unsigned used_chunks_ = 0;
    uint32_t fresh_ = 0, total_ = 0; // constructed; there is memory for
    Stack free_;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

} // namespace regcache
