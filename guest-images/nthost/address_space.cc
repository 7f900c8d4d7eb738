// SPDX-License-Identifier: GPL-2.0-or-later
#include "address_space.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nth {

using namespace nt;

// Under a debugger code stays writable: breakpoints cannot be put into read-only shared mappings.
static int native_protection(uint32_t p) {
    if (p & (PAGE_NOACCESS | PAGE_GUARD)) return PROT_NONE;
    switch (p & 0xff) {
        case PAGE_READONLY: return PROT_READ;
        case PAGE_READWRITE:
        case PAGE_WRITECOPY: return PROT_READ | PROT_WRITE;
        case PAGE_EXECUTE:
        case PAGE_EXECUTE_READ: return PROT_READ | PROT_EXEC | (under_debugger() ? PROT_WRITE : 0);
        case PAGE_EXECUTE_READWRITE:
        case PAGE_EXECUTE_WRITECOPY: return PROT_READ | PROT_WRITE | PROT_EXEC;
        default: return PROT_NONE;
    }
}

static bool valid_protection(uint32_t p) {
    uint32_t base = p & 0xff;
    return base != 0 && (base & (base - 1)) == 0 && (p & ~uint32_t{0x7ff}) == 0;
}

AddressSpace::Region *AddressSpace::find(uint64_t address) {
    auto it = regions_.upper_bound(address);
    if (it == regions_.begin()) return nullptr;
    Region *r = std::prev(it)->second.get();
    return address < r->end() ? r : nullptr;
}

uint64_t AddressSpace::find_gap(uint64_t from, uint64_t limit, uint64_t size, uint64_t granularity) {
    uint64_t at = from;
    auto it = regions_.lower_bound(at);
    while (it != regions_.end() && it->first < at + size) {
        at = (it->second->end() + granularity - 1) & ~(granularity - 1);
        it = regions_.lower_bound(at);
    }
    return at + size <= limit ? at : 0;
}

bool AddressSpace::reserve_at(uint64_t address, uint64_t size) {
    void *want = reinterpret_cast<void *>(address);
    void *p = mmap(want, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == want) return true;
    if (p != MAP_FAILED) munmap(p, size);
    return false;
}

void AddressSpace::map_run(const Region &r, uint64_t first, uint64_t count) {
    // Merge what is contiguous in the pool and equally protected into one mapping each.
    uint64_t i = first;
    while (i < first + count) {
        uint64_t n = 1;
        while (i + n < first + count && r.page[i + n] == r.page[i] + n && r.protection[i + n] == r.protection[i]) n++;
        void *at = reinterpret_cast<void *>(r.base + i * 4096);
        int prot = native_protection(r.protection[i]);
        void *p = mmap(at, n * 4096, prot, MAP_SHARED | MAP_FIXED, pool_.fd(), off_t(r.page[i]) * 4096);
        if (p == MAP_FAILED)
            host_bug("cannot map %llu pages: %s (too many separate mappings? raise vm.max_map_count)",
                     (unsigned long long)n, strerror(errno));
        if (user_key_ >= 0 && is_user_address(r.base)) pkey_mprotect(at, n * 4096, prot, user_key_);
        i += n;
    }
}

NTSTATUS AddressSpace::commit(Region &r, uint64_t first, uint64_t count, uint32_t protection) {
    std::vector<std::pair<uint64_t, uint64_t>> fresh;  // for undoing: first, count
    uint64_t i = first;
    while (i < first + count) {
        if (r.page[i] != 0) {
            i++;
            continue;
        }
        uint64_t want = 1;
        while (i + want < first + count && r.page[i + want] == 0) want++;
        uint32_t got = 0;
        auto page = pool_.allocate_run(static_cast<uint32_t>(want), &got);
        if (!page) {
            for (auto [at, n] : fresh)
                for (uint64_t k = 0; k < n; k++) {
                    pool_.release(r.page[at + k]);
                    r.page[at + k] = 0;
                }
            return STATUS_NO_MEMORY;
        }
        for (uint32_t k = 0; k < got; k++) r.page[i + k] = *page + k;
        fresh.emplace_back(i, got);
        i += got;
    }
    for (uint64_t k = first; k < first + count; k++) r.protection[k] = static_cast<uint16_t>(protection);
    map_run(r, first, count);
    return STATUS_SUCCESS;
}

