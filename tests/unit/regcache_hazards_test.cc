// SPDX-License-Identifier: GPL-2.0-or-later
//
// What registration caches of other projects got wrong, one test each; then four threads against a model of virtual and
// physical memory that knows what the NIC may touch.
#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest-spi.h>

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
        EXPECT_GE(cache.invalidate(base, page), 1u);  // else the system would not try to free it again
        EXPECT_FALSE(books.any_pinned_in(base, page));
        invalidated = true;
    });
    while (!books.pauses && !invalidated) std::this_thread::yield();  // until it waits, as it must
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
    EXPECT_EQ(cache.invalidate(base + 2 * page, 1), 1u);  // still heard of
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

// free() under the cache's lock: Books::called() fails the test when any call comes with the lock held. First: it
// would.
TEST_F(RegCache, ACallWithTheLockHeldWouldBeNoticed) {
    Region region;
    EXPECT_NONFATAL_FAILURE(
        {
            books.lock();
            books.pin(base, page, local_rw, nullptr, region);
            books.unlock();
        },
        "called with the cache's lock held");
    books.unpin(region);
}

// Then all kinds of them, on all paths.
TEST_F(RegCache, NoCallToTheSystemComesWithTheLockHeld) {
    for (int i = 0; i < 300; ++i) {
        Entry *entry = get(base + i % 40 * page, (1 + i % 3) * page, i % 2 ? remote_rw : local_rw, i % 3 ? &a : &b);
        if (i % 7 == 0) cache.invalidate(base + i % 40 * page, page);
        cache.release(entry);
        if (i % 50 == 0) cache.flush(&a);
    }
    Entry *entry = nullptr;
    books.limit = books.pinned_count();  // eviction for want of resources
    cache.release(get(base + 1000 * page, page, local_rw, &a));
    books.fail_pins = books.fail_revokes = books.fail_exposes = 1;
    EXPECT_EQ(cache.acquire(base + 2000 * page, page, local_rw, &a, entry), Status::bad_address);
    cache.release(get(base, page, remote_rw, &a));  // fails to be revoked
    cache.release(get(base, page, remote_rw, &a));
    cache.release(get(base, page, remote_rw, &a));  // fails to be exposed
    cache.flush_all();
    EXPECT_EQ(books.pinned_count(), 0u);
    EXPECT_EQ(books.fail_pins + books.fail_revokes + books.fail_exposes, 0);
    EXPECT_GT(books.pins, 0);
    EXPECT_GT(books.unpins, 0);
    EXPECT_GT(books.exposes, 0);
    EXPECT_GT(books.revokes, 0);
    EXPECT_GT(books.allocations, 0);
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
    EXPECT_LE(books.allocations, 3);  // one slab is enough for so few
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

// --- four threads and a model of memory -----------------------------------------------------------------------------

// Virtual pages, each mapped to a physical frame. A frame is given out again only when nothing maps or locks it, as a
// system does; a virtual page cannot go while it is secured, nor become read-only while it is secured for writing.
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

    Status pin(uint64_t start, uint64_t length, uint32_t rights, Owner *owner, Region &region) override {
        const size_t first = page_of(start), last = page_of(start + length - 1);
        const bool write = rights & local_write;
        std::vector<size_t> frames;
        {
            std::lock_guard guard(books_);  // secure and lock
            for (size_t i = first; i <= last; ++i)
                if (write && read_only_[i]) return Status::bad_address;
            for (size_t i = first; i <= last; ++i) {
                ++secured_[i];
                if (write) ++secured_for_writing_[i];
                ++locked_[frame_[i]];
                frames.push_back(frame_[i]);
            }
        }
        std::this_thread::yield();  // the NIC takes its time
        std::lock_guard guard(books_);
        region.id = region.key = ++next_;
        regions_[region.id] = {first, frames, region.key, rights, rights & remote_any ? owner : nullptr};
        return Status::ok;
    }
    Status expose(Region &region, uint32_t rights, Owner *owner) override {
        std::lock_guard guard(books_);
        auto &r = regions_.at(region.id);
        EXPECT_EQ(r.rights, rights);
        r.key = region.key = ++next_;
        r.exposed_to = owner;
        return Status::ok;
    }
    Status revoke(Region &region) override {
        std::lock_guard guard(books_);
        regions_.at(region.id).exposed_to = nullptr;
        return Status::ok;
    }
    void unpin(Region &region) override {
        Pinned gone;
        {
            std::lock_guard guard(books_);
            gone = regions_.at(region.id);
            regions_.erase(region.id);  // the NIC first
        }
        std::this_thread::yield();
        std::lock_guard guard(books_);
        for (size_t i = 0; i < gone.frames.size(); ++i) {
            const size_t frame = gone.frames[i];
            if (--locked_[frame] == 0 && orphans_.erase(frame)) free_frames_.push_back(frame);
            --secured_[gone.first + i];
            if (gone.rights & local_write) --secured_for_writing_[gone.first + i];
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
    // The system's half of VirtualProtect. False: secured for writing.
    bool protect(size_t first, size_t count, bool read_only) {
        std::lock_guard guard(books_);
        for (size_t i = first; i < first + count; ++i)
            if (read_only && secured_for_writing_[i]) return false;
        for (size_t i = first; i < first + count; ++i) read_only_[i] = read_only;
        return true;
    }
    // The NIC writes to pages through a registration, by the frames that it knows. False: it knows the registration no
    // more.
    bool nic_writes(Entry *entry, size_t first, size_t count, uint64_t value) {
        std::lock_guard guard(books_);
        auto r = regions_.find(entry->key());  // local entries: the key is the id
        if (r == regions_.end()) return false;
        EXPECT_TRUE(r->second.rights & local_write);
        for (size_t i = first; i < first + count; ++i) data_[r->second.frames.at(i - r->second.first)] = value;
        return true;
    }
    // The peer of that connection writes to all that the key stands for. False: its access is refused.
    bool peer_writes(Owner *owner, uint64_t key, uint64_t value) {
        std::lock_guard guard(books_);
        for (auto &[id, r] : regions_) {
            if (r.key != key || r.exposed_to != owner || !(r.rights & remote_write)) continue;
            for (const size_t frame : r.frames) data_[frame] = value;
            return true;
        }
        return false;
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
    struct Pinned {
        size_t first = 0;
        std::vector<size_t> frames;
        uint64_t key = 0;
        uint32_t rights = 0;
        Owner *exposed_to = nullptr;
    };
    void map(size_t i) {
        // Mostly the one that was freed last: reuse is what finds stale registrations.
        frame_[i] = free_frames_.back();
        free_frames_.pop_back();
        data_[frame_[i]] = 0;
    }

    std::mutex cache_lock_, books_;
    std::array<size_t, pages> frame_{};
    std::array<int, pages> secured_{}, secured_for_writing_{};
    std::array<bool, pages> read_only_{};
    std::array<int, 4 * pages> locked_{};
    std::array<uint64_t, 4 * pages> data_{};
    std::vector<size_t> free_frames_;
    std::set<size_t> orphans_;  // locked, but mapped nowhere any more
    std::map<uint64_t, Pinned> regions_;
    uint64_t next_ = 0;
};

// One of four threads. It owns a quarter of the memory: it alone frees and protects there and looks at what arrives.
// All of them register anywhere.
class Program {
  public:
    Program(Machine &machine, Cache &cache, uint64_t number)
        : machine_(machine), cache_(cache), number_(number), random_(number) {}

    void run(int steps) {
        for (int i = 0; i < steps && !::testing::Test::HasFatalFailure(); ++i) {
            // Overlapping ranges, but few enough for hits.
            count_ = 1 + random_() % 6;
            first_ = number_ * share + random_() % 12 * 5;
            value_ = number_ << 32 | static_cast<uint64_t>(i + 1);
            switch (random_() % 12) {
                case 0: free_and_allocate(); break;
                case 1: protect(); break;
                case 2: use_memory_of_others(); break;
                case 3: cache_.flush(&owner_); break;
                case 4:
                case 5: let_the_peer_write(); break;
                default: let_the_nic_write();
            }
            try_stale_keys();
        }
        cache_.flush(&owner_);
    }
    uint64_t transfers = 0, remaps = 0, protections = 0, exposures = 0, stale = 0;

  private:
    static constexpr size_t share = Machine::pages / 4;

    // As kernel32 does it: when the system refuses, the cache is told, and it is tried again. Others may have
    // registered it again.
    template <typename Change>
    void change(Change system) {
        bool done = system();
        for (int tries = 0; !done && tries < 10000; ++tries) {
            cache_.invalidate(base + first_ * page, count_ * page);
            done = system();
        }
        ASSERT_TRUE(done);
    }
    void free_and_allocate() {
        change([&] { return machine_.remap(first_, count_); });
        ++remaps;
    }
    void protect() {
        change([&] { return machine_.protect(first_, count_, true); });
        // Nobody can have it written to now; reading goes on.
        Entry *entry = nullptr;
        EXPECT_EQ(cache_.acquire(base + first_ * page, count_ * page, local_rw, &owner_, entry), Status::bad_address);
        if (cache_.acquire(base + first_ * page, count_ * page, local_read, &owner_, entry) == Status::ok)
            cache_.release(entry);
        ASSERT_TRUE(machine_.protect(first_, count_, false));
        ++protections;
    }
    void use_memory_of_others() {
        Entry *entry = nullptr;
        const size_t any = random_() % (Machine::pages - count_);
        const uint32_t rights = random_() % 2 ? local_rw : uint32_t{local_read | remote_read};
        if (cache_.acquire(base + any * page, count_ * page, rights, &owner_, entry) == Status::ok)
            cache_.release(entry);
    }
    void let_the_nic_write() {
        Entry *entry = nullptr;
        // bad_address: a neighbour that overlaps was taken away at this moment. Never by this thread's own doing.
        if (cache_.acquire(base + first_ * page, count_ * page, local_rw, &owner_, entry) != Status::ok) return;
        if (random_() % 4 == 0) std::this_thread::yield();
        if (entry->usable() && machine_.nic_writes(entry, first_, count_, value_)) {
            EXPECT_TRUE(machine_.program_sees(first_, count_, value_)) << "stale registration";
            ++transfers;
        }
        cache_.release(entry);
    }
    void let_the_peer_write() {
        Entry *entry = nullptr;
        if (cache_.acquire(base + first_ * page, count_ * page, local_write | remote_write, &owner_, entry) !=
            Status::ok)
            return;
        const uint64_t key = entry->key();
        if (random_() % 4 == 0) std::this_thread::yield();
        if (machine_.peer_writes(&owner_, key, value_)) {
            EXPECT_TRUE(machine_.program_sees(first_, count_, value_)) << "stale exposure";
            ++exposures;
        }
        cache_.release(entry);
        EXPECT_FALSE(machine_.peer_writes(&owner_, key, ~0ull)) << "after its release";
        old_keys_[old_++ % old_keys_.size()] = key;
    }
    // The peer remembers them all, whatever has become of the memory.
    void try_stale_keys() {
        const uint64_t key = old_keys_[random_() % old_keys_.size()];
        if (key == 0) return;
        EXPECT_FALSE(machine_.peer_writes(&owner_, key, ~0ull));
        ++stale;
    }

    Machine &machine_;
    Cache &cache_;
    const uint64_t number_;
    std::mt19937_64 random_;
    Owner owner_;
    size_t first_ = 0, count_ = 0;
    uint64_t value_ = 0;
    std::array<uint64_t, 16> old_keys_{};
    size_t old_ = 0;
};

TEST(RegCacheHazards, WhatTheNicWritesIsWhatTheProgramSees) {
    Machine machine;
    Counters counters;
    {
        Cache cache(machine);
        ASSERT_TRUE(cache.init({.max_count = 48, .max_bytes = 256 * page}));
        std::vector<std::unique_ptr<Program>> programs;
        for (uint64_t i = 0; i < 4; ++i) programs.push_back(std::make_unique<Program>(machine, cache, i));
        std::vector<std::thread> threads;
        for (auto &program : programs) threads.emplace_back([&program] { program->run(20000); });
        for (auto &thread : threads) thread.join();
        for (auto &program : programs) {
            EXPECT_GT(program->transfers, 1000u);
            EXPECT_GT(program->remaps, 300u);
            EXPECT_GT(program->protections, 300u);
            EXPECT_GT(program->exposures, 300u);
            EXPECT_GT(program->stale, 1000u);
        }
        cache.flush_all();
        counters = cache.counters();
    }
    EXPECT_GT(counters.hits, 1000u);
    EXPECT_GT(counters.evictions, 100u);
    EXPECT_GT(counters.live_invalidations, 10u);
    EXPECT_EQ(counters.count, 0u);
    EXPECT_EQ(machine.secured_total(), 0u);
    EXPECT_EQ(machine.regions(), 0u);
}

}  // namespace
