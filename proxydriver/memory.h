// SPDX-License-Identifier: GPL-2.0-or-later
//
// memory.h: memory that the NIC reaches, in the three kinds that the driver deals with:
//   DmaBuffer   contiguous kernel memory (admin rings, event ring, command parameters, page lists)
//   SharedPages whole zeroed pages that the driver allocates, maps into a process and describes to the NIC (queues)
//   LockedRange memory of a process, secured and locked (regions)
// and page lists, the way all of it is described to the NIC.
#pragma once

#include "nt.h"
#include <sanlab/snic_hw.h>

namespace sanproxy {

constexpr uint64_t page_size = SNIC_PAGE_SIZE;
constexpr uint64_t page_round_up(uint64_t n) { return (n + page_size - 1) & ~(page_size - 1); }

// Contiguous, zeroed, released by its destructor.
class DmaBuffer {
  public:
    DmaBuffer() = default;
    ~DmaBuffer() { free(); }
    DmaBuffer(const DmaBuffer &) = delete;
    DmaBuffer &operator=(const DmaBuffer &) = delete;

    bool alloc(size_t bytes);
    void free();
    template <typename T> T *as() { return static_cast<T *>(va_); }
    uint64_t bus() const { return bus_; }
    explicit operator bool() const { return va_ != nullptr; }

  private:
    void *va_ = nullptr;
    uint64_t bus_ = 0;
    size_t bytes_ = 0;
};

// Turns the pages of a chain of MDLs (linked by Next) into a page list. Holds the list's own pages until it is destroyed,
// which may happen as soon as the command that used the list has completed.
class PageList {
  public:
    PageList() = default;
    ~PageList();
    PageList(const PageList &) = delete;
    PageList &operator=(const PageList &) = delete;

    // first_page and pages select a part of the chain, which must have that many. False: no memory.
    bool build(MDL *chain, uint64_t first_page, uint64_t pages, uint32_t offset);
    const snic_page_list &list() const { return list_; }

  private:
    DmaBuffer *tables_ = nullptr;
    size_t table_count_ = 0;
    snic_page_list list_ = {};
};

// Pages shared by the NIC, the driver and one process.
class SharedPages {
  public:
    SharedPages() = default;
    ~SharedPages() { free_pages(); }
    SharedPages(const SharedPages &) = delete;
    SharedPages &operator=(const SharedPages &) = delete;

    bool alloc(size_t bytes);
    bool map_user(); // into the current process
    void unmap_user(); // in the process that it was mapped into
    void free_pages(); // unmapped before
    void swap(SharedPages &other);
    // Writes one 32-bit value before the NIC or the process can see the memory.
    bool poke(size_t offset, uint32_t value);
    uint64_t user_va() const { return reinterpret_cast<uint64_t>(user_va_); }
    uint64_t bus(size_t offset) const; // of a place within one page
    bool describe(PageList &list, size_t offset, size_t bytes) const; // offset at a page boundary

  private:
    MDL *mdl_ = nullptr;
    void *user_va_ = nullptr;
};

enum class LockResult { ok, bad_address, no_resources };

class LockedRange;

// The ranges of one process that are locked for writing: the NIC may be writing there. Locking for writing probes: it reads
// a byte of each page and writes it back, and what the NIC has written in between is lost. So a page that is in here is
// locked for reading when it is locked again: it is writable, and stays so while the range that brought it in is secured.
// A list, since it is looked through only when memory is locked, which costs more than a look at a few thousand ranges.
// Pages that are mapped at two addresses of a process are not recognised as one.
class WriterSet {
  public:
    WriterSet() { InitializeListHead(&ranges_); }
    Mutex mutex; // from the look until the range is in the set; APC_LEVEL inside, where pages may be locked

    // All under mutex. How many pages from `page` on (at most `pages`) are alike: all in the set, or all not.
    uint64_t run(uint64_t page, uint64_t pages, bool &inside) const;
    void insert(LockedRange &range);
    void remove(LockedRange &range);

  private:
    LIST_ENTRY ranges_;
};

// A range of the current process: secured first, then locked, so that no moment exists in which the range could be freed
// and reused unnoticed. Released in the opposite order.
class LockedRange {
  public:
    LockedRange() = default;
    ~LockedRange() { unlock(); }
    LockedRange(const LockedRange &) = delete;
    LockedRange &operator=(const LockedRange &) = delete;

    LockResult lock(WriterSet &writers, uint64_t va, uint64_t length, bool write);
    void unlock(); // in the process whose memory it is
    bool describe(PageList &list) const;

  private:
    friend class WriterSet;
    bool lock_chunks(uint64_t va, uint64_t length, LOCK_OPERATION operation, LockResult &result);
    bool lock_for_writing(const WriterSet &writers, uint64_t va, uint64_t length, LockResult &result);
    void mark_written(const MDL *mdl);

    WriterSet *writers_ = nullptr; // in it, while locked for writing
    LIST_ENTRY link_;
    uint64_t first_page_ = 0;
    MDL *chain_ = nullptr;
    MDL **tail_ = &chain_;
    HANDLE secure_ = nullptr;
    uint64_t pages_ = 0;
    uint32_t offset_ = 0;
};

// The calls that raise, each alone in its __try (guarded.cc).
NTSTATUS guarded_lock(MDL *mdl, LOCK_OPERATION operation);
void *guarded_map_user(MDL *mdl, MEMORY_CACHING_TYPE caching);
HANDLE guarded_secure(void *va, size_t length, ULONG mode);
void guarded_unsecure(HANDLE secure);

} // namespace sanproxy
