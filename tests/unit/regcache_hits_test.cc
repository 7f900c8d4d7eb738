// SPDX-License-Identifier: GPL-2.0-or-later
//
// Hits without the lock: what they may find, that they take no lock and see their own death, and that nobody takes an
// entry away that a hit has just got hold of. Then the parts that they are made of.
#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "regcache_books.h"

using namespace regcache;

namespace {

TEST_F(RegCache, AnExactHitTakesNoLock) {
    cache.release(get(base, page, local_rw, &a));
    const int locks = books.locks;
    for (int i = 0; i < 100; ++i) cache.release(get(base, page, local_rw, &a));
    EXPECT_EQ(books.locks, locks);
    cache.release(get(base, page, local_rw, &b));  // no longer only a's: that is noted once
    EXPECT_EQ(books.locks, locks + 1);
    for (int i = 0; i < 100; ++i) cache.release(get(base, page, local_rw, i % 2 ? &a : &b));
    EXPECT_EQ(books.locks, locks + 1);
    EXPECT_EQ(cache.counters().hits, 201u);
}

TEST_F(RegCache, AHitIsNotHeldUpByWhoeverHasTheLock) {
    cache.release(get(base, page, local_rw, &a));
    books.lock();
    std::thread other([&] {
        Entry *entry = nullptr;
        EXPECT_EQ(cache.acquire(base, page, local_rw, &a, entry), Status::ok);
        cache.release(entry);
    });
    other.join();  // would never end
    books.unlock();
}

TEST_F(RegCache, AnEntryMayBeReleasedByAnotherThread) {
    for (int i = 0; i < 20; ++i) {
        Entry *entry = get(base, page, local_rw, &a);
        std::thread([&] { cache.release(entry); }).join();
    }
    EXPECT_EQ(cache.counters().idle, 1u);
    cache.flush_all();
    EXPECT_EQ(books.pinned_count(), 0u);
}

TEST_F(RegCache, AHitFindsNothingThatWasInvalidated) {
    for (int i = 0; i < 1000; ++i) {
        Entry *entry = get(base, page, local_rw, &a);
        EXPECT_EQ(books.pins, i + 1);
        cache.invalidate(base, page);
        EXPECT_FALSE(entry->usable());
        cache.release(entry);
    }
    EXPECT_EQ(books.allocations, 2) << "released ones are used again";
    EXPECT_EQ(books.pinned_count(), 0u);
}

TEST(RegCacheLimitsOfHits, BeyondTheBoundsWhatIsReleasedGoesAtOnce) {
    Books books;
    Owner owner;
    Cache cache(books);
    ASSERT_TRUE(cache.init({.max_count = 2, .max_bytes = 64 * page}));
    std::vector<Entry *> held(6);
    for (size_t i = 0; i < held.size(); ++i)
        ASSERT_EQ(cache.acquire(base + 2 * i * page, page, local_rw, &owner, held[i]), Status::ok);
    Entry *again = nullptr;
    ASSERT_EQ(cache.acquire(base, page, local_rw, &owner, again), Status::ok);
    cache.release(again);  // still held
    EXPECT_EQ(books.pinned_count(), 6u);
    for (size_t i = 0; i < held.size(); ++i) {
        cache.release(held[i]);
        EXPECT_EQ(books.pinned_count(), std::max<size_t>(2, 5 - i));
    }
    const int locks = books.locks;  // and within them again it is as before
    cache.release([&] {
        EXPECT_EQ(cache.acquire(base + 10 * page, page, local_rw, &owner, again), Status::ok);
        return again;
    }());
    EXPECT_EQ(books.locks, locks);
}

TEST(RegCacheLimitsOfHits, MoreHeldThanThereIsRoomInTheIndexIsOnlySlower) {
    Books books;
    Owner owner;
    Cache cache(books);
    ASSERT_TRUE(cache.init({.max_count = 4, .max_bytes = 1 << 30}));
    std::vector<Entry *> held(1000);
    for (size_t i = 0; i < held.size(); ++i)
        ASSERT_EQ(cache.acquire(base + 2 * i * page, page, local_rw, &owner, held[i]), Status::ok);
    for (size_t i = 0; i < held.size(); ++i) {
        Entry *again = nullptr;
        ASSERT_EQ(cache.acquire(base + 2 * i * page, page, local_rw, &owner, again), Status::ok);
        EXPECT_EQ(again, held[i]);
        cache.release(again);
    }
    for (Entry *entry : held) cache.release(entry);
    EXPECT_LE(books.pinned_count(), 4u);
}

// Four threads hit, miss and evict all the time; nothing is invalidated. So whatever a thread holds must be pinned,
// under the key that it sees. Every other entry is released by another thread than the one which acquired it.
TEST(RegCacheHits, EvictionNeverTakesWhatAHitHasGotHoldOf) {
    Books books;
    {
        Cache cache(books);
        ASSERT_TRUE(cache.init({.max_count = 5, .max_bytes = 1 << 30}));
        std::array<std::atomic<Entry *>, 4> mailbox{};
        std::array<Owner, 4> owners;
        auto work = [&](uint64_t number) {
            std::mt19937_64 random(number);
            for (int i = 0; i < 20000; ++i) {
                const uint64_t start = base + random() % 9 * 2 * page;
                Entry *entry = nullptr;
                ASSERT_EQ(cache.acquire(start, page, local_rw, &owners[number], entry), Status::ok);
                ASSERT_EQ(entry->start(), start);
                ASSERT_TRUE(entry->usable());
                ASSERT_TRUE(books.is_pinned(entry->key()));
                if (random() % 16 == 0) std::this_thread::yield();
                ASSERT_TRUE(books.is_pinned(entry->key()));
                if (random() % 2) entry = mailbox[random() % 4].exchange(entry);
                if (!entry) continue;
                ASSERT_TRUE(entry->usable());
                ASSERT_TRUE(books.is_pinned(entry->key()));
                cache.release(entry);
            }
        };
        std::vector<std::thread> threads;
        for (uint64_t i = 0; i < 4; ++i) threads.emplace_back(work, i);
        for (auto &thread : threads) thread.join();
        for (auto &slot : mailbox)
            if (Entry *entry = slot.exchange(nullptr)) cache.release(entry);
        const Counters now = cache.counters();
        EXPECT_LE(now.count, 5u);
        EXPECT_EQ(now.count, now.idle);
        EXPECT_EQ(now.count, books.pinned_count());
        EXPECT_GT(now.hits, 1000u);
        EXPECT_GT(now.evictions, 1000u);
        for (Owner &owner : owners) cache.flush(&owner);
    }
    EXPECT_EQ(books.pinned_count(), 0u);
}

// Two threads hit one range while a third takes it away again and again: the hot path against the callback, and nothing
// else. What was acquired before the callback began must be dead when it has returned, and out of the NIC.
TEST(RegCacheHits, WhatIsHeldIsDeadAndUnpinnedWhenInvalidationReturns) {
    Books books;
    {
        Cache cache(books);
        ASSERT_TRUE(cache.init({}));
        std::array<Owner, 2> owners;
        std::atomic<bool> stop{false};
        std::atomic<uint64_t> rounds{0};  // of invalidation, finished
        std::atomic<uint64_t> died{0};
        auto hit = [&](size_t number) {
            while (!stop) {
                Entry *entry = nullptr;
                if (cache.acquire(base, page, local_rw, &owners[number], entry) != Status::ok) continue;
                const uint64_t before = rounds;
                if (died < 200) {  // hold on until a whole round has begun and ended since
                    while (!stop && rounds < before + 2) std::this_thread::yield();
                    if (!stop) {
                        EXPECT_FALSE(entry->usable());
                        EXPECT_FALSE(books.is_pinned(entry->key()));
                        ++died;
                    }
                }
                cache.release(entry);
            }
        };
        std::thread first(hit, 0), second(hit, 1);
        while (rounds < 3000 || died < 200) {
            cache.invalidate(base, page);
            ++rounds;
            if (rounds % 8 == 0) std::this_thread::yield();
        }
        stop = true;
        first.join();
        second.join();
        cache.invalidate(base, page);
        EXPECT_EQ(books.pinned_count(), 0u);
        EXPECT_EQ(cache.counters().count, 0u);
    }
    EXPECT_EQ(books.pins, books.unpins);
    EXPECT_EQ(books.allocations, books.frees);
}

TEST(RegCacheIndex, AgreesWithAMap) {
    std::mt19937_64 random(11);
    Index index;
    std::vector<char> memory(Index::bytes(200));
    index.init(memory.data(), 200);
    std::multimap<uint32_t, uint32_t> all;  // hash to index
    for (uint32_t step = 0; step < 50000; ++step) {
        // Few hashes, close to each other and around the end of the table: long runs, many equal.
        const uint32_t hash = 0xfffffff0u + static_cast<uint32_t>(random() % 48) * (random() % 4 ? 1 : 0x10000);
        if (all.size() < 150 && random() % 2) {
            ASSERT_TRUE(index.insert(hash, step));
            all.emplace(hash, step);
        } else if (!all.empty()) {
            auto it = std::next(all.begin(), static_cast<std::ptrdiff_t>(random() % all.size()));
            index.remove(it->first, it->second);
            all.erase(it);
        }
        size_t found = 0;
        const auto range = all.equal_range(hash);
        index.find(hash, [&](uint32_t n) {
            ++found;
            EXPECT_TRUE(std::any_of(range.first, range.second, [n](auto &e) { return e.second == n; }));
            return false;
        });
        ASSERT_EQ(found, static_cast<size_t>(std::distance(range.first, range.second)));
    }
}

TEST(RegCachePool, EveryIndexHasItsOwnEntryAndCounts) {
    EntryPool pool;
    std::vector<std::unique_ptr<char[]>> memory;
    std::vector<Entry *> entries;
    for (uint32_t i = 0; i < 5000; ++i) {
        Entry *entry = pool.take();
        if (!entry) {
            memory.push_back(std::make_unique<char[]>(EntryPool::chunk_bytes(pool.chunks())));
            pool.grow(memory.back().get());
            entry = pool.take();
        }
        ASSERT_EQ(&pool.at(i), entry);
        ASSERT_EQ(reinterpret_cast<uintptr_t>(entry) % 64, 0u);
        entries.push_back(entry);
        for (uint32_t row = 0; row <= EntryPool::rows; ++row) ASSERT_EQ(pool.count(i, row)++, 0u);
        ASSERT_EQ(pool.sum(i), EntryPool::rows) << "and not the exact count";
    }
    for (uint32_t i = 0; i < 5000; ++i)
        for (uint32_t row = 0; row <= EntryPool::rows; ++row) ASSERT_EQ(pool.count(i, row), 1u);
    pool.give(entries[7]);
    EXPECT_EQ(pool.take(), entries[7]);
    EXPECT_EQ(memory.size(), pool.chunks());
}

}  // namespace
