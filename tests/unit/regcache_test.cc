// SPDX-License-Identifier: GPL-2.0-or-later
//
// The registration cache against a backend that keeps its own books: what is pinned, what is exposed to whom, and
// whether the cache's lock is held while it is called.
#include <atomic>
#include <memory>
#include <random>
#include <vector>

#include "regcache_books.h"

using namespace regcache;

namespace {

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

// Another thread takes the memory away at that moment. It returns when nothing is pinned any more, not before.
class TakenAway {
  public:
    TakenAway(Cache &cache, Books &books) : cache_(cache), books_(books) {}
    ~TakenAway() { thread_.join(); }
    void operator()() {
        thread_ = std::thread([this] {
            EXPECT_EQ(cache_.invalidate(base, page), 1u);
            EXPECT_FALSE(books_.any_pinned_in(base, page));
            done_ = true;
        });
        // Until it has marked the entry and waits, as it must: the work must not go on before.
        const int pauses = books_.pauses;
        while (books_.pauses == pauses && !done_) std::this_thread::yield();
        EXPECT_FALSE(done_);
    }

  private:
    Cache &cache_;
    Books &books_;
    std::thread thread_;
    std::atomic<bool> done_{false};
};

TEST_F(RegCache, InvalidationDuringThePinIsNotMissedAndWaitsForIt) {
    Entry *entry = nullptr;
    {
        TakenAway taken(cache, books);
        books.before_pin = [&] { taken(); };
        EXPECT_EQ(cache.acquire(base, page, local_rw, &a, entry), Status::bad_address);
    }
    EXPECT_EQ(books.pinned_count(), 0u);
    EXPECT_EQ(cache.counters().count, 0u);
}

TEST_F(RegCache, InvalidationDuringRevocationOrExposureLeavesNothingPinned) {
    Entry *entry = get(base, page, local_read | remote_read, &a);
    {
        TakenAway taken(cache, books);
        books.before_revoke = [&] { taken(); };
        cache.release(entry);
    }
    EXPECT_EQ(books.pinned_count(), 0u);
    books.before_revoke = nullptr;

    cache.release(get(base, page, local_read | remote_read, &a));
    {
        TakenAway taken(cache, books);
        books.before_expose = [&] { taken(); };
        EXPECT_EQ(cache.acquire(base, page, local_read | remote_read, &a, entry), Status::bad_address);
    }
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
    cache.release(get(base + page, page, local_rw, &b));  // shared now
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
        touch(0, 1);  // 1 is the oldest now
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
        if (found) {
            ASSERT_TRUE(found->first <= last && found->last >= first);
        }
        found = tree.containing(first, last, 1000000, [](Interval *) { return true; });
        ASSERT_EQ(found != nullptr, contain);
        if (found) {
            ASSERT_TRUE(found->first <= first && found->last >= last);
        }
    }
}

// Four threads register, release, invalidate and flush over the same few ranges. Whatever they do, nothing is pinned
// twice or left behind, and a released exposure is never reachable.
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
                        if (status != Status::ok) break;  // invalidated by another thread meanwhile
                        const uint64_t key = entry->key();
                        if (random() % 4 == 0) std::this_thread::yield();
                        cache.release(entry);
                        if (remote) {
                            ASSERT_FALSE(books.reachable(&owner, key));
                        }
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

}  // namespace
