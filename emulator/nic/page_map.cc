// SPDX-License-Identifier: GPL-2.0-or-later
#include "page_map.h"

#include <cstring>
#include <limits>

namespace snic {

namespace {

// Pages that `levels` can name; the bound on every walk and allocation here.
uint64_t capacity(unsigned levels) {
    uint64_t n = 1;
    for (unsigned i = 0; i < levels; i++) n *= SNIC_PAGE_LIST_ENTRIES;
    return n;
}

}  // namespace

PageMap &PageMap::operator=(PageMap &&o) noexcept {
    if (this == &o) return *this;
    drop_pages();
    base_ = o.base_;
    first_ = o.first_;
    length_ = o.length_;
    mask_ = o.mask_;
    shift_ = o.shift_;
    pages_ = std::move(o.pages_);
    o.pages_.clear();
    budget_ = std::exchange(o.budget_, nullptr);
    return *this;
}

void PageMap::drop_pages() {
    if (budget_) budget_->give(pages_.size());
    budget_ = nullptr;
    std::vector<uint64_t>().swap(pages_);  // gives the memory back, too
}

snic_status PageMap::load(Host &host, const snic_page_list &list, uint64_t length, PageBudget *budget) {
    if (list.page_shift != 12 && list.page_shift != 21 && list.page_shift != 30) return SNIC_ERR_PARAM;
    if (list.levels > 3) return SNIC_ERR_PARAM;
    shift_ = list.page_shift;
    mask_ = (uint64_t{1} << shift_) - 1;
    if (list.offset > mask_ || length == 0) return SNIC_ERR_PARAM;
    if (length > std::numeric_limits<uint64_t>::max() - list.offset - mask_) return SNIC_ERR_PARAM;
    first_ = list.offset;
    length_ = length;
    const uint64_t pages = (first_ + length + mask_) >> shift_;
    drop_pages();

    if (list.levels == 0) {
        if (list.root & mask_) return SNIC_ERR_PARAM;
        if (list.root > std::numeric_limits<uint64_t>::max() - (pages << shift_)) return SNIC_ERR_PARAM;
        base_ = list.root;
        return SNIC_OK;
    }
    if (list.root & (SNIC_PAGE_SIZE - 1)) return SNIC_ERR_PARAM;
    if (pages > capacity(list.levels)) return SNIC_ERR_PARAM;
    if (budget && !budget->take(pages)) return SNIC_ERR_RESOURCES;
    uint64_t remaining = pages;
    // Grown as entries are really read: a guest that announces much and lists little costs little.
    pages_.reserve(pages < 4096 ? pages : 4096);
    if (snic_status st = read_level(host, list.root, list.levels, remaining); st != SNIC_OK) {
        if (budget) budget->give(pages);
        std::vector<uint64_t>().swap(pages_);
        return st;
    }
    budget_ = budget;
    bool contiguous = true;
    for (size_t i = 1; i < pages_.size() && contiguous; i++) contiguous = pages_[i] == pages_[i - 1] + mask_ + 1;
    if (contiguous) {
        base_ = pages_[0];
        drop_pages();
    }
    return SNIC_OK;
}

// Depth is bounded by `level`, breadth by `remaining`, so a list that names itself ends like any other.
snic_status PageMap::read_level(Host &host, uint64_t table, unsigned level, uint64_t &remaining) {
    uint64_t entries[SNIC_PAGE_LIST_ENTRIES];
    uint64_t below = capacity(level - 1);
    uint64_t want = (remaining + below - 1) / below;
    if (want > SNIC_PAGE_LIST_ENTRIES) want = SNIC_PAGE_LIST_ENTRIES;
    size_t len = want * sizeof(uint64_t);
    const std::byte *p = host.map(table, len, false);
    if (!p || len < want * sizeof(uint64_t)) return SNIC_ERR_DMA;
    std::memcpy(entries, p, want * sizeof(uint64_t));
    const uint64_t entry_mask = level == 1 ? mask_ : SNIC_PAGE_SIZE - 1;
    for (uint64_t i = 0; i < want; i++) {
        if (entries[i] & entry_mask) return SNIC_ERR_DMA;
        if (level == 1) {
            if (entries[i] > std::numeric_limits<uint64_t>::max() - mask_) return SNIC_ERR_DMA;
            pages_.push_back(entries[i]);
            remaining--;
        } else if (snic_status st = read_level(host, entries[i], level - 1, remaining); st != SNIC_OK) {
            return st;
        }
    }
    return SNIC_OK;
}

}  // namespace snic
