// SPDX-License-Identifier: GPL-2.0-or-later
//
// regcache.h: the registration cache: which ranges of the process are locked and known to the NIC, so that registering a
// buffer again costs a look-up.
//
// Concepts
//   Entry    one registration at the NIC, with exact rights. Live while somebody holds it (acquire .. release), else idle.
//   Owner    a connection. Entries that only one owner has used leave with it (flush).
//   local    an entry whose rights are local: shared by all owners; serves any range inside it with the same rights.
//   remote   an entry with a remote right: for one owner's peer at a time, for exactly its range and rights. On release the
//            peer's access ends before release returns; locked it stays.
//
// What it promises
//   - Rights are never wider than asked; a remote entry is never wider than the range that was asked for.
//   - The lock is never held across a call to the backend's work (pin, expose, revoke, unpin, allocate).
//   - invalidate() neither allocates nor frees, honours partial overlap (adjacency is none), and may run on any thread,
//     also while the range is live: such an entry dies (usable() is false from then on) and leaves the NIC. When it
//     returns nothing of the range is pinned any more, whichever thread was at it (pinning, exposing, evicting).
//   - Bounded: beyond max_count or max_bytes idle entries are evicted, least recently used first. Live ones are not, and
//     do not fail for the bound's sake. When the backend is out of resources, idle entries go and it is asked once more.
//   - A pin that fails leaves nothing behind.
//
// Portable: no operating system header, no exceptions. The backend supplies the lock and the memory as well.
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

enum class Status { ok, bad_address, no_resources, failed };

// What the backend knows a registration by.
struct Region {
    uint64_t id = 0;
    uint64_t key = 0;
};

class Owner;

class Backend {
  public:
    virtual void lock() = 0;
    virtual void unlock() = 0;
    virtual void *allocate(size_t bytes) = 0;
    virtual void free(void *memory) = 0;
    // Lets other threads run for a moment.
    virtual void pause() = 0;
    // Secures, locks and registers. With a remote right also exposes it to the owner's peer.
    virtual Status pin(uint64_t start, uint64_t length, uint32_t rights, Owner *owner, Region &region) = 0;
    // Exposes a revoked region to the owner's peer; the key changes.
    virtual Status expose(Region &region, uint32_t rights, Owner *owner) = 0;
    // Ends the peer's access, whatever kind of NIC it takes. The pages stay locked.
    virtual Status revoke(Region &region) = 0;
    // Deregisters, unlocks, unsecures. Cannot fail; uses no heap.
    virtual void unpin(Region &region) = 0;

  protected:
    ~Backend() = default;
};

class Entry;
struct Link {
    Link *prev = nullptr, *next = nullptr;
    Entry *entry = nullptr; // whose link it is; nullptr in a list's head
};

class Entry : private Interval {
  public:
    Entry() { lru_.entry = owned_.entry = this; }
    Entry(const Entry &) = delete;
    Entry &operator=(const Entry &) = delete;
    uint64_t start() const { return first; }
    uint64_t length() const { return last - first + 1; }
    uint32_t rights() const { return rights_; }
    uint64_t key() const { return region_.key; }
    // False once its memory has been taken away: it must not be used for new operations.
    bool usable() const { return !dead_.load(std::memory_order_acquire); }

  private:
    friend class Cache;
    enum class State : uint8_t {
        free,     // in the free list
        building, // its maker pins it
        ready,    // live or idle
        busy,     // being exposed or revoked by the one who holds it
        dying,    // invalidated while live; its invalidator unpins it
        gone,     // it has been unpinned; only references are left
    };
    Region region_;
    Owner *owner_ = nullptr; // the only one so far; nullptr: several
    Link lru_, owned_;
    Entry *chain_ = nullptr; // hash chain; also free list and work lists
    uint32_t rights_ = 0;
    uint32_t references_ = 0;
    State state_ = State::free;
    bool hashed_ = false;
    bool leaving_ = false; // in Cache::leaving_
    std::atomic<bool> dead_{false};
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

struct Config {
    uint32_t max_count = 4096;
    uint64_t max_bytes = 1ull << 30;
};

struct Counters {
    uint64_t hits = 0;          // exact
    uint64_t containing = 0;    // served by a larger entry
    uint64_t misses = 0;
    uint64_t exposes = 0;       // remote: found idle, exposed again
    uint64_t pin_failures = 0;
    uint64_t retries = 0;       // after an eviction for want of resources
    uint64_t evictions = 0;
    uint64_t invalidations = 0; // entries
    uint64_t live_invalidations = 0;
    uint64_t flushed = 0;
    uint64_t count = 0, idle = 0;
    uint64_t bytes = 0, peak_bytes = 0;
};

class Cache {
  public:
    explicit Cache(Backend &backend) : backend_(backend) {}
    ~Cache();
    Cache(const Cache &) = delete;
    Cache &operator=(const Cache &) = delete;

    // False: no memory.
    bool init(const Config &config);

    // length > 0, start + length - 1 must not wrap. With a remote right `owner` is whose peer gets it.
    Status acquire(uint64_t start, uint64_t length, uint32_t rights, Owner *owner, Entry *&entry);
    void release(Entry *entry);
    // Number of entries that overlapped.
    size_t invalidate(uint64_t start, uint64_t length);
    // Drops the idle entries that only this owner has used, and forgets the owner.
    void flush(Owner *owner);
    // Drops all idle entries.
    void flush_all();
    Counters counters();

  private:
    static constexpr size_t slab_entries = 64;
    static constexpr unsigned containment_effort = 16;
    struct Slab {
        Slab *next;
        Entry entries[slab_entries];
    };
    class Guard;

    static Entry *entry_of(Interval *node) { return static_cast<Entry *>(node); }
    size_t bucket(uint64_t start, uint64_t last, uint32_t rights) const;

    Entry *find_local(uint64_t first, uint64_t last, uint32_t rights);
    Entry *find_remote(uint64_t first, uint64_t last, uint32_t rights, Owner *owner);
    Status build(uint64_t first, uint64_t last, uint32_t rights, Owner *owner, Entry *&entry);
    Status expose(Entry *entry, Owner *owner);
    Entry *new_entry();
    bool grow();

    void hold(Entry *entry, Owner *owner);
    void set_owner(Entry *entry, Owner *owner);
    void make_idle(Entry *entry);
    void unhash(Entry *entry);
    void withdraw(Entry *entry);
    void settle(Entry *entry);
    void recycle(Entry *entry);
    void collect_excess(uint64_t extra_count, uint64_t extra_bytes, Entry *&victims);
    void unpin_all(Entry *victims);

    Backend &backend_;
    Config config_;
    // All under the backend's lock.
    IntervalTree tree_;
    IntervalTree leaving_; // withdrawn, but perhaps not unpinned yet
    Entry **buckets_ = nullptr;
    size_t bucket_mask_ = 0;
    Link lru_; // idle entries, oldest first
    Entry *free_ = nullptr;
    Slab *slabs_ = nullptr;
    Counters counters_;
};

} // namespace regcache
