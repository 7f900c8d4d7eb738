// SPDX-License-Identifier: GPL-2.0-or-later
//
// regcache.h: the registration cache: which ranges of the process are locked and known to the NIC, so that registering a
// buffer again costs a look-up.
//
// Concepts
//   Entry    one registration at the NIC, with exact rights. Held by somebody (acquire .. release), else idle.
//   Owner    a connection. Entries that only one owner has used leave with it (flush).
//   local    an entry whose rights are local: shared by all owners; serves any range inside it with the same rights.
//   remote   an entry with a remote right: for one owner's peer at a time, for exactly its range and rights. On release the
//            peer's access ends before release returns; locked it stays.
//
// What it promises
//   - Rights are never wider than asked; a remote entry is never wider than the range that was asked for.
//   - The lock is never held across a call to the backend's work (pin, expose, revoke, unpin, allocate).
//   - invalidate() neither allocates nor frees, honours partial overlap (adjacency is none), and may run on any thread,
//     also while the range is held: such an entry dies (usable() is false from then on) and leaves the NIC. When it
//     returns nothing of the range is pinned any more, whichever thread was at it (pinning, exposing, evicting).
//   - Bounded: beyond max_count or max_bytes idle entries are evicted, those first that were not used since the last look
//     (second chance, a clock's hand over all entries). Held ones are not, and do not fail for the bound's sake. When the
//     backend is out of resources, idle entries go and it is asked once more.
//   - A pin that fails leaves nothing behind.
//   - Acquiring and releasing a local range that is cached exactly so takes no lock, waits for nobody, and writes only what
//     no other thread writes (unless more threads than EntryPool::rows do it): such hits scale with the processors.
//
// How a hit does without the lock, and why that is right
//   A hit asks the index for a candidate, counts itself in (in its thread's row, entry_pool.h), then looks at the entry's
//   state. If that is `ready`, it holds the entry; if not, it counts itself out again and goes the slow way, under the lock.
//   Who wants an entry to go does the two in the opposite order, under the lock: it changes the state, then sums the counts.
//   All four are sequentially consistent, so at least one of the two sees the other (as in Dekker's algorithm): either the
//   hit sees that the entry goes, or the sum contains the hit. Hence
//   - an entry is idle when, in state `claimed`, the sum is zero: it cannot become held. The sum is read row by row, not
//     at once, but once the state has changed no hit succeeds any more: what is added from then on is taken back in the
//     same row. So no order of reading makes the sum smaller than what is really held. Larger it may be, for a moment:
//     then an idle entry passes for a held one, which is safe, and it is asked about again.
//   - a held entry is not recycled, whatever else happens to it. So the holder may read its plain fields, which change only
//     between recycling and `ready`; a hit verifies range and rights after it has counted itself in, not before. It does not
//     matter that the index may be out of date, or that the entry was another one a moment ago.
//   - a release counts itself out, then looks at the state. If the entry is `gone` it may have been the last: it sums, under
//     the lock. Whoever sets `gone` sums afterwards as well. One of the two recycles it, by the same argument; not both, as
//     they do it under the lock. By the time a release looks, the entry may have been recycled, by another release; then it
//     looks at another life of the same memory, and what it does is right for that one, too.
//   Remote entries are counted under the lock alone (EntryPool::exact): their last release has to be known at once.
//
// Portable: no operating system header, no exceptions. The backend supplies the lock and the memory as well.
#pragma once

#include "entry.h"
#include "entry_pool.h"
#include "index.h"

namespace regcache {

enum class Status { ok, bad_address, no_resources, failed };

class Backend {
  public:
    virtual void lock() = 0;
    virtual void unlock() = 0;
    virtual void *allocate(size_t bytes) = 0;
    virtual void free(void *memory) = 0;
    // Lets other threads run for a moment.
    virtual void pause() = 0;
    // Of the calling thread. Threads with different numbers (modulo EntryPool::rows) do not disturb each other's hits.
    virtual uint32_t thread_number() = 0;
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

struct Config {
    uint32_t max_count = 4096;
    uint64_t max_bytes = 1ull << 30;
};

struct Counters {
    uint64_t hits = 0;          // exact. Some may be missing when more threads than EntryPool::rows hit at the same time
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
    // Looks at every entry.
    Counters counters();

  private:
    static constexpr unsigned containment_effort = 16;
    using State = Entry::State;
    class Guard;

    static Entry *entry_of(Interval *node) { return static_cast<Entry *>(node); }
    static bool remote(const Entry *entry) { return entry->rights_ & remote_any; }
    uint32_t row() { return backend_.thread_number() % EntryPool::rows; }
    std::atomic<uint32_t> &exact_count(const Entry *entry) { return pool_.count(entry->index_, EntryPool::exact); }

    // The ways of a hit: any thread, without the lock.
    Entry *hit(uint64_t first, uint64_t last, uint32_t rights, Owner *owner);
    void drop(Entry *entry, uint32_t row);
    void share(Entry *entry, Owner *owner);
    void bury(Entry *entry);
    void release_beyond_bounds(Entry *entry);

    // Under the lock.
    Entry *find_local(uint64_t first, uint64_t last, uint32_t rights);
    Entry *find_remote(uint64_t first, uint64_t last, uint32_t rights, Owner *owner);
    void hold(Entry *entry, Owner *owner);
    void set_owner(Entry *entry, Owner *owner);
    void set_state(Entry *entry, State state) { entry->state_.store(state, std::memory_order_seq_cst); }
    State state(const Entry *entry) const { return entry->state_.load(std::memory_order_seq_cst); }
    bool held(const Entry *entry);
    bool claim(Entry *entry);
    void withdraw(Entry *entry, State next);
    void finish(Entry *entry);
    void recycle_if_unused(Entry *entry);
    bool exceeds(uint64_t extra_count, uint64_t extra_bytes) const;
    void update_beyond();
    void collect_excess(uint64_t extra_count, uint64_t extra_bytes, Stack &victims);

    Status acquire_remote(uint64_t first, uint64_t last, uint32_t rights, Owner *owner, Entry *&entry);
    void release_remote(Entry *entry);
    Status build(Entry *made, uint64_t first, uint64_t last, uint32_t rights, Owner *owner, Entry *&entry, Stack &victims);
    Entry *new_entry(uint64_t first, uint64_t last, uint32_t rights, Owner *owner, Stack &victims);
    Status expose(Entry *entry, Owner *owner);
    bool grow();
    void unpin_all(Stack &victims);

    // What a hit reads: written once, or rarely. Apart from what others write all the time.
    Backend &backend_;
    Index index_;
    std::atomic<bool> beyond_{false}; // a bound is exceeded, or room is being made: releases must look. Written under the lock
    EntryPool pool_;
    char apart_[64];

    struct Tally { // of a row: written by the threads that count there, without the lock
        std::atomic<uint64_t> hits{0};
        char apart[64 - sizeof(std::atomic<uint64_t>)];
    };
    Tally tallies_[EntryPool::rows];

    // All under the backend's lock.
    Config config_;
    IntervalTree tree_;    // in the cache
    IntervalTree leaving_; // withdrawn, but perhaps not unpinned yet
    Link ring_;            // in the cache, in the order in which eviction looks at them
    bool making_room_ = false;
    bool all_held_ = false; // found while beyond a bound; from then on who releases evicts, so there is nothing to look for
    Counters counters_;
};

} // namespace regcache
