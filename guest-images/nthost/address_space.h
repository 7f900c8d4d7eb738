// SPDX-License-Identifier: GPL-2.0-or-later
//
// address_space.h: the virtual memory of all NT processes and of the kernel outside the linear view.
//
// Contract: a region belongs to one process (nullptr: the kernel) and has one entry per page: the pool page or device
// page behind it, and its protection. Reserve, commit, decommit, release, protect and query follow
// NtAllocateVirtualMemory and its kin, including the refusal with STATUS_INVALID_PAGE_PROTECTION while part of the
// range is secured. Everything is under one lock; nothing here calls out while holding it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "nt_status.h"
#include "page_pool.h"

namespace nth {

class Process;

enum PageProtection : uint32_t {
    PAGE_NOACCESS = 0x01,
    PAGE_READONLY = 0x02,
    PAGE_READWRITE = 0x04,
    PAGE_WRITECOPY = 0x08,
    PAGE_EXECUTE = 0x10,
    PAGE_EXECUTE_READ = 0x20,
    PAGE_EXECUTE_READWRITE = 0x40,
    PAGE_EXECUTE_WRITECOPY = 0x80,
    PAGE_GUARD = 0x100,
};

enum AllocationType : uint32_t {
    MEM_COMMIT = 0x1000,
    MEM_RESERVE = 0x2000,
    MEM_DECOMMIT = 0x4000,
    MEM_RELEASE = 0x8000,
    MEM_FREE = 0x10000,
    MEM_PRIVATE = 0x20000,
    MEM_MAPPED = 0x40000,
    MEM_RESET = 0x80000,
    MEM_TOP_DOWN = 0x100000,
    MEM_IMAGE = 0x1000000,
};

inline bool protection_readable(uint32_t p) {
    return (p & 0xff) != 0 && (p & (PAGE_NOACCESS | PAGE_GUARD)) == 0;
}
inline bool protection_writable(uint32_t p) {
    return (p & (PAGE_READWRITE | PAGE_WRITECOPY | PAGE_EXECUTE_READWRITE | PAGE_EXECUTE_WRITECOPY)) != 0 &&
           (p & PAGE_GUARD) == 0;
}

struct MemoryInformation {  // MEMORY_BASIC_INFORMATION
    uint64_t BaseAddress, AllocationBase;
    uint32_t AllocationProtect, Padding1;
    uint64_t RegionSize;
    uint32_t State, Protect, Type, Padding2;
};

class AddressSpace {
  public:
    enum class Kind { Private, Image, View };

    explicit AddressSpace(PagePool &pool) : pool_(pool) {}

    // address 0: anywhere. A fixed address that is taken answers STATUS_CONFLICTING_ADDRESSES.
    nt::NTSTATUS allocate(Process *owner, uint64_t *address, uint64_t *size, uint32_t type, uint32_t protection,
                          Kind kind = Kind::Private);
    nt::NTSTATUS free(Process *owner, uint64_t *address, uint64_t *size, uint32_t type);
    nt::NTSTATUS protect(Process *owner, uint64_t *address, uint64_t *size, uint32_t protection, uint32_t *old);
    MemoryInformation query(Process *owner, uint64_t address);

    // Kernel images: committed read-write memory at `address` or, when taken or 0, in KERNEL_IMAGES.
    uint64_t allocate_kernel_image(uint64_t size);

    // A view of given pool pages; takes a reference on each. address 0: anywhere.
    std::optional<uint64_t> map_pages(Process *owner, const uint64_t *pfns, uint64_t count, uint32_t protection);
    // A view of device memory: the region is registered and left to the caller to fill (mapped or trapping).
    std::optional<uint64_t> reserve_device_view(Process *owner, uint64_t first_pfn, uint64_t count);
    // Removes a view made by map_pages or reserve_device_view. false: there is none at that address with that owner.
    bool unmap_view(Process *owner, uint64_t address, uint64_t count);

    // Locks the pages of a user range for MmProbeAndLockPages: all or nothing. pfns has one entry per page.
    nt::NTSTATUS lock_range(Process *owner, uint64_t address, uint64_t length, bool write, uint64_t *pfns);
    // Bus page of any mapped page (user, kernel view or linear), without locking it.
    std::optional<uint64_t> pfn_of(uint64_t address);
    // Whether every page of the range is accessible in that way.
    bool accessible(Process *owner, uint64_t address, uint64_t length, bool write);

    uint64_t secure(Process *owner, uint64_t address, uint64_t length, uint32_t probe_mode);  // 0: refused
    bool unsecure(Process *owner, uint64_t handle);
    size_t secures(Process *owner);
    size_t secures_over(Process *owner, uint64_t first, uint64_t last);  // that cover all of it
    size_t drop_secures(Process *owner);

    // Everything that the process still has, at its end.
    void release_all(Process *owner);
    // Protection key for user memory (-1: none); applied to every user mapping made from now on.
    void set_user_key(int key) { user_key_ = key; }
    PagePool &pool() { return pool_; }

  private:
    static constexpr uint32_t DEVICE_PAGE = 0xffffffff;
    struct Region {
        uint64_t base, pages;
        Process *owner;
        Kind kind;
        uint32_t allocation_protection;
        uint64_t device_pfn = 0;      // device view when not 0
        std::vector<PageIndex> page;  // 0: not committed
        std::vector<uint16_t> protection;
        uint64_t end() const { return base + pages * 4096; }
    };
    struct Secure {
        uint64_t handle, first, last;  // addresses, last inclusive
        Process *owner;
        bool write;
    };

    Region *find(uint64_t address);
    uint64_t find_gap(uint64_t from, uint64_t limit, uint64_t size, uint64_t granularity);
    bool reserve_at(uint64_t address, uint64_t size);
    nt::NTSTATUS commit(Region &r, uint64_t first, uint64_t count, uint32_t protection);
    void decommit(Region &r, uint64_t first, uint64_t count);
    void apply_protection(Region &r, uint64_t first, uint64_t count, uint32_t protection);
    void map_run(const Region &r, uint64_t first, uint64_t count);
    bool secured(Process *owner, uint64_t first, uint64_t last, bool freeing, uint32_t new_protection) const;
    void drop_region(uint64_t base);

    PagePool &pool_;
    FutexLock lock_;  // guards all below
    std::map<uint64_t, std::unique_ptr<Region>> regions_;
    std::vector<Secure> secures_;
    uint64_t next_secure_ = 0x100;
    uint64_t next_user_ = USER_ALLOC_BASE;
    int user_key_ = -1;
};

}  // namespace nth
