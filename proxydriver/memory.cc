// SPDX-License-Identifier: GPL-2.0-or-later
#include "memory.h"

namespace sanproxy {

bool DmaBuffer::alloc(size_t bytes) {
    PHYSICAL_ADDRESS low = {}, high = {}, boundary = {};
    high.QuadPart = -1;
    bytes_ = page_round_up(bytes);
    va_ = MmAllocateContiguousMemorySpecifyCache(bytes_, low, high, boundary, MmCached);
    if (!va_) return false;
    memset(va_, 0, bytes_);
    bus_ = MmGetPhysicalAddress(va_).QuadPart;
    return true;
}

void DmaBuffer::free() {
    if (va_) MmFreeContiguousMemorySpecifyCache(va_, bytes_, MmCached);
    va_ = nullptr;
}

namespace {

// Walks the page frames of a chain of MDLs.
class FrameWalk {
  public:
    FrameWalk(MDL *chain, uint64_t skip) : mdl_(chain) {
        while (mdl_ && skip >= count()) {
            skip -= count();
            mdl_ = mdl_->Next;
        }
        index_ = skip;
    }
    uint64_t next() { // bus address
        const uint64_t bus = static_cast<uint64_t>(MmGetMdlPfnArray(mdl_)[index_]) << SNIC_PAGE_SHIFT;
        if (++index_ >= count()) {
            mdl_ = mdl_->Next;
            index_ = 0;
        }
        return bus;
    }

