// SPDX-License-Identifier: GPL-2.0-or-later
#include "page_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nth {

PagePool::PagePool(uint64_t bytes, uint64_t linear) : bytes_(page_up(bytes)), pages_(bytes_ / 4096) {
    fd_ = memfd_create("nthost-ram", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes_)) != 0)
        host_bug("cannot create a page pool of %llu MiB: %s", (unsigned long long)(bytes_ >> 20), strerror(errno));
    // Sealed, so that peers may map it and never see it shrink.
    fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    int flags = MAP_SHARED | (linear != 0 ? MAP_FIXED_NOREPLACE : 0);
    void *p = mmap(reinterpret_cast<void *>(linear), bytes_, PROT_READ | PROT_WRITE, flags, fd_, 0);
    if (p == MAP_FAILED || (linear != 0 && p != reinterpret_cast<void *>(linear)))
        host_bug("cannot map the page pool of %llu MiB: %s", (unsigned long long)(bytes_ >> 20), strerror(errno));
    base_ = static_cast<uint8_t *>(p);
    pages_[0].references = 1;
    free_ = total_pages() - 1;
}

PagePool::~PagePool() {
    munmap(base_, bytes_);
    close(fd_);
}

std::optional<PageIndex> PagePool::from_pfn(uint64_t pfn) const {
    uint64_t first = BUS_BASE >> 12;
    if (pfn < first || pfn - first >= pages_.size()) return std::nullopt;
    return static_cast<PageIndex>(pfn - first);
}

std::optional<PageIndex> PagePool::from_linear(uint64_t address) const {
    uint64_t offset = address - reinterpret_cast<uint64_t>(base_);
    if (offset >= bytes_) return std::nullopt;
    return static_cast<PageIndex>(offset >> 12);
}

// First fit from the hint on, then once more from the start.
std::optional<PageIndex> PagePool::find(uint32_t count, uint32_t align, uint64_t highest_bus) {
    uint32_t total = total_pages();
    if (count == 0 || count >= total) return std::nullopt;
    uint32_t first_pfn = BUS_BASE >> 12;
    for (int round = 0; round < 2; round++) {
        uint32_t at = round == 0 ? hint_ : 1;
        uint32_t end = round == 0 ? total : std::min(total, hint_ + count);
        while (at + count <= end) {
            if ((at + first_pfn) % align != 0) {
                at += align - (at + first_pfn) % align;
                continue;
            }
            if (bus(at + count - 1) + 4095 > highest_bus) break;
            uint32_t n = 0;
            while (n < count && pages_[at + n].references == 0) n++;
            if (n == count) return at;
            at += n + 1;
        }
    }
    return std::nullopt;
}

void PagePool::take(PageIndex first, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) pages_[first + i].references = 1;
    free_ -= count;
    hint_ = first + count < total_pages() ? first + count : 1;
}

void PagePool::zero(PageIndex first, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        Page &p = pages_[first + i]; // ours alone now: no lock needed
        if (p.dirty) memset(address(first + i), 0, 4096);
        p.dirty = true;
    }
}

std::optional<PageIndex> PagePool::allocate(uint32_t count, uint32_t align, uint64_t highest_bus) {
    std::optional<PageIndex> first;
    {
        Locked l(lock_);
        first = find(count, align, highest_bus);
        if (first) take(*first, count);
    }
    if (first) zero(*first, count);
    return first;
}

std::optional<PageIndex> PagePool::allocate_run(uint32_t count, uint32_t *got) {
    std::optional<PageIndex> first;
    {
        Locked l(lock_);
        for (; count != 0; count /= 2) {
            if (count > free_) continue;
            first = find(count, 1, ~uint64_t{0});
            if (!first) continue;
            take(*first, count);
            *got = count;
            break;
        }
    }
    if (first) zero(*first, *got);
    return first;
}

void PagePool::reference(PageIndex page) {
    Locked l(lock_);
    pages_[page].references++;
}

void PagePool::release(PageIndex page) {
    Locked l(lock_);
    Page &p = pages_[page];
    if (p.references == 0) host_bug("page %u released once too often", page);
    if (--p.references == 0) free_++;
}

void PagePool::lock(PageIndex page) {
    Locked l(lock_);
    pages_[page].references++;
    pages_[page].locks++;
}

bool PagePool::unlock(PageIndex page) {
    Locked l(lock_);
    Page &p = pages_[page];
    if (p.locks == 0) return false;
    p.locks--;
    if (--p.references == 0) free_++;
    return true;
}

} // namespace nth
