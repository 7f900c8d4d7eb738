// SPDX-License-Identifier: GPL-2.0-or-later
#include "regcache.h"

#include <new>

namespace regcache {

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
    list_init(lru_);
    size_t buckets = 64;
    while (buckets < 2ull * config.max_count && buckets < (1u << 21)) buckets *= 2;
    buckets_ = static_cast<Entry **>(backend_.allocate(buckets * sizeof(Entry *)));
    if (!buckets_) return false;
    for (size_t i = 0; i < buckets; ++i) buckets_[i] = nullptr;
    bucket_mask_ = buckets - 1;
    return true;
}

Cache::~Cache() {
    if (!buckets_) return;
    flush_all();
    while (slabs_) {
        Slab *slab = slabs_;
        slabs_ = slab->next;
        slab->~Slab();
        backend_.free(slab);
    }
    backend_.free(buckets_);
}

size_t Cache::bucket(uint64_t first, uint64_t last, uint32_t rights) const {
    uint64_t h = (first ^ (last << 20 | last >> 44) ^ rights) * 0x9E3779B97F4A7C15ull;
    h ^= h >> 32;
    return h & bucket_mask_;
}

// --- entries: under the lock ---------------------------------------------------------------------------------------

Entry *Cache::new_entry() {
    if (!free_) return nullptr;
    Entry *entry = free_;
    free_ = entry->chain_;
    entry->chain_ = nullptr;
    return entry;
}

// Without the lock: adds a slab to the free list.
bool Cache::grow() {
    void *memory = backend_.allocate(sizeof(Slab));
    if (!memory) return false;
    Slab *slab = new (memory) Slab;
    Guard guard(backend_);
    slab->next = slabs_;
    slabs_ = slab;
    for (Entry &entry : slab->entries) {
        entry.chain_ = free_;
        free_ = &entry;
    }
    return true;
}

// It is not pinned (any more).
void Cache::settle(Entry *entry) {
    if (entry->leaving_) leaving_.remove(entry);
    entry->leaving_ = false;
}

void Cache::recycle(Entry *entry) {
    settle(entry);
    entry->state_ = Entry::State::free;
    entry->region_ = {};
    entry->chain_ = free_;
    free_ = entry;
}

void Cache::unhash(Entry *entry) {
    if (!entry->hashed_) return;
    Entry **at = &buckets_[bucket(entry->first, entry->last, entry->rights_)];
    while (*at != entry) at = &(*at)->chain_;
    *at = entry->chain_;
    entry->chain_ = nullptr;
    entry->hashed_ = false;
}

// Nobody finds it any more, but those who wait for its end. References stay.
void Cache::withdraw(Entry *entry) {
    unhash(entry);
    tree_.remove(entry);
    leaving_.insert(entry);
    entry->leaving_ = true;
    if (listed(entry->lru_)) {
        list_remove(entry->lru_);
        --counters_.idle;
    }
    list_remove(entry->owned_);
    entry->owner_ = nullptr;
    entry->dead_.store(true, std::memory_order_release);
    --counters_.count;
    counters_.bytes -= entry->length();
}

void Cache::set_owner(Entry *entry, Owner *owner) {
    list_remove(entry->owned_);
    entry->owner_ = owner;
    if (owner) list_append(owner->entries_, entry->owned_);
}

void Cache::hold(Entry *entry, Owner *owner) {
    if (entry->references_++ == 0) {
        list_remove(entry->lru_);
        --counters_.idle;
    }
    if (entry->owner_ && entry->owner_ != owner) set_owner(entry, nullptr);
}

void Cache::make_idle(Entry *entry) {
    entry->state_ = Entry::State::ready;
    list_append(lru_, entry->lru_);
    ++counters_.idle;
}

// Moves idle entries to `victims`, oldest first, until there is room for so much more.
void Cache::collect_excess(uint64_t extra_count, uint64_t extra_bytes, Entry *&victims) {
    while (lru_.next != &lru_ && (counters_.count + extra_count > config_.max_count ||
                                  counters_.bytes + extra_bytes > config_.max_bytes)) {
        Entry *entry = lru_.next->entry;
        withdraw(entry);
        ++counters_.evictions;
        entry->chain_ = victims;
        victims = entry;
    }
}

