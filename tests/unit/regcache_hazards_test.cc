// SPDX-License-Identifier: GPL-2.0-or-later
//
// What registration caches of other projects got wrong, one test each; then four threads against a model of virtual and
// physical memory that knows what the NIC may touch.
#include <array>
#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <vector>

#include "regcache_books.h"

using namespace regcache;

namespace {

constexpr uint32_t remote_rw = local_rw | remote_read | remote_write;

// An entry marked stale while the NIC's mapping stayed alive: a remote write landed in someone else's pages.
TEST_F(RegCache, AStaleEntryHasLeftTheNicWhenInvalidationReturns) {
    Entry *entry = get(base, 4 * page, remote_rw, &a);
    const uint64_t key = entry->key();
    EXPECT_TRUE(books.reachable(&a, key));
    EXPECT_EQ(cache.invalidate(base + 2 * page, 1), 1u);
    EXPECT_FALSE(books.reachable(&a, key));
    EXPECT_FALSE(books.any_pinned_in(base, 4 * page));
    cache.release(entry);
}

// Memory unmapped while another thread is evicting it: still pinned for a moment, so the free must wait, not fail.
TEST_F(RegCache, InvalidationWaitsForAnEvictionInProgress) {
    cache.release(get(base, page, local_rw, &a));
    std::atomic<bool> unpinning{false}, go_on{false}, invalidated{false};
    books.before_unpin = [&] {
        unpinning = true;
        while (!go_on) std::this_thread::yield();
    };
    std::thread evictor([&] { cache.flush_all(); });
    while (!unpinning) std::this_thread::yield();
    std::thread freer([&] {
        EXPECT_GE(cache.invalidate(base, page), 1u); // else the system would not try to free it again
        EXPECT_FALSE(books.any_pinned_in(base, page));
        invalidated = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(invalidated);
    go_on = true;
    evictor.join();
    freer.join();
}

// A neighbour is not waited for: adjacency is no overlap there, either.
TEST_F(RegCache, InvalidationDoesNotWaitForNeighbours) {
    cache.release(get(base, page, local_rw, &a));
    std::atomic<bool> unpinning{false}, go_on{false};
    books.before_unpin = [&] {
        unpinning = true;
        while (!go_on) std::this_thread::yield();
    };
    std::thread evictor([&] { cache.flush_all(); });
    while (!unpinning) std::this_thread::yield();
    EXPECT_EQ(cache.invalidate(base + page, page), 0u);
    go_on = true;
    evictor.join();
}

// A merged region's release dropped what survivors needed: here nothing is merged, and what overlaps stands on its own.
TEST_F(RegCache, ReleasingOneOfTwoOverlappingEntriesLeavesTheOther) {
    Entry *left = get(base, 3 * page, local_rw, &a);
    Entry *right = get(base + 2 * page, 3 * page, local_rw, &a);
    cache.release(left);
    cache.flush_all();
    EXPECT_TRUE(right->usable());
    EXPECT_TRUE(books.any_pinned_in(base + 4 * page, page));
    EXPECT_EQ(cache.invalidate(base + 2 * page, 1), 1u); // still heard of
    EXPECT_FALSE(right->usable());
    cache.release(right);
}

// Shifting buffers never hit: windows into a registered buffer do.
TEST_F(RegCache, ShiftingWindowsOfARegisteredBufferHit) {
    cache.release(get(base, 1 << 20, local_rw, &a));
    for (uint64_t at = 0; at < 200; ++at) cache.release(get(base + at * 517, 4096 + at, local_rw, &a));
    EXPECT_EQ(books.pins, 1);
}

// A heap that grows was treated as one that shrinks: new memory beside an entry leaves it alone.
TEST_F(RegCache, GrowthBesideAnEntryDoesNotDropIt) {
    cache.release(get(base, page, local_rw, &a));
    EXPECT_EQ(cache.invalidate(base + page, 100 * page), 0u);
    EXPECT_EQ(cache.invalidate(base - page, page), 0u);
    cache.release(get(base, page, local_rw, &a));
    EXPECT_EQ(books.pins, 1);
}

// free() under the cache's lock: Books::called() fails the test when any call comes with the lock held. This makes all of them.
TEST_F(RegCache, NoCallToTheSystemComesWithTheLockHeld) {
    for (int i = 0; i < 300; ++i) {
        Entry *entry = get(base + i % 40 * page, (1 + i % 3) * page, i % 2 ? remote_rw : local_rw, i % 3 ? &a : &b);
        if (i % 7 == 0) cache.invalidate(base + i % 40 * page, page);
        cache.release(entry);
        if (i % 50 == 0) cache.flush(&a);
    }
    cache.flush_all();
    EXPECT_EQ(books.pinned_count(), 0u);
}

// An unmap callback that ran after the cache was emptied, or before anything was in it.
TEST_F(RegCache, InvalidationOfAnEmptyCacheIsNothing) {
    EXPECT_EQ(cache.invalidate(0, UINT64_MAX), 0u);
    cache.release(get(base, page, local_rw, &a));
    cache.flush_all();
    EXPECT_EQ(cache.invalidate(0, UINT64_MAX), 0u);
}

// Unbounded growth over recycled addresses.
TEST(RegCacheHazards, RecycledAddressesDoNotGrowTheCache) {
    Books books;
    Cache cache(books);
    ASSERT_TRUE(cache.init({.max_count = 16, .max_bytes = 64 * page}));
    Owner a;
    for (int i = 0; i < 5000; ++i) {
        Entry *entry = nullptr;
        ASSERT_EQ(cache.acquire(base + i % 97 * page, page * (1 + i % 4), local_rw, &a, entry), Status::ok);
        cache.release(entry);
        if (i % 3 == 0) cache.invalidate(base + i % 97 * page, page);
        ASSERT_LE(cache.counters().count, 16u);
        ASSERT_LE(cache.counters().bytes, 64 * page);
    }
    EXPECT_LE(books.allocations, 3); // one slab is enough for so few
}

// Mappings never dropped when the connection went away.
TEST_F(RegCache, NothingOfAnOwnerIsLeftAfterItsFlush) {
    for (int i = 0; i < 50; ++i) cache.release(get(base + i * page, page, i % 2 ? remote_rw : local_rw, &a));
    cache.flush(&a);
    EXPECT_EQ(books.pinned_count(), 0u);
}

// One protection domain for all: a key given to one peer worked for every other.
TEST_F(RegCache, AKeyOfOnePeerIsNoneOfAnother) {
    Entry *mine = get(base, page, remote_rw, &a), *theirs = get(base, page, remote_rw, &b);
    EXPECT_NE(mine->key(), theirs->key());
    EXPECT_FALSE(books.reachable(&b, mine->key()));
    EXPECT_FALSE(books.reachable(&a, theirs->key()));
    cache.release(mine);
    cache.release(theirs);
}

// A read-only exposure served by a remotely writable region.
TEST_F(RegCache, AReadOnlyExposureNeverComesFromAWritableRegion) {
    cache.release(get(base, page, remote_rw, &a));
    Entry *entry = get(base, page, local_read | remote_read, &a);
    EXPECT_EQ(entry->rights(), uint32_t{local_read | remote_read});
    EXPECT_EQ(books.pins, 2);
    cache.release(entry);
}

// A range check that wraps.
TEST_F(RegCache, RangesThatWrapAreRefusedAndInvalidationsThatWrapReachTheEnd) {
    Entry *entry = nullptr;
    EXPECT_EQ(cache.acquire(UINT64_MAX - 10, 100, local_rw, &a, entry), Status::bad_address);
    cache.release(get(UINT64_MAX - page + 1, page, local_rw, &a));
    EXPECT_EQ(cache.invalidate(UINT64_MAX - 5, 1000), 1u);
}

// --- four threads and a model of memory -------------------------------------------------------------------------------

// Virtual pages, each mapped to a physical frame or not. A frame is given out again only when nothing maps or locks it, as
// a system does; a virtual page cannot go while it is secured.
class Machine : public Backend {
  public:
    static constexpr size_t pages = 256;

    Machine() {
        for (size_t i = 0; i < 4 * pages; ++i) free_frames_.push_back(i);
        for (size_t i = 0; i < pages; ++i) map(i);
    }
    void lock() override { cache_lock_.lock(); }
    void unlock() override { cache_lock_.unlock(); }
    void *allocate(size_t bytes) override { return std::malloc(bytes); }
    void free(void *memory) override { std::free(memory); }
    void pause() override { std::this_thread::yield(); }
    uint32_t thread_number() override { return numbered_thread(); }

    Status pin(uint64_t start, uint64_t length, uint32_t, Owner *, Region &region) override {
        const size_t first = page_of(start), last = page_of(start + length - 1);
        std::vector<size_t> frames;
        {
            std::lock_guard guard(books_); // secure and lock
            for (size_t i = first; i <= last; ++i)
                if (frame_[i] == none) return Status::bad_address;
            for (size_t i = first; i <= last; ++i) {
                ++secured_[i];
                ++locked_[frame_[i]];
                frames.push_back(frame_[i]);
            }
        }
        std::this_thread::yield(); // the NIC takes its time
        std::lock_guard guard(books_);
        region.id = region.key = ++next_;
        regions_[region.id] = {first, frames, true};
        return Status::ok;
    }
    Status expose(Region &region, uint32_t, Owner *) override {
        std::lock_guard guard(books_);
        auto &r = regions_.at(region.id);
        region.key = ++next_;
        r.exposed = true;
        return Status::ok;
    }
    Status revoke(Region &region) override {
        std::lock_guard guard(books_);
        regions_.at(region.id).exposed = false;
        return Status::ok;
    }
    void unpin(Region &region) override {
        Pinned gone;
        {
            std::lock_guard guard(books_);
            gone = regions_.at(region.id);
            regions_.erase(region.id); // the NIC first
        }
        std::this_thread::yield();
        std::lock_guard guard(books_);
        for (size_t i = 0; i < gone.frames.size(); ++i) {
            const size_t frame = gone.frames[i];
            if (--locked_[frame] == 0 && orphans_.erase(frame)) free_frames_.push_back(frame);
            --secured_[gone.first + i];
        }
    }

    // The system's half of VirtualFree and VirtualAlloc at the same address. False: secured.
    bool remap(size_t first, size_t count) {
        std::lock_guard guard(books_);
        for (size_t i = first; i < first + count; ++i)
            if (secured_[i]) return false;
        for (size_t i = first; i < first + count; ++i) {
            const size_t frame = frame_[i];
            if (locked_[frame]) orphans_.insert(frame);
            else free_frames_.push_back(frame);
            map(i);
        }
        return true;
    }
    // The NIC writes to pages through a registration, by the frames that it knows. False: it knows the registration no more.
    bool nic_writes(Entry *entry, size_t first, size_t count, uint64_t value) {
        std::lock_guard guard(books_);
        auto r = regions_.find(entry->key()); // local entries: the key is the id
        if (r == regions_.end()) return false;
        for (size_t i = first; i < first + count; ++i) data_[r->second.frames.at(i - r->second.first)] = value;
        return true;
    }
    bool program_sees(size_t first, size_t count, uint64_t value) {
        std::lock_guard guard(books_);
        for (size_t i = first; i < first + count; ++i)
            if (data_[frame_[i]] != value) return false;
        return true;
    }
    size_t secured_total() {
        std::lock_guard guard(books_);
        size_t n = 0;
        for (int s : secured_) n += static_cast<size_t>(s);
        return n;
    }
    size_t regions() {
        std::lock_guard guard(books_);
        return regions_.size();
    }
    static size_t page_of(uint64_t address) { return (address - base) / page; }

  private:
    static constexpr size_t none = ~size_t{0};
    struct Pinned {
        size_t first = 0;
        std::vector<size_t> frames;
        bool exposed = false;
    };
    void map(size_t i) {
        // Mostly the one that was freed last: reuse is what finds stale registrations.
        frame_[i] = free_frames_.back();
        free_frames_.pop_back();
        data_[frame_[i]] = 0;
    }

    std::mutex cache_lock_, books_;
    std::array<size_t, pages> frame_{};
    std::array<int, pages> secured_{};
    std::array<int, 4 * pages> locked_{};
    std::array<uint64_t, 4 * pages> data_{};
    std::vector<size_t> free_frames_;
    std::set<size_t> orphans_; // locked, but mapped nowhere any more
    std::map<uint64_t, Pinned> regions_;
    uint64_t next_ = 0;
};

// Each thread owns a quarter of the memory: it alone frees there and looks at what arrives. All of them register anywhere.
TEST(RegCacheHazards, WhatTheNicWritesIsWhatTheProgramSees) {
    Machine machine;
    {
        Cache cache(machine);
        ASSERT_TRUE(cache.init({.max_count = 48, .max_bytes = 256 * page}));
        std::atomic<uint64_t> transfers{0}, remaps{0}, refused{0};
        auto work = [&](uint64_t number) {
            std::mt19937_64 random(number);
            Owner owner;
            constexpr size_t share = Machine::pages / 4;
            const size_t own = number * share;
            for (int i = 0; i < 8000; ++i) {
                const size_t count = 1 + random() % 6;
                const size_t first = own + random() % (share - count);
                switch (random() % 8) {
                case 0: { // free and allocate again at the same address, as kernel32 does it
                    bool gone = machine.remap(first, count);
                    for (int tries = 0; !gone && tries < 10000; ++tries) { // others may register it again meanwhile
                        cache.invalidate(base + first * page, count * page);
                        gone = machine.remap(first, count);
                        if (!gone) ++refused;
                    }
                    ASSERT_TRUE(gone);
                    ++remaps;
                    break;
                }
                case 1: { // somebody else's memory: registered, then given back
                    Entry *entry = nullptr;
                    const size_t any = random() % (Machine::pages - count);
                    const uint32_t rights = random() % 2 ? local_rw : uint32_t{local_read | remote_read};
                    if (cache.acquire(base + any * page, count * page, rights, &owner, entry) == Status::ok) cache.release(entry);
                    break;
                }
                case 2: cache.flush(&owner); break;
                default: {
                    Entry *entry = nullptr;
                    // bad_address: a neighbour that overlaps was taken away at this moment. Never by this thread's own doing.
                    if (cache.acquire(base + first * page, count * page, local_rw, &owner, entry) != Status::ok) break;
                    const uint64_t value = number << 32 | static_cast<uint64_t>(i + 1);
                    if (entry->usable() && machine.nic_writes(entry, first, count, value)) {
                        EXPECT_TRUE(machine.program_sees(first, count, value)) << "stale registration";
                        ++transfers;
                    }
                    cache.release(entry);
                }
                }
            }
            cache.flush(&owner);
        };
        std::vector<std::thread> threads;
        for (uint64_t i = 0; i < 4; ++i) threads.emplace_back(work, i);
        for (auto &thread : threads) thread.join();
        EXPECT_GT(transfers, 1000u);
        EXPECT_GT(remaps, 1000u);
        cache.flush_all();
    }
    EXPECT_EQ(machine.secured_total(), 0u);
    EXPECT_EQ(machine.regions(), 0u);
}

} // namespace