  private:
    uint64_t count() const {
        return (MmGetMdlByteOffset(mdl_) + static_cast<uint64_t>(MmGetMdlByteCount(mdl_)) + page_size - 1) / page_size;
    }
    MDL *mdl_;
    uint64_t index_;
};

bool contiguous(MDL *chain, uint64_t first_page, uint64_t pages) {
    FrameWalk walk(chain, first_page);
    uint64_t expected = walk.next();
    for (uint64_t i = 1; i < pages; ++i) {
        expected += page_size;
        if (walk.next() != expected) return false;
    }
    return true;
}

} // namespace

PageList::~PageList() {
    for (size_t i = 0; i < table_count_; ++i) tables_[i].free();
    pool_free(tables_);
}

bool PageList::build(MDL *chain, uint64_t first_page, uint64_t pages, uint32_t offset) {
    list_ = {};
    list_.offset = offset;
    list_.page_shift = SNIC_PAGE_SHIFT;
    if (contiguous(chain, first_page, pages)) {
        list_.root = FrameWalk(chain, first_page).next();
        return true;
    }
    // Tables of each level, leaves first; the last one is the root.
    uint64_t per_level[3] = {};
    uint64_t total = 0;
    for (uint64_t n = pages; list_.levels == 0 || n > 1;) {
        if (list_.levels == 3) return false;
        n = (n + SNIC_PAGE_LIST_ENTRIES - 1) / SNIC_PAGE_LIST_ENTRIES;
        per_level[list_.levels++] = n;
        total += n;
    }
    tables_ = static_cast<DmaBuffer *>(pool_alloc(total * sizeof(DmaBuffer)));
    if (!tables_) return false;
    for (; table_count_ < total; ++table_count_)
        if (!(new (&tables_[table_count_]) DmaBuffer)->alloc(page_size)) return false;

    FrameWalk walk(chain, first_page);
    for (uint64_t i = 0; i < pages; ++i)
        tables_[i / SNIC_PAGE_LIST_ENTRIES].as<uint64_t>()[i % SNIC_PAGE_LIST_ENTRIES] = walk.next();
    DmaBuffer *lower = tables_;
    for (unsigned level = 1; level < list_.levels; ++level) {
        DmaBuffer *upper = lower + per_level[level - 1];
        for (uint64_t i = 0; i < per_level[level - 1]; ++i)
            upper[i / SNIC_PAGE_LIST_ENTRIES].as<uint64_t>()[i % SNIC_PAGE_LIST_ENTRIES] = lower[i].bus();
        lower = upper;
    }
    list_.root = tables_[total - 1].bus();
    return true;
}

bool SharedPages::alloc(size_t bytes) {
    PHYSICAL_ADDRESS low = {}, high = {}, skip = {};
    high.QuadPart = -1;
    bytes = page_round_up(bytes);
    mdl_ = MmAllocatePagesForMdl(low, high, skip, bytes); // zeroed
    if (!mdl_) return false;
    if (MmGetMdlByteCount(mdl_) >= bytes) return true;
    free_pages(); // it may give less than asked
    return false;
}

bool SharedPages::map_user() {
    user_va_ = guarded_map_user(mdl_, MmCached);
    return user_va_ != nullptr;
}

void SharedPages::unmap_user() {
    if (user_va_) MmUnmapLockedPages(user_va_, mdl_);
    user_va_ = nullptr;
}

void SharedPages::free_pages() {
    if (!mdl_) return;
    MmFreePagesFromMdl(mdl_);
    ExFreePool(mdl_);
    mdl_ = nullptr;
}

void SharedPages::swap(SharedPages &other) {
    MDL *mdl = mdl_;
    void *va = user_va_;
    mdl_ = other.mdl_;
    user_va_ = other.user_va_;
    other.mdl_ = mdl;
    other.user_va_ = va;
}

bool SharedPages::poke(size_t offset, uint32_t value) {
    void *va = MmMapLockedPagesSpecifyCache(mdl_, KernelMode, MmCached, nullptr, FALSE, NormalPagePriority);
    if (!va) return false;
    *reinterpret_cast<volatile uint32_t *>(static_cast<uint8_t *>(va) + offset) = value;
    MmUnmapLockedPages(va, mdl_);
    return true;
}

uint64_t SharedPages::bus(size_t offset) const {
    return FrameWalk(mdl_, offset / page_size).next() + offset % page_size;
}

bool SharedPages::describe(PageList &list, size_t offset, size_t bytes) const {
    return list.build(mdl_, offset / page_size, page_round_up(bytes) / page_size, 0);
}

uint64_t WriterSet::run(uint64_t page, uint64_t pages, bool &inside) const {
    inside = false;
    uint64_t end = page + pages; // of the run
    for (LIST_ENTRY *e = ranges_.Flink; e != &ranges_; e = e->Flink) {
        const auto *r = CONTAINING_RECORD(e, LockedRange, link_);
        const uint64_t first = r->first_page_, past = first + r->pages_;
        if (first <= page && page < past) {
            inside = true;
            return (past < page + pages ? past : page + pages) - page;
        }
        if (first > page && first < end) end = first;
    }
    return end - page;
}

void WriterSet::insert(LockedRange &range) { InsertTailList(&ranges_, &range.link_); }
void WriterSet::remove(LockedRange &range) { RemoveEntryList(&range.link_); }

LockResult LockedRange::lock(WriterSet &writers, uint64_t va, uint64_t length, bool write) {
    const uint64_t end = reinterpret_cast<uint64_t>(MM_HIGHEST_USER_ADDRESS);
    if (length == 0 || va == 0 || va > end || length - 1 > end - va) return LockResult::bad_address;
    offset_ = static_cast<uint32_t>(va % page_size);
    pages_ = (offset_ + length + page_size - 1) / page_size;
    first_page_ = va / page_size;

    secure_ = guarded_secure(reinterpret_cast<void *>(va), length, write ? PAGE_READWRITE : PAGE_READONLY);
    LockResult result = LockResult::ok;
    bool locked;
    if (write) {
        MutexGuard guard(writers.mutex);
        // Not secured, the range may be anything: then locking only tells a bad range (also one that may not be written) from
        // a lack of resources.
        locked = lock_for_writing(writers, va, length, result);
        if (locked && secure_) {
            writers.insert(*this);
            writers_ = &writers;
        }
    } else {
        locked = lock_chunks(va, length, IoReadAccess, result);
    }
    if (locked && secure_) return LockResult::ok;
    unlock();
    // Securing says only that it failed. A range that could be locked is a good one.
    return locked ? LockResult::no_resources : result;
}

// Under the writers' mutex. No page is probed that the NIC may be writing to.
bool LockedRange::lock_for_writing(const WriterSet &writers, uint64_t va, uint64_t length, LockResult &result) {
    const uint64_t end = va + length;
    while (va < end) {
        const uint64_t page = va / page_size;
        bool inside;
        const uint64_t run = writers.run(page, first_page_ + pages_ - page, inside);
        const uint64_t past = (page + run) * page_size;
        const uint64_t bytes = (past < end ? past : end) - va;
        if (!lock_chunks(va, bytes, inside ? IoReadAccess : IoWriteAccess, result)) return false;
        va += bytes;
    }
    return true;
}

// One MDL holds a limited number of pages, and large ones need large pieces of pool: halve the piece when there is none.
bool LockedRange::lock_chunks(uint64_t va, uint64_t length, LOCK_OPERATION operation, LockResult &result) {
    uint64_t piece = 16u << 20;
    while (length > 0) {
        // All pieces but the first start at a page boundary.
        uint64_t bytes = piece - va % page_size;
        if (bytes > length) bytes = length;
        MDL *mdl = IoAllocateMdl(reinterpret_cast<void *>(va), static_cast<ULONG>(bytes), FALSE, FALSE, nullptr);
        if (!mdl) {
            if (piece <= 16 * page_size) {
                result = LockResult::no_resources;
                return false;
            }
            piece /= 2;
            continue;
        }
        const NTSTATUS status = guarded_lock(mdl, operation);
        if (!NT_SUCCESS(status)) {
            IoFreeMdl(mdl);
            const bool no_memory = status == STATUS_WORKING_SET_QUOTA || status == STATUS_INSUFFICIENT_RESOURCES ||
                                   status == STATUS_NO_MEMORY;
            result = no_memory ? LockResult::no_resources : LockResult::bad_address;
            return false;
        }
        *tail_ = mdl;
        tail_ = &mdl->Next;
        va += bytes;
        length -= bytes;
    }
    return true;
}

// The system learns that pages were written when a lock for writing ends. Those that were locked for reading only, because
// another range had them, are locked for writing once more for that: nobody writes there now, unless yet another range has
// them, whose end will tell. Still secured; under the writers' mutex, after this range has left the set.
void LockedRange::mark_written(const MDL *mdl) {
    const uint64_t va = reinterpret_cast<uint64_t>(MmGetMdlVirtualAddress(mdl));
    uint64_t page = va / page_size;
    const uint64_t past = (va + MmGetMdlByteCount(mdl) + page_size - 1) / page_size;
    while (page < past) {
        bool inside;
        const uint64_t run = writers_->run(page, past - page, inside);
        if (!inside) {
            MDL *probe = IoAllocateMdl(reinterpret_cast<void *>(page * page_size), static_cast<ULONG>(run * page_size), FALSE,
                                       FALSE, nullptr);
            // Without memory for it: the pages are the process's own and resident; at worst the system takes them for clean.
            if (probe && NT_SUCCESS(guarded_lock(probe, IoWriteAccess))) MmUnlockPages(probe);
            if (probe) IoFreeMdl(probe);
        }
        page += run;
    }
}

void LockedRange::unlock() {
    if (writers_) {
        MutexGuard guard(writers_->mutex);
        writers_->remove(*this);
        for (MDL *mdl = chain_; mdl; mdl = mdl->Next)
            if (!(mdl->MdlFlags & MDL_WRITE_OPERATION)) mark_written(mdl);
    }
    writers_ = nullptr;
    while (chain_) {
        MDL *mdl = chain_;
        chain_ = mdl->Next;
        mdl->Next = nullptr;
        MmUnlockPages(mdl);
        IoFreeMdl(mdl);
    }
    tail_ = &chain_;
    if (secure_) guarded_unsecure(secure_);
    secure_ = nullptr;
}

bool LockedRange::describe(PageList &list) const { return list.build(chain_, 0, pages_, offset_); }

} // namespace sanproxy
