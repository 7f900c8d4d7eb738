// SPDX-License-Identifier: GPL-2.0-or-later
//
// The registration cache against a backend that keeps its own books: what is pinned, what is exposed to whom, and whether
// the cache's lock is held while it is called.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "provider/regcache/regcache.h"

using namespace regcache;

namespace {

thread_local int locks_held = 0;

class Books : public Backend {
  public:
    struct Pinned {
        uint64_t start, length;
        uint32_t rights;
        Owner *exposed_to;
        uint64_t key;
    };

    void lock() override {
        mutex_.lock();
        ++locks_held;
    }
    void unlock() override {
        --locks_held;
        mutex_.unlock();
    }
    void *allocate(size_t bytes) override {
        called();
        ++allocations;
        return std::malloc(bytes);
    }
    void free(void *memory) override {
        called();
        ++frees;
        std::free(memory);
    }
    void pause() override {
        called();
        std::this_thread::yield();
    }
    Status pin(uint64_t start, uint64_t length, uint32_t rights, Owner *owner, Region &region) override {
        called();
        if (before_pin) before_pin();
        std::lock_guard guard(books_);
        if (fail_pins > 0) {
            --fail_pins;
            return fail_status;
        }
        if (limit && pinned.size() >= limit) return Status::no_resources;
        region.id = ++next_id_;
        region.key = ++next_key_;
        pinned[region.id] = {start, length, rights, rights & remote_any ? owner : nullptr, region.key};
        ++pins;
        return Status::ok;
    }
    Status expose(Region &region, uint32_t rights, Owner *owner) override {
        called();
        if (before_expose) before_expose();
        std::lock_guard guard(books_);
        Pinned &p = pinned.at(region.id);
        EXPECT_EQ(p.exposed_to, nullptr);
        EXPECT_EQ(p.rights, rights);
        if (fail_exposes > 0) {
            --fail_exposes;
            return Status::failed;
        }
        p.exposed_to = owner;
        p.key = region.key = ++next_key_;
        return Status::ok;
    }
    Status revoke(Region &region) override {
        called();
        if (before_revoke) before_revoke();
        std::lock_guard guard(books_);
        if (fail_revokes > 0) {
            --fail_revokes;
            return Status::failed;
        }
        pinned.at(region.id).exposed_to = nullptr;
        ++revokes;
        return Status::ok;
    }
    void unpin(Region &region) override {
        called();
        std::lock_guard guard(books_);
        EXPECT_EQ(pinned.erase(region.id), 1u) << "unpinned twice";
        ++unpins;
    }

    // What the peer of `owner` can reach with `key`.
    bool reachable(Owner *owner, uint64_t key) {
        std::lock_guard guard(books_);
        for (auto &[id, p] : pinned)
            if (p.exposed_to == owner && p.key == key) return true;
        return false;
    }
    size_t pinned_count() {
        std::lock_guard guard(books_);
        return pinned.size();
    }
    bool any_pinned_in(uint64_t start, uint64_t length) {
        std::lock_guard guard(books_);
        for (auto &[id, p] : pinned)
            if (p.start < start + length && start < p.start + p.length) return true;
        return false;
    }

    std::map<uint64_t, Pinned> pinned;
    int pins = 0, unpins = 0, revokes = 0, allocations = 0, frees = 0;
    int fail_pins = 0, fail_exposes = 0, fail_revokes = 0;
    Status fail_status = Status::bad_address;
    size_t limit = 0;
    std::function<void()> before_pin, before_expose, before_revoke;

  private:
    void called() { EXPECT_EQ(locks_held, 0) << "called with the cache's lock held"; }

