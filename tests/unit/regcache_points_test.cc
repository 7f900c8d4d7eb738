// SPDX-License-Identifier: GPL-2.0-or-later
//
// The moments at which a hit, a release and an eviction may overtake each other, one by one: at a named point of one,
// the other happens. On one thread, so that each test is the same every time; what they do there takes no lock, or the
// point is outside it.
#include <functional>
#include <map>
#include <string>

#include "regcache_books.h"

namespace regcache {

std::map<std::string, std::function<void()>> at_points;  // each happens once

void at_point(const char *name) {
    const auto found = at_points.find(name);
    if (found == at_points.end()) return;
    const auto happen = std::move(found->second);
    at_points.erase(found);
    happen();
}

namespace {

class RegCachePoints : public RegCache {
  protected:
    void TearDown() override {
        EXPECT_TRUE(at_points.empty()) << "no way led there";
        at_points.clear();
        cache.flush_all();
        EXPECT_EQ(books.pinned_count(), 0u);
        EXPECT_EQ(cache.counters().count, 0u);
        EXPECT_LE(books.allocations, 2) << "entries were lost";
    }
};

TEST_F(RegCachePoints, WhatIsEvictedBeforeTheHitHasCountedIsNotHit) {
    cache.release(get(base, page, local_rw, &a));
    at_points["hit_has_candidate"] = [&] { cache.flush_all(); };
    Entry *entry = get(base, page, local_rw, &a);
    EXPECT_TRUE(entry->usable());
    EXPECT_TRUE(books.is_pinned(entry->key()));
    EXPECT_EQ(books.pins, 2);
    cache.release(entry);
}

TEST_F(RegCachePoints, WhatAHitHasCountedIsNotEvicted) {
    cache.release(get(base, page, local_rw, &a));
    at_points["hit_has_counted"] = [&] {
        cache.flush_all();
        EXPECT_EQ(books.unpins, 0);
    };
    Entry *entry = get(base, page, local_rw, &a);
    EXPECT_TRUE(entry->usable());
    EXPECT_EQ(books.pins, 1);
    cache.release(entry);
}

TEST_F(RegCachePoints, WhatIsInvalidatedAfterAHitHasCountedIsNotHitAndIsUsedAgain) {
    for (int i = 0; i < 200; ++i) {
        cache.release(get(base, page, local_rw, &a));
        at_points["hit_has_counted"] = [&] {
            EXPECT_EQ(cache.invalidate(base, page), 1u);
            EXPECT_EQ(books.pinned_count(), 0u);
        };
        Entry *entry = get(base, page, local_rw, &a);
        EXPECT_TRUE(entry->usable());
        EXPECT_EQ(books.pinned_count(), 1u);
        cache.release(entry);
        cache.flush_all();
    }
}

TEST_F(RegCachePoints, AnEntryThatHasBecomeAnotherOneIsNotTaken) {
    for (const uint32_t rights : {uint32_t{local_rw}, uint32_t{local_rw | remote_read}}) {
        Entry *const before = get(base, page, local_rw, &a);
        cache.release(before);
        Entry *other = nullptr;
        at_points["hit_has_candidate"] = [&] {
            cache.flush_all();
            other = get(base + 8 * page, page, rights, &a);
            EXPECT_EQ(other, before);  // the same memory, in its second life
        };
        Entry *entry = get(base, page, local_rw, &a);
        EXPECT_NE(entry, other);
        EXPECT_EQ(entry->start(), base);
        EXPECT_TRUE(books.is_pinned(other->key()));
        EXPECT_EQ(cache.counters().idle, 0u);
        cache.release(entry);
        cache.release(other);
        EXPECT_EQ(cache.counters().idle, 2u) << "the mistake was taken back";
        cache.flush_all();
    }
}

TEST_F(RegCachePoints, AHitDuringTheLookForIdleOnesIsNotOverlooked) {
    cache.release(get(base, page, local_rw, &a));
    Entry *entry = nullptr;
    at_points["claim_has_looked"] = [&] { EXPECT_TRUE((entry = get(base, page, local_rw, &a))); };
    cache.flush_all();
    ASSERT_TRUE(entry);
    EXPECT_TRUE(entry->usable());
    EXPECT_TRUE(books.is_pinned(entry->key()));
    EXPECT_EQ(books.pins, 1);
    cache.release(entry);
}

TEST_F(RegCachePoints, AReleaseThatIsOvertakenLeavesTheNextLifeAlone) {
    Entry *entry = get(base, page, local_rw, &a), *next = nullptr;
    at_points["drop_has_counted"] = [&] {
        cache.invalidate(base, page);  // nobody holds it any more: it is recycled
        next = get(base + 8 * page, page, local_rw, &a);
    };
    cache.release(entry);
    ASSERT_EQ(next, entry);
    EXPECT_TRUE(next->usable());
    EXPECT_TRUE(books.is_pinned(next->key()));
    cache.flush_all();
    EXPECT_TRUE(next->usable()) << "still held";
    cache.release(next);
}

// And when that next life has ended, too, but is held: it is not the late one's to recycle.
TEST_F(RegCachePoints, AReleaseThatIsOvertakenTwiceRecyclesNothingThatIsHeld) {
    Entry *entry = get(base, page, local_rw, &a), *next = nullptr;
    at_points["drop_has_counted"] = [&] {
        cache.invalidate(base, page);
        next = get(base + 8 * page, page, local_rw, &a);
        cache.invalidate(base + 8 * page, page);
    };
    cache.release(entry);
    ASSERT_EQ(next, entry);
    Entry *third = get(base, page, local_rw, &a);
    EXPECT_NE(third, next);
    EXPECT_FALSE(next->usable());
    cache.release(next);
    cache.release(third);
}

}  // namespace
}  // namespace regcache
