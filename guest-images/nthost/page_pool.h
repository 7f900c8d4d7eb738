// SPDX-License-Identifier: GPL-2.0-or-later
//
// page_pool.h: the machine's physical memory: one memfd, mapped once in full at a fixed place (the kernel's linear
// view), and a reference count per 4 KiB page.
//
// Contract: a page handed out is zero-filled and has one reference. User views are further mappings of the memfd; they
// and locks hold references, so a page outlives the view that it was first reached by. A page frame number is a bus
// address >> 12. Bus addresses are the pool's own (page n at bus_base + n * 4096: the NIC in this process, or an IOMMU,
// translates them), or physical ones, for a function without an IOMMU before it: then the memory is locked and its
// frames are looked up once. Page 0 of the pool is never handed out.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base.h"

namespace nth {

using PageIndex = uint32_t;

// Hears which pages a device may touch, one page at a time and under the pool's lock; for an IOMMU that is to know no
// others.
class DmaListener {
  public:
    virtual void page_opened(PageIndex page) = 0;
    virtual void page_closed(PageIndex page) = 0;

  protected:
    ~DmaListener() = default;
};

class PagePool {
  public:
    // Never 0; 2 MiB, so that large pages stay aligned behind an IOMMU. --no-low-memory: 8 GiB.
    static inline uint64_t bus_base = 0x200000;

    enum class Frames { Own, Physical };
    // linear: where to map it (MAP_FIXED_NOREPLACE), 0 for anywhere. Gives up (host_bug) when the memory cannot be had.
    PagePool(uint64_t bytes, uint64_t linear, Frames frames = Frames::Own);
    ~PagePool();
    PagePool(const PagePool &) = delete;
    PagePool &operator=(const PagePool &) = delete;

    // `count` physically contiguous pages whose first bus page is a multiple of `align` pages and whose last byte is
    // not above highest_bus.
    std::optional<PageIndex> allocate(uint32_t count, uint32_t align = 1, uint64_t highest_bus = ~uint64_t{0});
    // `count` pages that follow each other in the linear view, on the bus in any order.
    std::optional<PageIndex> allocate_linear(uint32_t count);
    // As many pages in a row in the linear view as there are, at most `count`; *got says how many.
    std::optional<PageIndex> allocate_run(uint32_t count, uint32_t *got);

    void reference(PageIndex page);
    void release(PageIndex page);  // frees at zero
    uint32_t references(PageIndex page) const { return pages_[page].references; }

    // MmProbeAndLockPages and MmUnlockPages. unlock() answers false when the page is not locked.
    void lock(PageIndex page);
    bool unlock(PageIndex page);
    // Whether a device may touch the page: kernel memory, or locked. Asked without the lock, from the device's thread.
    bool device_may_touch(PageIndex page) const { return pages_[page].kernel || pages_[page].locks != 0; }
    // Tells of all pages that are open now, and of every change from then on; nullptr ends it (without a word).
    void set_dma_listener(DmaListener *listener);
    uint32_t locks(PageIndex page) const { return pages_[page].locks; }

    int fd() const { return fd_; }
    uint64_t bytes() const { return bytes_; }
    uint8_t *linear() const { return base_; }
    uint8_t *address(PageIndex page) const { return base_ + uint64_t{page} * 4096; }
    uint64_t pfn(PageIndex page) const { return frames_.empty() ? (bus_base >> 12) + page : frames_[page]; }
    uint64_t bus(PageIndex page) const { return pfn(page) << 12; }
    std::optional<PageIndex> from_pfn(uint64_t pfn) const;
    std::optional<PageIndex> from_linear(uint64_t address) const;
    uint32_t free_pages() const { return free_; }
    uint32_t total_pages() const { return static_cast<uint32_t>(pages_.size()); }

  private:
    struct Page {
        uint32_t references = 0;
        uint32_t locks = 0;
        bool kernel = false;  // handed out to the kernel: nonpaged as long as it is in use
        bool dirty = false;   // was in use before: zero it when it is handed out again
    };
    void look_up_frames();
    std::optional<PageIndex> find(uint32_t count, uint32_t align, uint64_t highest_bus, bool contiguous);
    void take(PageIndex first, uint32_t count, bool kernel);
    void zero(PageIndex first, uint32_t count);

    int fd_ = -1;
    uint64_t bytes_ = 0;
    uint8_t *base_ = nullptr;
    std::vector<Page> pages_;
    std::vector<uint64_t> frames_;                      // physical frame of each page; empty: the pool's own addresses
    std::unordered_map<uint64_t, PageIndex> by_frame_;  // its inverse
    DmaListener *listener_ = nullptr;
    uint32_t free_ = 0;
    PageIndex hint_ = 1;
    mutable FutexLock lock_;  // guards pages_, listener_, free_, hint_
};

}  // namespace nth