    std::mutex mutex_, books_;
    uint64_t next_id_ = 0, next_key_ = 1000;
};

constexpr uint64_t page = 4096;
constexpr uint64_t base = 0x10000000;
constexpr uint32_t local_rw = local_read | local_write;

class RegCache : public ::testing::Test {
  protected:
    void SetUp() override { ASSERT_TRUE(cache.init({})); }
    Entry *get(uint64_t start, uint64_t length, uint32_t rights, Owner *owner) {
        Entry *entry = nullptr;
        EXPECT_EQ(cache.acquire(start, length, rights, owner, entry), Status::ok);
        return entry;
    }
    Books books;
    Cache cache{books};
    Owner a, b;
};

TEST_F(RegCache, RegisteringAgainIsAHitAndPinsNothing) {
    Entry *first = get(base, page, local_rw, &a);
    cache.release(first);
    EXPECT_EQ(books.pinned_count(), 1u);
    Entry *second = get(base, page, local_rw, &a);
    EXPECT_EQ(second, first);
    EXPECT_EQ(books.pins, 1);
    EXPECT_EQ(cache.counters().hits, 1u);
    cache.release(second);
}

TEST_F(RegCache, LiveEntriesAreSharedAndCounted) {
    Entry *first = get(base, page, local_read, &a);
    Entry *second = get(base, page, local_read, &b);
    EXPECT_EQ(first, second);
    cache.release(first);
    cache.flush_all();
    EXPECT_EQ(books.pinned_count(), 1u) << "still held by the second user";
    cache.release(second);
    cache.flush_all();
    EXPECT_EQ(books.pinned_count(), 0u);
}

TEST_F(RegCache, RightsMustMatchExactly) {
    cache.release(get(base, page, local_rw, &a));
    Entry *read = get(base, page, local_read, &a);
    EXPECT_EQ(read->rights(), local_read);
    EXPECT_EQ(books.pins, 2);
    cache.release(read);
}

TEST_F(RegCache, LocalRangeInsideALargerEntryIsServedByIt) {
    Entry *whole = get(base, 16 * page, local_rw, &a);
    Entry *part = get(base + 3 * page + 17, 100, local_rw, &a);
    EXPECT_EQ(part, whole);
    Entry *beyond = get(base + 15 * page, 2 * page, local_rw, &a);
    EXPECT_NE(beyond, whole);
    EXPECT_EQ(cache.counters().containing, 1u);
    cache.release(whole);
    cache.release(part);
    cache.release(beyond);
}

TEST_F(RegCache, RemoteEntryIsNeverWiderThanAsked) {
    cache.release(get(base, 16 * page, local_read | remote_read, &a));
    Entry *part = get(base + page, page, local_read | remote_read, &a);
    EXPECT_EQ(part->start(), base + page);
    EXPECT_EQ(part->length(), page);
    EXPECT_EQ(books.pins, 2);
    cache.release(part);
}

TEST_F(RegCache, RemoteAccessEndsWithReleaseAlthoughThePagesStayLocked) {
    Entry *entry = get(base, page, local_read | remote_read, &a);
    const uint64_t key = entry->key();
    EXPECT_TRUE(books.reachable(&a, key));
    cache.release(entry);
    EXPECT_FALSE(books.reachable(&a, key));
    EXPECT_EQ(books.pinned_count(), 1u);
    entry = get(base, page, local_read | remote_read, &b);
    EXPECT_EQ(books.pins, 1) << "exposed again without locking";
    EXPECT_NE(entry->key(), key);
    EXPECT_TRUE(books.reachable(&b, entry->key()));
    EXPECT_FALSE(books.reachable(&a, entry->key()));
    cache.release(entry);
}

TEST_F(RegCache, EveryPeerHasItsOwnExposure) {
    Entry *first = get(base, page, local_write | remote_write, &a);
    Entry *second = get(base, page, local_write | remote_write, &b);
    EXPECT_NE(first->key(), second->key());
    EXPECT_FALSE(books.reachable(&b, first->key()));
    EXPECT_EQ(get(base, page, local_write | remote_write, &a), first);
    cache.release(first);
    EXPECT_TRUE(books.reachable(&a, first->key())) << "one of two references is left";
    cache.release(first);
    cache.release(second);
}

TEST_F(RegCache, FailedRevocationTakesTheRegionFromTheNic) {
    Entry *entry = get(base, page, local_read | remote_read, &a);
    books.fail_revokes = 1;
    cache.release(entry);
    EXPECT_EQ(books.pinned_count(), 0u);
}

TEST_F(RegCache, FailedExposureFallsBackToANewRegistration) {
    cache.release(get(base, page, local_read | remote_read, &a));
    books.fail_exposes = 1;
    Entry *entry = get(base, page, local_read | remote_read, &a);
    EXPECT_EQ(books.pins, 2);
    EXPECT_EQ(books.pinned_count(), 1u);
    cache.release(entry);
}

TEST_F(RegCache, InvalidationOfAnIdleEntryUnpinsIt) {
    cache.release(get(base, page, local_rw, &a));
    EXPECT_EQ(cache.invalidate(base, page), 1u);
    EXPECT_EQ(books.pinned_count(), 0u);
    EXPECT_EQ(cache.invalidate(base, page), 0u);
}

TEST_F(RegCache, PartialOverlapCountsAndAdjacencyDoesNot) {
    cache.release(get(base + page, 4 * page, local_rw, &a));
    EXPECT_EQ(cache.invalidate(base, page), 0u);
    EXPECT_EQ(cache.invalidate(base + 5 * page, page), 0u);
    EXPECT_EQ(cache.invalidate(base + 5 * page - 1, 1), 1u);
    cache.release(get(base + page, 4 * page, local_rw, &a));
    EXPECT_EQ(cache.invalidate(base, page + 1), 1u);
    cache.release(get(base + page, 4 * page, local_rw, &a));
    EXPECT_EQ(cache.invalidate(base + 2 * page, 1), 1u) << "inside";
    cache.release(get(base + page, 4 * page, local_rw, &a));
    EXPECT_EQ(cache.invalidate(base, UINT64_MAX - base), 1u) << "around, to the end of the address space";
}

TEST_F(RegCache, InvalidationOfALiveEntryKillsItAndUnpinsItOnce) {
    Entry *entry = get(base, page, local_rw, &a);
    EXPECT_TRUE(entry->usable());
    EXPECT_EQ(cache.invalidate(base, 1), 1u);
    EXPECT_FALSE(entry->usable());
    EXPECT_EQ(books.pinned_count(), 0u);
    Entry *fresh = get(base, page, local_rw, &a);
    EXPECT_NE(fresh, entry);
    EXPECT_TRUE(fresh->usable());
    cache.release(entry);
    cache.release(fresh);
    EXPECT_EQ(books.pins, 2);
    cache.flush_all();
    EXPECT_EQ(books.unpins, 2);
}

TEST_F(RegCache, InvalidationNeitherAllocatesNorFrees) {
    for (int i = 0; i < 200; ++i) cache.release(get(base + i * page, page, local_rw, &a));
    Entry *live = get(base + 7 * page, page, local_rw, &a);
    const int allocations = books.allocations, frees = books.frees;
    EXPECT_EQ(cache.invalidate(base, 200 * page), 200u);
    EXPECT_EQ(books.allocations, allocations);
    EXPECT_EQ(books.frees, frees);
    cache.release(live);
    EXPECT_EQ(books.pinned_count(), 0u);
}

TEST_F(RegCache, InvalidationDuringThePinIsNotMissed) {
    books.before_pin = [&] { EXPECT_EQ(cache.invalidate(base, page), 1u); };
    Entry *entry = nullptr;
    EXPECT_EQ(cache.acquire(base, page, local_rw, &a, entry), Status::bad_address);
    EXPECT_EQ(books.pinned_count(), 0u);
    EXPECT_EQ(cache.counters().count, 0u);
}

TEST_F(RegCache, InvalidationDuringRevocationOrExposureLeavesNothingPinned) {
    Entry *entry = get(base, page, local_read | remote_read, &a);
    books.before_revoke = [&] { EXPECT_EQ(cache.invalidate(base, page), 1u); };
    cache.release(entry);
    EXPECT_EQ(books.pinned_count(), 0u);
    books.before_revoke = nullptr;

    cache.release(get(base, page, local_read | remote_read, &a));
    books.before_expose = [&] { EXPECT_EQ(cache.invalidate(base, page), 1u); };
    EXPECT_EQ(cache.acquire(base, page, local_read | remote_read, &a, entry), Status::bad_address);
    EXPECT_EQ(books.pinned_count(), 0u);
    EXPECT_EQ(cache.counters().count, 0u);
}

TEST_F(RegCache, FailedPinLeavesNothingBehind) {
    books.fail_pins = 1;
    Entry *entry = nullptr;
    EXPECT_EQ(cache.acquire(base, page, local_rw, &a, entry), Status::bad_address);
    EXPECT_EQ(entry, nullptr);
    EXPECT_EQ(cache.counters().count, 0u);
    EXPECT_EQ(cache.counters().bytes, 0u);
    EXPECT_EQ(cache.invalidate(base, page), 0u);
}

TEST_F(RegCache, OutOfResourcesEvictsTheIdleAndAsksOnceMore) {
    books.limit = 4;
    for (int i = 0; i < 4; ++i) cache.release(get(base + 2 * i * page, page, local_rw, &a));
    Entry *entry = get(base + 100 * page, page, local_rw, &a);
    EXPECT_EQ(books.pinned_count(), 1u);
    EXPECT_EQ(cache.counters().retries, 1u);
    cache.release(entry);
}

TEST_F(RegCache, BadRangesAreRefused) {
    Entry *entry = nullptr;
    EXPECT_EQ(cache.acquire(base, 0, local_rw, &a, entry), Status::bad_address);
    EXPECT_EQ(cache.acquire(UINT64_MAX - 10, 12, local_rw, &a, entry), Status::bad_address);
    EXPECT_EQ(cache.acquire(UINT64_MAX - 10, 11, local_rw, &a, entry), Status::ok);
    cache.release(entry);
}

TEST_F(RegCache, FlushDropsWhatOnlyThatOwnerUsed) {
    cache.release(get(base, page, local_rw, &a));
    cache.release(get(base + page, page, local_rw, &a));
    cache.release(get(base + page, page, local_rw, &b)); // shared now
    cache.release(get(base + 2 * page, page, local_rw, &b));
    cache.flush(&a);
    EXPECT_EQ(books.pinned_count(), 2u);
    cache.flush(&b);
    EXPECT_EQ(books.pinned_count(), 1u);
    cache.flush_all();
    EXPECT_EQ(books.pinned_count(), 0u);
}

TEST(RegCacheLimits, CountAndBytesAreBoundedLeastRecentlyUsedFirst) {
    Books books;
    Owner owner;
    {
        Cache cache(books);
        ASSERT_TRUE(cache.init({.max_count = 8, .max_bytes = 64 * page}));
        Entry *entry = nullptr;
        auto touch = [&](uint64_t n, uint64_t pages) {
            ASSERT_EQ(cache.acquire(base + n * 256 * page, pages * page, local_rw, &owner, entry), Status::ok);
            cache.release(entry);
        };
        for (int i = 0; i < 8; ++i) touch(i, 1);
        touch(0, 1); // 1 is the oldest now
        touch(8, 1);
        EXPECT_EQ(cache.counters().count, 8u);
        EXPECT_FALSE(books.any_pinned_in(base + 256 * page, page));
        EXPECT_TRUE(books.any_pinned_in(base, page));
        touch(9, 60);
        EXPECT_LE(cache.counters().bytes, 64 * page);
        for (uint64_t i = 0; i < 10000; ++i) touch(i % 97, 1);
        EXPECT_LE(cache.counters().count, 8u);
        EXPECT_EQ(cache.counters().count, books.pinned_count());
    }
    EXPECT_EQ(books.pinned_count(), 0u);
    EXPECT_EQ(books.allocations, books.frees);
}

TEST(RegCacheLimits, LiveEntriesMayExceedTheBounds) {
    Books books;
    Owner owner;
    Cache cache(books);
    ASSERT_TRUE(cache.init({.max_count = 2, .max_bytes = 4 * page}));
    std::vector<Entry *> live(10);
    for (size_t i = 0; i < live.size(); ++i)
        ASSERT_EQ(cache.acquire(base + 2 * i * page, page, local_rw, &owner, live[i]), Status::ok);
    for (Entry *entry : live) cache.release(entry);
    EXPECT_LE(cache.counters().count, 2u);
}

TEST(IntervalTree, AgreesWithASearchOfAll) {
    std::mt19937_64 random(7);
    IntervalTree tree;
    std::vector<std::unique_ptr<Interval>> all;
    for (int step = 0; step < 20000; ++step) {
        if (all.size() < 300 && random() % 3) {
            auto node = std::make_unique<Interval>();
            node->first = random() % 4000;
            node->last = node->first + random() % 50;
            tree.insert(node.get());
            all.push_back(std::move(node));
        } else if (!all.empty()) {
            const size_t i = random() % all.size();
            tree.remove(all[i].get());
            std::swap(all[i], all.back());
            all.pop_back();
        }
        const uint64_t first = random() % 4000, last = first + random() % 20;
        bool overlap = false, contain = false;
        for (auto &node : all) {
            overlap |= node->first <= last && node->last >= first;
            contain |= node->first <= first && node->last >= last;
        }
        Interval *found = tree.overlapping(first, last);
        ASSERT_EQ(found != nullptr, overlap);
        if (found) { ASSERT_TRUE(found->first <= last && found->last >= first); }
        found = tree.containing(first, last, 1000000, [](Interval *) { return true; });
        ASSERT_EQ(found != nullptr, contain);
        if (found) { ASSERT_TRUE(found->first <= first && found->last >= last); }
    }
}

// Four threads register, release, invalidate and flush over the same few ranges. Whatever they do, nothing is pinned twice
// or left behind, and a released exposure is never reachable.
TEST(RegCacheStress, ThreadsLeaveNothingBehind) {
    Books books;
    {
        Cache cache(books);
        ASSERT_TRUE(cache.init({.max_count = 24, .max_bytes = 128 * page}));
        auto work = [&](uint64_t seed) {
            std::mt19937_64 random(seed);
            Owner owner;
            for (int i = 0; i < 20000; ++i) {
                const uint64_t start = base + random() % 40 * page, length = (1 + random() % 6) * page;
                switch (random() % 16) {
                case 0: cache.invalidate(start, length); break;
                case 1: cache.flush(&owner); break;
                default: {
                    const bool remote = random() % 2;
                    Entry *entry = nullptr;
                    const Status status =
                        cache.acquire(start, length, remote ? local_read | remote_read : local_rw, &owner, entry);
                    if (status != Status::ok) break; // invalidated by another thread meanwhile
                    const uint64_t key = entry->key();
                    if (random() % 4 == 0) std::this_thread::yield();
                    cache.release(entry);
                    if (remote) { ASSERT_FALSE(books.reachable(&owner, key)); }
                }
                }
            }
            cache.flush(&owner);
        };
        std::vector<std::thread> threads;
        for (uint64_t i = 1; i <= 4; ++i) threads.emplace_back(work, i);
        for (auto &thread : threads) thread.join();
        EXPECT_EQ(cache.counters().count, books.pinned_count());
        EXPECT_EQ(cache.counters().count, cache.counters().idle);
    }
    EXPECT_EQ(books.pinned_count(), 0u);
    EXPECT_EQ(books.pins, books.unpins);
}

} // namespace