// Without the lock: the victims are withdrawn and nobody holds them.
void Cache::unpin_all(Entry *victims) {
    if (!victims) return;
    for (Entry *entry = victims; entry; entry = entry->chain_) backend_.unpin(entry->region_);
    Guard guard(backend_);
    while (victims) {
        Entry *entry = victims;
        victims = entry->chain_;
        recycle(entry);
    }
}

// --- look-up: under the lock -----------------------------------------------------------------------------------------

Entry *Cache::find_local(uint64_t first, uint64_t last, uint32_t rights) {
    for (Entry *e = buckets_[bucket(first, last, rights)]; e; e = e->chain_)
        if (e->first == first && e->last == last && e->rights_ == rights && e->state_ == Entry::State::ready) {
            ++counters_.hits;
            return e;
        }
    Interval *found = tree_.containing(first, last, containment_effort, [rights](Interval *node) {
        return entry_of(node)->rights_ == rights && entry_of(node)->state_ == Entry::State::ready;
    });
    if (found) ++counters_.containing;
    return found ? entry_of(found) : nullptr;
}

// One that this owner's peer already has, else an idle one.
Entry *Cache::find_remote(uint64_t first, uint64_t last, uint32_t rights, Owner *owner) {
    Entry *idle = nullptr;
    for (Entry *e = buckets_[bucket(first, last, rights)]; e; e = e->chain_) {
        if (e->first != first || e->last != last || e->rights_ != rights || e->state_ != Entry::State::ready) continue;
        if (e->references_ > 0 && e->owner_ == owner) return e;
        if (e->references_ == 0) idle = e;
    }
    return idle;
}

// --- the operations ------------------------------------------------------------------------------------------------

