// SPDX-License-Identifier: GPL-2.0-or-later
// page_map.h: the pages behind a memory region or a queue (docs/snic.md, "Page lists"), as the device keeps them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "host.h"
#include "sanlab/snic_hw.h"

namespace snic {

// How many page addresses all maps of a NIC may hold together. A list that names itself costs the guest one page and us as many
// addresses as it pretends to have: this is what bounds that.
class PageBudget {
  public:
    explicit PageBudget(uint64_t pages) : left_(pages) {}
    // False: not so much is left.
    bool take(uint64_t pages) {
        if (pages > left_) return false;
        left_ -= pages;
        return true;
    }
    void give(uint64_t pages) { left_ += pages; }
    uint64_t left() const { return left_; }

  private:
    uint64_t left_;
};

class PageMap {
  public:
    PageMap() = default;
    PageMap(PageMap &&o) noexcept { *this = std::move(o); }
    PageMap &operator=(PageMap &&o) noexcept;
    ~PageMap() { drop_pages(); }

    // Checks `list` and reads it from guest memory. `length`: bytes that the list must cover, at least 1.
    // SNIC_ERR_PARAM: malformed; SNIC_ERR_DMA: a list page is not RAM, or an entry is not a page address;
    // SNIC_ERR_RESOURCES: more pages than `budget` (nullptr: no bound) has left.
    snic_status load(Host &host, const snic_page_list &list, uint64_t length, PageBudget *budget = nullptr);

    struct Run {
        uint64_t addr;  // bus address of the byte at `offset`
        uint64_t len;   // bytes contiguous on the bus from there, at least 1
    };
    // `offset` counts from the first byte of the region and is below its length.
    Run find(uint64_t offset) const {
        uint64_t at = first_ + offset;
        uint64_t in_page = at & mask_;
        if (pages_.empty()) return {base_ + at, length_ - offset};
        uint64_t left = mask_ + 1 - in_page;
        return {pages_[at >> shift_] + in_page, left < length_ - offset ? left : length_ - offset};
    }

    uint64_t length() const { return length_; }
    uint64_t bytes_held() const { return pages_.capacity() * sizeof(uint64_t); }

  private:
    void drop_pages();
    snic_status read_level(Host &host, uint64_t table, unsigned level, uint64_t &remaining);

    uint64_t base_ = 0;    // when pages_ is empty: one contiguous run
    uint64_t first_ = 0;   // offset of the first byte in the first page
    uint64_t length_ = 0;
    uint64_t mask_ = SNIC_PAGE_SIZE - 1;
    unsigned shift_ = SNIC_PAGE_SHIFT;
    std::vector<uint64_t> pages_;
    PageBudget *budget_ = nullptr;  // has given us as many as pages_ holds
};

}  // namespace snic
