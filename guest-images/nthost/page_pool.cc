// SPDX-License-Identifier: GPL-2.0-or-later
#include "page_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace nth {

PagePool::PagePool(uint64_t bytes, uint64_t linear, Frames frames) : bytes_(page_up(bytes)), pages_(bytes_ / 4096) {
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
    madvise(base_, bytes_, MADV_HUGEPAGE);  // fewer translations, where the system allows it for shared memory
    if (frames == Frames::Physical) look_up_frames();
    pages_[0].references = 1;
    free_ = total_pages() - 1;
}

void PagePool::look_up_frames() {
    // Locked, and with compaction told to leave locked pages alone: they stay where they are.
    if (int fd = open("/proc/sys/vm/compact_unevictable_allowed", O_WRONLY | O_CLOEXEC); fd >= 0) {
        if (write(fd, "0", 1) != 1) note("cannot keep the kernel from moving locked pages: %s", strerror(errno));
        close(fd);
    }
    if (mlock(base_, bytes_) != 0)
        host_bug("cannot lock %llu MiB of memory: %s", (unsigned long long)(bytes_ >> 20), strerror(errno));
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    std::vector<uint64_t> entries(pages_.size());
    auto want = static_cast<ssize_t>(entries.size() * 8);
    if (fd < 0 || pread(fd, entries.data(), entries.size() * 8,
                        static_cast<off_t>(reinterpret_cast<uint64_t>(base_) / 4096 * 8)) != want)
        host_bug("cannot read /proc/self/pagemap: %s", strerror(errno));
    close(fd);
    for (uint64_t e : entries) {
        uint64_t frame = e & ((uint64_t{1} << 55) - 1);
        if ((e >> 63) == 0 || frame == 0)
            host_bug("a page of the pool has no physical address (root is needed to see it)");
        by_frame_[frame] = static_cast<PageIndex>(frames_.size());
        frames_.push_back(frame);
    }
}

PagePool::~PagePool() {
    munmap(base_, bytes_);
    close(fd_);
}

std::optional<PageIndex> PagePool::from_pfn(uint64_t pfn) const {
    if (!frames_.empty()) {
        auto it = by_frame_.find(pfn);
        if (it == by_frame_.end()) return std::nullopt;
        return it->second;
    }
    uint64_t first = bus_base >> 12;
    if (pfn < first || pfn - first >= pages_.size()) return std::nullopt;
    return static_cast<PageIndex>(pfn - first);
}

std::optional<PageIndex> PagePool::from_linear(uint64_t address) const {
    uint64_t offset = address - reinterpret_cast<uint64_t>(base_);
    if (offset >= bytes_) return std::nullopt;
    return static_cast<PageIndex>(offset >> 12);
}

// First fit from the hint on, then once more from the start. contiguous: on the bus, too.
std::optional<PageIndex> PagePool::find(uint32_t count, uint32_t align, uint64_t highest_bus, bool contiguous) {
    uint32_t total = total_pages();
    if (count == 0 || count >= total) return std::nullopt;
    for (int round = 0; round < 2; round++) {
        uint32_t at = round == 0 ? hint_ : 1;
        uint32_t end = round == 0 ? total : std::min(total, hint_ + count);
        while (at + count <= end) {
            uint32_t n = 0;
            bool fits = pfn(at) % align == 0;
            for (; fits && n < count; n++) {
                PageIndex p = at + n;
                if (pages_[p].references != 0 || bus(p) + 4095 > highest_bus || (contiguous && pfn(p) != pfn(at) + n))
                    fits = false;
            }
            if (fits) return at;
            at += std::max(n, 1u);
            // The page that did not fit may begin the next run.
            if (n > 1 && pages_[at - 1].references == 0) at--;
        }
    }
    return std::nullopt;
}

void PagePool::take(PageIndex first, uint32_t count, bool kernel) {
    for (uint32_t i = 0; i < count; i++) {
        pages_[first + i].references = 1;
        pages_[first + i].kernel = kernel;
        if (kernel && listener_ != nullptr) listener_->page_opened(first + i);
    }
    free_ -= count;
    hint_ = first + count < total_pages() ? first + count : 1;
}

void PagePool::zero(PageIndex first, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        Page &p = pages_[first + i];  // ours alone now: no lock needed
        if (p.dirty) memset(address(first + i), 0, 4096);
        p.dirty = true;
    }
}

std::optional<PageIndex> PagePool::allocate(uint32_t count, uint32_t align, uint64_t highest_bus) {
    std::optional<PageIndex> first;
    {
        Locked l(lock_);
        first = find(count, align, highest_bus, true);
        if (first) take(*first, count, true);
    }
    if (first) zero(*first, count);
    return first;
}

std::optional<PageIndex> PagePool::allocate_linear(uint32_t count) {
    std::optional<PageIndex> first;
    {
        Locked l(lock_);
        first = find(count, 1, ~uint64_t{0}, false);
        if (first) take(*first, count, true);
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
            first = find(count, 1, ~uint64_t{0}, false);
            if (!first) continue;
            take(*first, count, false);
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

void PagePool::set_dma_listener(DmaListener *listener) {
    Locked l(lock_);
    listener_ = listener;
    if (listener == nullptr) return;
    for (PageIndex p = 1; p < total_pages(); p++)
        if (device_may_touch(p)) listener->page_opened(p);
}

void PagePool::release(PageIndex page) {
    Locked l(lock_);
    Page &p = pages_[page];
    if (p.references == 0) host_bug("page %u released once too often", page);
    if (--p.references != 0) return;
    if (p.kernel && listener_ != nullptr) listener_->page_closed(page);
    p.kernel = false;
    free_++;
}

void PagePool::lock(PageIndex page) {
    Locked l(lock_);
    Page &p = pages_[page];
    p.references++;
    if (p.locks++ == 0 && !p.kernel && listener_ != nullptr) listener_->page_opened(page);
}

bool PagePool::unlock(PageIndex page) {
    Locked l(lock_);
    Page &p = pages_[page];
    if (p.locks == 0) return false;
    if (--p.locks == 0 && !p.kernel && listener_ != nullptr) listener_->page_closed(page);
    if (--p.references == 0) {
        p.kernel = false;
        free_++;
    }
    return true;
}

}  // namespace nth
