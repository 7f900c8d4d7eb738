// SPDX-License-Identifier: GPL-2.0-or-later
//
// entry.h: one registration in the cache, and the connection that uses it.
//
// An entry's memory is type-stable: it comes from a pool (entry_pool.h) that gives nothing back while the cache lives. So a
// thread that looks at an entry which has just been recycled looks at an entry, if perhaps at another one. regcache.h says
// how that is found out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "interval_tree.h"

namespace regcache {

// The values are those of SNIC_ACCESS_*.
enum Rights : uint32_t {
    local_read = 1,
    local_write = 2,
    remote_read = 4,
    remote_write = 8,
    remote_any = remote_read | remote_write,
};

// What the backend knows a registration by.
struct Region {
    uint64_t id = 0;
    uint64_t key = 0;
};

class Entry;
class Owner;

// In a circular list with a head.
struct Link {
    Link *prev = nullptr, *next = nullptr;
    Entry *entry = nullptr; // whose link it is; nullptr: a list's head
};

class Entry : private Interval {
  public:
    uint64_t start() const { return first; }
    uint64_t length() const { return last - first + 1; }
    uint32_t rights() const { return rights_; }
    uint64_t key() const { return region_.key; }
    // False once its memory has been taken away: it must not be used for new operations. For those who hold it.
    bool usable() const { return state_.load(std::memory_order_acquire) < State::doomed; }

    explicit Entry(uint32_t index) : index_(index) { ring_.entry = owned_.entry = this; }
    Entry(const Entry &) = delete;
    Entry &operator=(const Entry &) = delete;

  private:
    friend class Cache;
    friend class EntryPool;
    // Changes under the cache's lock only; read by anybody.
    enum class State : uint8_t {
        free,     // in the pool
        building, // its maker pins it
        ready,    // held or idle; the only state in which it can be acquired
        claimed,  // for a moment, under the lock: somebody finds out whether it is idle. Then ready again, or dying
        busy,     // being exposed or revoked by the one who holds it
        doomed,   // invalidated while building or busy; who builds or is busy unpins it
        dying,    // withdrawn; who did that unpins it
        gone,     // unpinned; only references are left, the last of which recycles it
    };

    // What a hit reads, with first and last: one cache line, written rarely.
    uint32_t rights_ = 0;
    std::atomic<Owner *> owner_{nullptr}; // the only one so far; nullptr: several. Written under the lock
    std::atomic<State> state_{State::free};
    std::atomic<bool> used_{false}; // since the eviction's hand passed
    bool hashed_ = false;           // in Cache::index_
    bool leaving_ = false;          // in Cache::leaving_
    const uint32_t index_;          // in the pool

    Region region_;
    Link ring_;  // all in the cache, for eviction; `next` alone: in a Stack
    Link owned_; // in its only owner's list
};
static_assert(sizeof(void *) != 8 || sizeof(Entry) == 128, "two cache lines");

// Entries that are not in the cache, chained by their ring links.
class Stack {
  public:
    bool empty() const { return top_ == nullptr; }
    Link *top() const { return top_; }
    void push(Link &link) {
        link.next = top_;
        top_ = &link;
    }
    Link *pop() {
        Link *link = top_;
        top_ = link->next;
        link->next = nullptr;
        return link;
    }

  private:
    Link *top_ = nullptr;
};

class Owner {
  public:
    Owner() { entries_.prev = entries_.next = &entries_; }
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
    uint64_t tag = 0; // the backend's

  private:
    friend class Cache;
    Link entries_; // used by this owner only; under the cache's lock
};

} // namespace regcache
