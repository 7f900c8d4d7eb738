// SPDX-License-Identifier: GPL-2.0-or-later
//
// regcache_books.h: a backend for tests of the registration cache that keeps its own books: what is pinned, what is
// exposed to whom, and whether the cache's lock is held while it is called.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "provider/regcache/regcache.h"

namespace regcache {

inline thread_local int locks_held = 0;

inline uint32_t numbered_thread() {
    static std::atomic<uint32_t> threads{0};
    static thread_local const uint32_t number = threads++;
    return number;
}

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
        ++locks;
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
        ++pauses;
        std::this_thread::yield();
    }
    uint32_t thread_number() override { return numbered_thread(); }
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
        ++exposes;
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
        if (before_unpin) before_unpin();
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
    bool is_pinned(uint64_t key) {
        std::lock_guard guard(books_);
        for (auto &[id, p] : pinned)
            if (p.key == key) return true;
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
    int pins = 0, unpins = 0, revokes = 0, exposes = 0;
    std::atomic<int> allocations{0}, frees{0}, locks{0};
    std::atomic<int> pauses{0};  // somebody waits for another thread
    int fail_pins = 0, fail_exposes = 0, fail_revokes = 0;
    Status fail_status = Status::bad_address;
    size_t limit = 0;
    std::function<void()> before_pin, before_expose, before_revoke, before_unpin;

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

}  // namespace regcache