Status Cache::acquire(uint64_t start, uint64_t length, uint32_t rights, Owner *owner, Entry *&entry) {
    entry = nullptr;
    const uint64_t last = start + (length - 1);
    if (length == 0 || last < start || rights == 0) return Status::bad_address;
    if (rights & remote_any) {
        Entry *found;
        bool idle;
        {
            Guard guard(backend_);
            found = find_remote(start, last, rights, owner);
            idle = found && found->references_ == 0;
            if (found) {
                ++counters_.hits;
                hold(found, owner);
                if (idle) {
                    found->state_ = Entry::State::busy;
                    set_owner(found, owner);
                }
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
    } else {
        Guard guard(backend_);
        if (Entry *found = find_local(start, last, rights)) {
            hold(found, owner);
            entry = found;
            return Status::ok;
        }
    }
    return build(start, last, rights, owner, entry);
}

// The entry is busy and ours. On failure it is gone.
Status Cache::expose(Entry *entry, Owner *owner) {
    const Status status = backend_.expose(entry->region_, entry->rights_, owner);
    bool dead;
    {
        Guard guard(backend_);
        dead = !entry->usable();
        if (!dead && status == Status::ok) {
            entry->state_ = Entry::State::ready;
            ++counters_.exposes;
            return Status::ok;
        }
        if (!dead) withdraw(entry);
    }
    entry->chain_ = nullptr;
    unpin_all(entry);
    return dead ? Status::bad_address : status == Status::bad_address ? Status::failed : status;
}

Status Cache::build(uint64_t first, uint64_t last, uint32_t rights, Owner *owner, Entry *&entry) {
    Entry *made = nullptr, *victims = nullptr;
    while (!made) {
        {
            Guard guard(backend_);
            made = new_entry();
            if (made) {
                ++counters_.misses;
                made->first = first;
                made->last = last;
                made->rights_ = rights;
                made->references_ = 1;
                made->state_ = Entry::State::building;
                made->dead_.store(false, std::memory_order_relaxed);
                collect_excess(1, made->length(), victims);
                // In the tree at once, so that an invalidation during the pin is not missed.
                tree_.insert(made);
                set_owner(made, owner);
                ++counters_.count;
                counters_.bytes += made->length();
                if (counters_.bytes > counters_.peak_bytes) counters_.peak_bytes = counters_.bytes;
            }
        }
        if (!made && !grow()) return Status::no_resources;
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
            Entry *&head = buckets_[bucket(first, last, rights)];
            made->chain_ = head;
            head = made;
            made->hashed_ = true;
            made->state_ = Entry::State::ready;
            entry = made;
            return Status::ok;
        }
        if (!dead) withdraw(made);
        if (status != Status::ok) {
            ++counters_.pin_failures;
            recycle(made);
            return dead ? Status::bad_address : status;
        }
    }
    made->chain_ = nullptr;
    unpin_all(made);
    return Status::bad_address;
}

void Cache::release(Entry *entry) {
    Entry *victims = nullptr;
    const bool remote = entry->rights_ & remote_any; // once idle, the entry may be anybody's
    {
        Guard guard(backend_);
        // Whoever takes the memory away may be in the middle of it: the peer's access must have ended when this returns.
        while (remote && entry->state_ == Entry::State::dying) {
            backend_.unlock();
            backend_.pause();
            backend_.lock();
        }
        if (--entry->references_ > 0) return;
        if (!entry->usable()) { // whoever invalidated it has unpinned it
            recycle(entry);
            return;
        }
        if (!remote) {
            make_idle(entry);
            collect_excess(0, 0, victims);
        } else {
            entry->references_ = 1; // ours, while the peer's access is being ended
            entry->state_ = Entry::State::busy;
        }
    }
    if (!remote) {
        unpin_all(victims);
        return;
    }
    const Status status = backend_.revoke(entry->region_);
    {
        Guard guard(backend_);
        entry->references_ = 0;
        const bool dead = !entry->usable();
        if (!dead && status == Status::ok) {
            make_idle(entry);
            collect_excess(0, 0, victims);
        } else {
            // Invalidated meanwhile, or revocation failed: then only deregistration ends the access.
            if (!dead) withdraw(entry);
            entry->chain_ = victims;
            victims = entry;
        }
    }
    unpin_all(victims);
}

size_t Cache::invalidate(uint64_t start, uint64_t length) {
    if (length == 0) return 0;
    const uint64_t last = start + (length - 1) < start ? UINT64_MAX : start + (length - 1);
    size_t hit = 0;
    Entry *work = nullptr;
    {
        Guard guard(backend_);
        while (Interval *node = tree_.overlapping(start, last)) {
            Entry *entry = entry_of(node);
            ++hit;
            ++counters_.invalidations;
            if (entry->references_ > 0) ++counters_.live_invalidations;
            const bool ours = entry->state_ == Entry::State::ready;
            withdraw(entry);
            if (!ours) continue; // its holder finds it dead and unpins it; we wait for that below
            ++entry->references_; // until it is unpinned
            entry->state_ = Entry::State::dying;
            entry->chain_ = work;
            work = entry;
        }
    }
    for (Entry *entry = work; entry; entry = entry->chain_) backend_.unpin(entry->region_);
    Guard guard(backend_);
    while (work) {
        Entry *entry = work;
        work = entry->chain_;
        entry->chain_ = nullptr;
        entry->state_ = Entry::State::gone;
        settle(entry);
        if (--entry->references_ == 0) recycle(entry);
    }
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
    Entry *victims = nullptr;
    {
        Guard guard(backend_);
        while (owner->entries_.next != &owner->entries_) {
            Entry *entry = owner->entries_.next->entry;
            if (entry->references_ == 0) {
                withdraw(entry);
                ++counters_.flushed;
                entry->chain_ = victims;
                victims = entry;
            } else {
                set_owner(entry, nullptr);
            }
        }
    }
    unpin_all(victims);
}

void Cache::flush_all() {
    Entry *victims = nullptr;
    {
        Guard guard(backend_);
        while (lru_.next != &lru_) {
            Entry *entry = lru_.next->entry;
            withdraw(entry);
            ++counters_.flushed;
            entry->chain_ = victims;
            victims = entry;
        }
    }
    unpin_all(victims);
}

Counters Cache::counters() {
    Guard guard(backend_);
    return counters_;
}

} // namespace regcache
