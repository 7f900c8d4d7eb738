// SPDX-License-Identifier: GPL-2.0-or-later
#include "regcache.h"

#include <new>

namespace regcache {

// Where one thread may be overtaken by another without the lock. A test that is built for it has things happen there.
#ifdef REGCACHE_POINTS
void at_point(const char *name);
#define REGCACHE_POINT(name) at_point(#name)
#else
#define REGCACHE_POINT(name) static_cast<void>(0)
#endif

namespace {

void list_init(Link &head) { head.prev = head.next = &head; }
bool listed(const Link &link) { return link.next != nullptr; }
void list_append(Link &head, Link &link) {
    link.prev = head.prev;
    link.next = &head;
    head.prev->next = &link;
    head.prev = &link;
}
void list_remove(Link &link) {
    if (!listed(link)) return;
    link.prev->next = link.next;
    link.next->prev = link.prev;
    link.prev = link.next = nullptr;
}

} // namespace

class Cache::Guard {
  public:
    explicit Guard(Backend &backend) : backend_(backend) { backend_.lock(); }
    ~Guard() { backend_.unlock(); }
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;

  private:
    Backend &backend_;
};

bool Cache::init(const Config &config) {
    config_ = config;
    list_init(ring_);
    void *memory = backend_.allocate(Index::bytes(config.max_count));
    if (!memory) return false;
    index_.init(memory, config.max_count);
    return true;
}

Cache::~Cache() {
    if (!index_.memory()) return;
    flush_all();
    for (unsigned k = 0; k < pool_.chunks(); ++k) backend_.free(pool_.memory(k));
    backend_.free(index_.memory());
}

// --- hits: without the lock ------------------------------------------------------------------------------------------

Entry *Cache::hit(uint64_t first, uint64_t last, uint32_t rights, Owner *owner) {
    const uint32_t row = this->row();
    Entry *found = nullptr;
    index_.find(Index::hash(first, last, rights), [&](uint32_t index) {
        Entry *entry = &pool_.at(index);
        __builtin_prefetch(entry); // beside the count's line, not after it
        REGCACHE_POINT(hit_has_candidate);
        pool_.count(index, row).fetch_add(1, std::memory_order_seq_cst);
        REGCACHE_POINT(hit_has_counted);
        // Held, if it is ready; only then may its fields be looked at.
        if (state(entry) == State::ready && entry->first == first && entry->last == last && entry->rights_ == rights) {
            found = entry;
            return true;
        }
        drop(entry, row);
        return false;
    });
    if (!found) return nullptr;
    std::atomic<uint64_t> &hits = tallies_[row].hits; // not an atomic addition: that would double the cost of a hit
    hits.store(hits.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (!found->used_.load(std::memory_order_relaxed)) found->used_.store(true, std::memory_order_relaxed);
    Owner *const only = found->owner_.load(std::memory_order_relaxed);
    if (only && only != owner) share(found, owner);
    return found;
}

// Ends a hold on a local entry, or what was taken for one. From here on the entry may be anybody's.
void Cache::drop(Entry *entry, uint32_t row) {
    pool_.count(entry->index_, row).fetch_sub(1, std::memory_order_seq_cst);
    REGCACHE_POINT(drop_has_counted);
    if (beyond_.load(std::memory_order_seq_cst)) release_beyond_bounds(entry);
    if (state(entry) == State::gone) bury(entry);
}

// The caller holds it, and is not the only one any more who has used it.
void Cache::share(Entry *entry, Owner *owner) {
    Guard guard(backend_);
    if (state(entry) == State::ready) hold(entry, owner);
}

void Cache::bury(Entry *entry) {
    Guard guard(backend_);
    recycle_if_unused(entry);
}

// Beyond its bounds the cache keeps nothing idle, but for this moment: so this is the one to go, if it is idle.
void Cache::release_beyond_bounds(Entry *entry) {
    {
        Guard guard(backend_);
        if (!exceeds(0, 0) || state(entry) != State::ready || !claim(entry)) return;
        withdraw(entry, State::dying);
        ++counters_.evictions;
    }
    Stack victims;
    victims.push(entry->ring_);
    unpin_all(victims);
}

// --- entries: under the lock ---------------------------------------------------------------------------------------

// For local ones: perhaps. Stable only when no hit can succeed any more.
bool Cache::held(const Entry *entry) {
    return remote(entry) ? exact_count(entry).load(std::memory_order_relaxed) != 0 : pool_.sum(entry->index_) != 0;
}

// The entry is ready. True: it is idle, and will be nobody's.
bool Cache::claim(Entry *entry) {
    if (held(entry)) return false; // not to turn hits away for nothing
    REGCACHE_POINT(claim_has_looked);
    set_state(entry, State::claimed);
    if (!held(entry)) return true;
    set_state(entry, State::ready);
    return false;
}

// Nobody finds it any more, but those who wait for its end. References stay.
void Cache::withdraw(Entry *entry, State next) {
    set_state(entry, next);
    if (entry->hashed_) index_.remove(Index::hash(entry->first, entry->last, entry->rights_), entry->index_);
    entry->hashed_ = false;
    tree_.remove(entry);
    leaving_.insert(entry);
    entry->leaving_ = true;
    list_remove(entry->ring_);
    set_owner(entry, nullptr);
    --counters_.count;
    counters_.bytes -= entry->length();
    if (!making_room_ && beyond_.load(std::memory_order_relaxed)) update_beyond();
}

void Cache::update_beyond() {
    const bool beyond = exceeds(0, 0);
    beyond_.store(beyond, std::memory_order_seq_cst);
    if (!beyond) all_held_ = false;
}

// It is not pinned (any more).
void Cache::finish(Entry *entry) {
    if (entry->leaving_) leaving_.remove(entry);
    entry->leaving_ = false;
    set_state(entry, State::gone);
    recycle_if_unused(entry);
}

void Cache::recycle_if_unused(Entry *entry) {
    if (state(entry) != State::gone || exact_count(entry).load(std::memory_order_relaxed) != 0) return;
    if (pool_.sum(entry->index_) != 0) return; // also of remote ones: a hit may be looking at it by mistake
    set_state(entry, State::free);
    entry->region_ = {};
    pool_.give(entry);
}

void Cache::set_owner(Entry *entry, Owner *owner) {
    list_remove(entry->owned_);
    entry->owner_.store(owner, std::memory_order_relaxed);
    if (owner) list_append(owner->entries_, entry->owned_);
}

// The caller has counted itself in.
void Cache::hold(Entry *entry, Owner *owner) {
    entry->used_.store(true, std::memory_order_relaxed);
    Owner *const only = entry->owner_.load(std::memory_order_relaxed);
    if (only && only != owner) set_owner(entry, nullptr);
}

bool Cache::exceeds(uint64_t extra_count, uint64_t extra_bytes) const {
    return counters_.count + extra_count > config_.max_count || counters_.bytes + extra_bytes > config_.max_bytes;
}

// Moves idle entries to `victims` until there is room for so much more. The caller then updates beyond_, when it has taken the
// room, without having left the lock: who becomes idle behind the hand must not be overlooked.
void Cache::collect_excess(uint64_t extra_count, uint64_t extra_bytes, Stack &victims) {
    if (!exceeds(extra_count, extra_bytes) || all_held_) return;
    // First this, then the look at the counts: a release behind the hand sees it, and waits for the lock.
    beyond_.store(true, std::memory_order_seq_cst);
    making_room_ = true;
    // Twice around: the first time takes marks off.
    for (uint64_t n = 2 * counters_.count; n > 0 && exceeds(extra_count, extra_bytes); --n) {
        Entry *entry = ring_.next->entry;
        list_remove(entry->ring_);
        list_append(ring_, entry->ring_);
        if (state(entry) != State::ready) continue;
        if (entry->used_.load(std::memory_order_relaxed)) {
            entry->used_.store(false, std::memory_order_relaxed);
            continue;
        }
        if (!claim(entry)) continue;
        withdraw(entry, State::dying);
        ++counters_.evictions;
        victims.push(entry->ring_);
    }
    making_room_ = false;
    all_held_ = exceeds(extra_count, extra_bytes);
}

// Without the lock: the victims are withdrawn and nobody holds them.
void Cache::unpin_all(Stack &victims) {
    if (victims.empty()) return;
    for (Link *link = victims.top(); link; link = link->next) backend_.unpin(link->entry->region_);
    Guard guard(backend_);
    while (!victims.empty()) finish(victims.pop()->entry);
}

// --- look-up: under the lock -----------------------------------------------------------------------------------------

Entry *Cache::find_local(uint64_t first, uint64_t last, uint32_t rights) {
    Entry *exact = nullptr;
    index_.find(Index::hash(first, last, rights), [&](uint32_t index) {
        Entry *e = &pool_.at(index);
        if (e->first != first || e->last != last || e->rights_ != rights || state(e) != State::ready) return false;
        exact = e;
        return true;
    });
    if (exact) {
        ++counters_.hits;
        return exact;
    }
    Interval *found = tree_.containing(first, last, containment_effort, [this, rights](Interval *node) {
        return entry_of(node)->rights_ == rights && state(entry_of(node)) == State::ready;
    });
    if (found) ++counters_.containing;
    return found ? entry_of(found) : nullptr;
}

// One that this owner's peer already has, else an idle one.
Entry *Cache::find_remote(uint64_t first, uint64_t last, uint32_t rights, Owner *owner) {
    Entry *mine = nullptr, *idle = nullptr;
    index_.find(Index::hash(first, last, rights), [&](uint32_t index) {
        Entry *e = &pool_.at(index);
        if (e->first != first || e->last != last || e->rights_ != rights || state(e) != State::ready) return false;
        if (!held(e)) idle = e;
        else if (e->owner_.load(std::memory_order_relaxed) == owner) mine = e;
        return mine != nullptr;
    });
    return mine ? mine : idle;
}

// --- the operations ------------------------------------------------------------------------------------------------

Status Cache::acquire(uint64_t start, uint64_t length, uint32_t rights, Owner *owner, Entry *&entry) {
    entry = nullptr;
    const uint64_t last = start + (length - 1);
    if (length == 0 || last < start || rights == 0) return Status::bad_address;
    if (rights & remote_any) return acquire_remote(start, last, rights, owner, entry);
    if ((entry = hit(start, last, rights, owner))) return Status::ok;
    Entry *made;
    Stack victims;
    {
        Guard guard(backend_);
        if (Entry *found = find_local(start, last, rights)) {
            pool_.count(found->index_, row()).fetch_add(1, std::memory_order_seq_cst);
            hold(found, owner);
            entry = found;
            return Status::ok;
        }
        made = new_entry(start, last, rights, owner, victims);
    }
    return build(made, start, last, rights, owner, entry, victims);
}

Status Cache::acquire_remote(uint64_t first, uint64_t last, uint32_t rights, Owner *owner, Entry *&entry) {
    Entry *found, *made = nullptr;
    Stack victims;
    bool idle;
    {
        Guard guard(backend_);
        found = find_remote(first, last, rights, owner);
        idle = found && !held(found);
        if (found) {
            ++counters_.hits;
            exact_count(found).fetch_add(1, std::memory_order_relaxed);
            hold(found, owner);
            if (idle) {
                set_state(found, State::busy);
                set_owner(found, owner);
            }
        } else {
            made = new_entry(first, last, rights, owner, victims);
        }
    }
    if (found && !idle) {
        entry = found;
        return Status::ok;
    }
    if (found) {
        const Status status = expose(found, owner);
        if (status == Status::ok) entry = found;
        // Invalidated meanwhile: the caller's memory is going away. Anything else: try with a new registration.
        if (status == Status::ok || status == Status::bad_address) return status;
    }
    return build(made, first, last, rights, owner, entry, victims);
}

// The entry is busy and ours. On failure it is gone.
Status Cache::expose(Entry *entry, Owner *owner) {
    const Status status = backend_.expose(entry->region_, entry->rights_, owner);
    bool dead;
    {
        Guard guard(backend_);
        dead = !entry->usable();
        if (!dead && status == Status::ok) {
            set_state(entry, State::ready);
            ++counters_.exposes;
            return Status::ok;
        }
        if (!dead) withdraw(entry, State::dying);
        exact_count(entry).fetch_sub(1, std::memory_order_relaxed);
    }
    Stack victims;
    victims.push(entry->ring_);
    unpin_all(victims);
    return dead ? Status::bad_address : status == Status::bad_address ? Status::failed : status;
}

// Without the lock: memory for more entries.
bool Cache::grow() {
    unsigned k;
    {
        Guard guard(backend_);
        k = pool_.chunks();
    }
    if (!EntryPool::can_grow(k)) return false;
    void *memory = backend_.allocate(EntryPool::chunk_bytes(k));
    if (!memory) return false;
    {
        Guard guard(backend_);
        if (pool_.chunks() == k) {
            pool_.grow(memory);
            return true;
        }
    }
    backend_.free(memory); // another thread was quicker
    return true;
}

// Under the lock. Held by the caller, and in the tree at once, so that an invalidation during the pin is not missed.
Entry *Cache::new_entry(uint64_t first, uint64_t last, uint32_t rights, Owner *owner, Stack &victims) {
    Entry *made = pool_.take();
    if (!made) return nullptr;
    ++counters_.misses;
    made->first = first;
    made->last = last;
    made->rights_ = rights;
    made->used_.store(false, std::memory_order_relaxed);
    set_state(made, State::building);
    pool_.count(made->index_, rights & remote_any ? EntryPool::exact : row()).fetch_add(1, std::memory_order_seq_cst);
    collect_excess(1, made->length(), victims);
    tree_.insert(made);
    list_append(ring_, made->ring_);
    set_owner(made, owner);
    ++counters_.count;
    counters_.bytes += made->length();
    if (counters_.bytes > counters_.peak_bytes) counters_.peak_bytes = counters_.bytes;
    update_beyond();
    return made;
}

// `made`: by new_entry(); nullptr: there was none.
Status Cache::build(Entry *made, uint64_t first, uint64_t last, uint32_t rights, Owner *owner, Entry *&entry, Stack &victims) {
    while (!made) {
        if (!grow()) return Status::no_resources;
        Guard guard(backend_);
        made = new_entry(first, last, rights, owner, victims);
    }
    unpin_all(victims);

    const uint64_t length = last - first + 1;
    Status status = backend_.pin(first, length, rights, owner, made->region_);
    if (status == Status::no_resources) {
        {
            Guard guard(backend_);
            ++counters_.retries;
        }
        flush_all();
        status = backend_.pin(first, length, rights, owner, made->region_);
    }

    bool dead;
    {
        Guard guard(backend_);
        dead = !made->usable();
        if (status == Status::ok && !dead) {
            made->hashed_ = index_.insert(Index::hash(first, last, rights), made->index_);
            set_state(made, State::ready);
            entry = made;
            return Status::ok;
        }
        if (!dead) withdraw(made, State::dying);
        pool_.count(made->index_, rights & remote_any ? EntryPool::exact : row()).fetch_sub(1, std::memory_order_seq_cst);
        if (status != Status::ok) {
            ++counters_.pin_failures;
            finish(made);
            return dead ? Status::bad_address : status;
        }
    }
    victims.push(made->ring_);
    unpin_all(victims);
    return Status::bad_address;
}

void Cache::release(Entry *entry) {
    if (remote(entry)) release_remote(entry);
    else drop(entry, row());
}

void Cache::release_remote(Entry *entry) {
    {
        Guard guard(backend_);
        // Whoever takes the memory away may be in the middle of it: the peer's access must have ended when this returns.
        while (state(entry) == State::dying) {
            backend_.unlock();
            backend_.pause();
            backend_.lock();
        }
        std::atomic<uint32_t> &count = exact_count(entry);
        if (count.load(std::memory_order_relaxed) > 1 || !entry->usable()) {
            count.fetch_sub(1, std::memory_order_relaxed);
            recycle_if_unused(entry); // whoever invalidated it has unpinned it
            return;
        }
        set_state(entry, State::busy); // and still held, by us, while the peer's access is being ended
    }
    const Status status = backend_.revoke(entry->region_);
    Stack victims;
    {
        Guard guard(backend_);
        exact_count(entry).fetch_sub(1, std::memory_order_relaxed);
        const bool dead = !entry->usable();
        if (!dead && status == Status::ok) {
            set_state(entry, State::ready);
            all_held_ = false;
            collect_excess(0, 0, victims);
            update_beyond();
        } else {
            // Invalidated meanwhile, or revocation failed: then only deregistration ends the access.
            if (!dead) withdraw(entry, State::dying);
            victims.push(entry->ring_);
        }
    }
    unpin_all(victims);
}

size_t Cache::invalidate(uint64_t start, uint64_t length) {
    if (length == 0) return 0;
    const uint64_t last = start + (length - 1) < start ? UINT64_MAX : start + (length - 1);
    size_t hit = 0;
    Stack work;
    {
        Guard guard(backend_);
        while (Interval *node = tree_.overlapping(start, last)) {
            Entry *entry = entry_of(node);
            ++hit;
            ++counters_.invalidations;
            const bool ours = state(entry) == State::ready;
            // Building or busy: its holder finds it doomed and unpins it; we wait for that below.
            withdraw(entry, ours ? State::dying : State::doomed);
            if (held(entry)) ++counters_.live_invalidations;
            if (ours) work.push(entry->ring_);
        }
    }
    for (Link *link = work.top(); link; link = link->next) backend_.unpin(link->entry->region_);
    Guard guard(backend_);
    while (!work.empty()) finish(work.pop()->entry);
    // Others may be at entries of the range: pinning what is dead already, revoking, evicting. The memory can go only when
    // they have finished. They never wait for us, and what they do is bounded.
    for (bool first = true; leaving_.overlapping(start, last); first = false) {
        if (first && hit == 0) hit = 1; // there was something, if not ours to take
        backend_.unlock();
        backend_.pause();
        backend_.lock();
    }
    return hit;
}

void Cache::flush(Owner *owner) {
    Stack victims;
    {
        Guard guard(backend_);
        while (owner->entries_.next != &owner->entries_) {
            Entry *entry = owner->entries_.next->entry;
            if (state(entry) == State::ready && claim(entry)) {
                withdraw(entry, State::dying);
                ++counters_.flushed;
                victims.push(entry->ring_);
            } else {
                set_owner(entry, nullptr);
            }
        }
    }
    unpin_all(victims);
}

void Cache::flush_all() {
    Stack victims;
    {
        Guard guard(backend_);
        for (Link *link = ring_.next; link != &ring_;) {
            Entry *entry = link->entry;
            link = link->next;
            if (state(entry) != State::ready || !claim(entry)) continue;
            withdraw(entry, State::dying);
            ++counters_.flushed;
            victims.push(entry->ring_);
        }
    }
    unpin_all(victims);
}

Counters Cache::counters() {
    Guard guard(backend_);
    Counters now = counters_;
    for (const Tally &tally : tallies_) now.hits += tally.hits.load(std::memory_order_relaxed);
    for (Link *link = ring_.next; link != &ring_; link = link->next)
        if (state(link->entry) == State::ready && !held(link->entry)) ++now.idle;
    return now;
}

} // namespace regcache