void AddressSpace::decommit(Region &r, uint64_t first, uint64_t count) {
    void *at = reinterpret_cast<void *>(r.base + first * 4096);
    if (mmap(at, count * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        host_bug("cannot unmap pages: %s", strerror(errno));
    for (uint64_t i = first; i < first + count; i++) {
        if (r.page[i] == 0) continue;
        if (r.page[i] != DEVICE_PAGE) pool_.release(r.page[i]);
        r.page[i] = 0;
    }
}

bool AddressSpace::secured(Process *owner, uint64_t first, uint64_t last, bool freeing, uint32_t protection) const {
    for (const Secure &s : secures_) {
        if (s.owner != owner || s.last < first || last < s.first) continue;
        if (freeing || !protection_readable(protection) || (s.write && !protection_writable(protection))) return true;
    }
    return false;
}

NTSTATUS AddressSpace::allocate(Process *owner, uint64_t *address, uint64_t *size, uint32_t type, uint32_t protection,
                                Kind kind) {
    if (*size == 0 || *size > USER_LIMIT || !valid_protection(protection)) return STATUS_INVALID_PARAMETER;
    if ((type & (MEM_COMMIT | MEM_RESERVE)) == 0) return STATUS_INVALID_PARAMETER;
    Locked l(lock_);
    uint64_t base = *address;
    bool reserve = (type & MEM_RESERVE) != 0 || base == 0;
    if (!reserve) {
        uint64_t first = page_down(base), end = page_up(base + *size);
        Region *r = find(first);
        if (r == nullptr || r->owner != owner || end > r->end() || r->kind == Kind::View)
            return STATUS_CONFLICTING_ADDRESSES;
        NTSTATUS s = commit(*r, (first - r->base) / 4096, (end - first) / 4096, protection);
        if (!nt_success(s)) return s;
        *address = first;
        *size = end - first;
        return STATUS_SUCCESS;
    }
    uint64_t first = base & ~uint64_t{0xffff};
    uint64_t bytes = page_up(base - first + *size);
    if (base != 0) {
        if (first < USER_FIRST || first + bytes > USER_LIMIT) return STATUS_INVALID_PARAMETER;
        if (!reserve_at(first, bytes)) return STATUS_CONFLICTING_ADDRESSES;
    } else {
        // Addresses are not reused at once: a stale pointer should fault, not read the next allocation.
        bool again = false;
        for (;;) {
            first = find_gap(next_user_, USER_LIMIT, bytes, 0x10000);
            if (first == 0 && !again) {
                again = true;
                next_user_ = USER_ALLOC_BASE;
                continue;
            }
            if (first == 0) return STATUS_NO_MEMORY;
            next_user_ = (first + bytes + 0xffff) & ~uint64_t{0xffff};
            if (reserve_at(first, bytes)) break;
        }
    }
    auto r = std::make_unique<Region>(Region{first, bytes / 4096, owner, kind, protection, 0, {}, {}});
    r->page.resize(bytes / 4096);
    r->protection.resize(bytes / 4096, PAGE_NOACCESS);
    if (type & MEM_COMMIT) {
        NTSTATUS s = commit(*r, 0, r->pages, protection);
        if (!nt_success(s)) {
            munmap(reinterpret_cast<void *>(first), bytes);
            return s;
        }
    }
    regions_[first] = std::move(r);
    *address = first;
    *size = bytes;
    return STATUS_SUCCESS;
}

void AddressSpace::drop_region(uint64_t base) {
    auto it = regions_.find(base);
    Region &r = *it->second;
    for (PageIndex p : r.page)
        if (p != 0 && p != DEVICE_PAGE) pool_.release(p);
    munmap(reinterpret_cast<void *>(r.base), r.pages * 4096);
    regions_.erase(it);
}

NTSTATUS AddressSpace::free(Process *owner, uint64_t *address, uint64_t *size, uint32_t type) {
    Locked l(lock_);
    Region *r = find(*address);
    if (r == nullptr || r->owner != owner) return STATUS_MEMORY_NOT_ALLOCATED;
    if (r->kind == Kind::View) return STATUS_UNABLE_TO_FREE_VM;
    if (type == MEM_RELEASE) {
        if (*size == 0) {
            if (page_down(*address) != r->base) return STATUS_FREE_VM_NOT_AT_BASE;
        } else if (page_down(*address) != r->base || page_up(*address + *size) != r->end()) {
            return STATUS_UNABLE_TO_FREE_VM;  // partial release is possible in NT, but nobody means it
        }
        if (secured(owner, r->base, r->end() - 1, true, 0)) return STATUS_INVALID_PAGE_PROTECTION;
        *address = r->base;
        *size = r->pages * 4096;
        drop_region(r->base);
        return STATUS_SUCCESS;
    }
    if (type != MEM_DECOMMIT) return STATUS_INVALID_PARAMETER;
    uint64_t first = page_down(*address), end = *size == 0 ? r->end() : page_up(*address + *size);
    if (*size == 0 && first != r->base) return STATUS_FREE_VM_NOT_AT_BASE;
    if (end > r->end()) return STATUS_UNABLE_TO_FREE_VM;
    if (secured(owner, first, end - 1, true, 0)) return STATUS_INVALID_PAGE_PROTECTION;
    decommit(*r, (first - r->base) / 4096, (end - first) / 4096);
    *address = first;
    *size = end - first;
    return STATUS_SUCCESS;
}

void AddressSpace::apply_protection(Region &r, uint64_t first, uint64_t count, uint32_t protection) {
    for (uint64_t i = first; i < first + count; i++) r.protection[i] = static_cast<uint16_t>(protection);
    void *at = reinterpret_cast<void *>(r.base + first * 4096);
    int prot = native_protection(protection);
    bool keyed = user_key_ >= 0 && is_user_address(r.base);
    if ((keyed ? pkey_mprotect(at, count * 4096, prot, user_key_) : mprotect(at, count * 4096, prot)) != 0)
        host_bug("mprotect: %s", strerror(errno));
}

NTSTATUS AddressSpace::protect(Process *owner, uint64_t *address, uint64_t *size, uint32_t protection, uint32_t *old) {
    if (*size == 0 || *size > USER_LIMIT || !valid_protection(protection)) return STATUS_INVALID_PAGE_PROTECTION;
    Locked l(lock_);
    uint64_t first = page_down(*address), end = page_up(*address + *size);
    Region *r = find(first);
    if (r == nullptr || r->owner != owner || end > r->end()) return STATUS_CONFLICTING_ADDRESSES;
    uint64_t at = (first - r->base) / 4096, count = (end - first) / 4096;
    for (uint64_t i = at; i < at + count; i++)
        if (r->page[i] == 0 || r->page[i] == DEVICE_PAGE) return STATUS_NOT_COMMITTED;
    if (secured(owner, first, end - 1, false, protection)) return STATUS_INVALID_PAGE_PROTECTION;
    *old = r->protection[at];
    apply_protection(*r, at, count, protection);
    *address = first;
    *size = end - first;
    return STATUS_SUCCESS;
}

MemoryInformation AddressSpace::query(Process *owner, uint64_t address) {
    Locked l(lock_);
    MemoryInformation info{};
    address = page_down(address);
    info.BaseAddress = address;
    Region *r = find(address);
    if (r == nullptr || r->owner != owner) {
        auto it = regions_.upper_bound(address);
        info.RegionSize = (it == regions_.end() ? USER_LIMIT : std::min(it->first, USER_LIMIT)) - address;
        info.State = MEM_FREE;
        info.Protect = PAGE_NOACCESS;
        return info;
    }
    uint64_t i = (address - r->base) / 4096, n = 1;
    bool committed = r->page[i] != 0;
    while (i + n < r->pages && (r->page[i + n] != 0) == committed &&
           (!committed || r->protection[i + n] == r->protection[i]))
        n++;
    info.AllocationBase = r->base;
    info.AllocationProtect = r->allocation_protection;
    info.RegionSize = n * 4096;
    info.State = committed ? MEM_COMMIT : MEM_RESERVE;
    info.Protect = committed ? r->protection[i] : 0;
    info.Type = r->kind == Kind::Image ? MEM_IMAGE : r->kind == Kind::View ? MEM_MAPPED : MEM_PRIVATE;
    return info;
}

uint64_t AddressSpace::allocate_kernel_image(uint64_t size) {
    Locked l(lock_);
    uint64_t at = find_gap(KERNEL_IMAGES, KERNEL_MMIO, size, 0x10000);
    if (at == 0 || !reserve_at(at, size))
        host_bug("no room for a driver image of %llu bytes", (unsigned long long)size);
    auto r = std::make_unique<Region>(Region{at, size / 4096, nullptr, Kind::Image, PAGE_EXECUTE_READWRITE, 0, {}, {}});
    r->page.resize(size / 4096);
    r->protection.resize(size / 4096, PAGE_NOACCESS);
    if (!nt_success(commit(*r, 0, r->pages, PAGE_READWRITE)))
        host_bug("the page pool is too small for the driver image");
    regions_[at] = std::move(r);
    return at;
}

std::optional<uint64_t> AddressSpace::map_pages(Process *owner, const uint64_t *pfns, uint64_t count,
                                                uint32_t protection) {
    Locked l(lock_);
    uint64_t bytes = count * 4096;
    uint64_t at = owner != nullptr ? find_gap(next_user_, USER_LIMIT, bytes, 0x10000)
                                   : find_gap(KERNEL_PTES, KERNEL_STACKS, bytes, 0x1000);
    if (at == 0 || !reserve_at(at, bytes)) return std::nullopt;
    if (owner != nullptr) next_user_ = (at + bytes + 0xffff) & ~uint64_t{0xffff};
    auto r = std::make_unique<Region>(Region{at, count, owner, Kind::View, protection, 0, {}, {}});
    for (uint64_t i = 0; i < count; i++) {
        auto page = pool_.from_pfn(pfns[i]);
        if (!page) host_bug("map_pages: page frame %llx is not memory", (unsigned long long)pfns[i]);
        pool_.reference(*page);
        r->page.push_back(*page);
        r->protection.push_back(static_cast<uint16_t>(protection));
    }
    map_run(*r, 0, count);
    regions_[at] = std::move(r);
    return at;
}

std::optional<uint64_t> AddressSpace::reserve_device_view(Process *owner, uint64_t first_pfn, uint64_t count) {
    Locked l(lock_);
    uint64_t bytes = count * 4096;
    uint64_t at = owner != nullptr ? find_gap(next_user_, USER_LIMIT, bytes, 0x10000)
                                   : find_gap(KERNEL_MMIO, KERNEL_PTES, bytes, 0x1000);
    if (at == 0 || !reserve_at(at, bytes)) return std::nullopt;
    if (owner != nullptr) next_user_ = (at + bytes + 0xffff) & ~uint64_t{0xffff};
    auto r = std::make_unique<Region>(Region{at, count, owner, Kind::View, PAGE_READWRITE, first_pfn, {}, {}});
    r->page.resize(count, DEVICE_PAGE);
    r->protection.resize(count, PAGE_READWRITE);
    regions_[at] = std::move(r);
    return at;
}

bool AddressSpace::unmap_view(Process *owner, uint64_t address, uint64_t count) {
    Locked l(lock_);
    auto it = regions_.find(page_down(address));
    if (it == regions_.end() || it->second->kind != Kind::View || it->second->owner != owner) return false;
    if (count != 0 && it->second->pages != count) return false;
    drop_region(it->first);
    return true;
}

NTSTATUS AddressSpace::lock_range(Process *owner, uint64_t address, uint64_t length, bool write, uint64_t *pfns) {
    uint64_t first = page_down(address), end = page_up(address + length);
    if (end <= first) return STATUS_ACCESS_VIOLATION;
    Locked l(lock_);
    uint64_t n = 0;
    for (uint64_t at = first; at < end; at += 4096, n++) {
        Region *r = find(at);
        uint64_t i = r != nullptr ? (at - r->base) / 4096 : 0;
        bool ok = r != nullptr && r->owner == owner && r->page[i] != 0 && r->page[i] != DEVICE_PAGE &&
                  (write ? protection_writable(r->protection[i]) : protection_readable(r->protection[i]));
        if (!ok) {
            for (uint64_t k = 0; k < n; k++) pool_.unlock(*pool_.from_pfn(pfns[k]));
            return STATUS_ACCESS_VIOLATION;
        }
        pool_.lock(r->page[i]);
        pfns[n] = pool_.pfn(r->page[i]);
    }
    return STATUS_SUCCESS;
}

std::optional<uint64_t> AddressSpace::pfn_of(uint64_t address) {
    if (auto page = pool_.from_linear(address)) return pool_.pfn(*page);
    Locked l(lock_);
    Region *r = find(address);
    if (r == nullptr) return std::nullopt;
    uint64_t i = (address - r->base) / 4096;
    if (r->page[i] == DEVICE_PAGE) return r->device_pfn + i;
    if (r->page[i] == 0) return std::nullopt;
    return pool_.pfn(r->page[i]);
}

bool AddressSpace::accessible(Process *owner, uint64_t address, uint64_t length, bool write) {
    if (length == 0) return true;
    Locked l(lock_);
    for (uint64_t at = page_down(address); at < address + length; at += 4096) {
        Region *r = find(at);
        if (r == nullptr || r->owner != owner) return false;
        uint64_t i = (at - r->base) / 4096;
        if (r->page[i] == 0) return false;
        if (write ? !protection_writable(r->protection[i]) : !protection_readable(r->protection[i])) return false;
    }
    return true;
}

uint64_t AddressSpace::secure(Process *owner, uint64_t address, uint64_t length, uint32_t probe_mode) {
    bool write = probe_mode == PAGE_READWRITE;
    if ((!write && probe_mode != PAGE_READONLY) || length == 0 || address + length < address ||
        !is_user_address(address + length - 1))
        return 0;
    if (!accessible(owner, address, length, write)) return 0;
    Locked l(lock_);
    // A secure covers whole pages.
    secures_.push_back({next_secure_, page_down(address), page_up(address + length) - 1, owner, write});
    next_secure_ += 8;
    return secures_.back().handle;
}

size_t AddressSpace::secures_over(Process *owner, uint64_t first, uint64_t last) {
    Locked l(lock_);
    return static_cast<size_t>(std::count_if(secures_.begin(), secures_.end(), [&](const Secure &s) {
        return s.owner == owner && s.first <= first && last <= s.last;
    }));
}

bool AddressSpace::unsecure(Process *owner, uint64_t handle) {
    Locked l(lock_);
    auto it = std::find_if(secures_.begin(), secures_.end(),
                           [&](const Secure &s) { return s.handle == handle && s.owner == owner; });
    if (it == secures_.end()) return false;
    secures_.erase(it);
    return true;
}

size_t AddressSpace::secures(Process *owner) {
    Locked l(lock_);
    return std::count_if(secures_.begin(), secures_.end(), [&](const Secure &s) { return s.owner == owner; });
}

size_t AddressSpace::drop_secures(Process *owner) {
    Locked l(lock_);
    return std::erase_if(secures_, [&](const Secure &s) { return s.owner == owner; });
}

void AddressSpace::release_all(Process *owner) {
    Locked l(lock_);
    for (auto it = regions_.begin(); it != regions_.end();) {
        uint64_t base = it->first;
        bool mine = it->second->owner == owner;
        ++it;
        if (mine) drop_region(base);
    }
    std::erase_if(secures_, [&](const Secure &s) { return s.owner == owner; });
}

}  // namespace nth
