// SPDX-License-Identifier: GPL-2.0-or-later
//
// Mm: MDLs, locking, mapping, securing, contiguous memory, I/O space.
#include "mdl.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "cpu.h"
#include "device.h"
#include "exception.h"
#include "imports.h"
#include "user_access.h"
#include "verifier.h"

extern "C" int nth_safe_copy(void *to, const void *from, size_t size);

namespace nth {

using namespace nt;

namespace {

constexpr uint32_t MDL_TAG = 0x206c644d;

FutexLock g_lock;  // guards the maps
struct Owned {
    uint64_t pages;
    PageIndex first;
};
std::map<uint64_t, Owned> g_contiguous;      // by linear address
std::map<uint64_t, uint64_t> g_io_space;     // address -> size
std::map<uint64_t, uint64_t> g_system_maps;  // address -> pages
std::atomic<int64_t> g_pages_for_mdl{0};

}  // namespace

uint64_t mdl_pages(const MDL *m) {
    return (uint64_t{m->ByteOffset} + m->ByteCount + 4095) / 4096;
}

MDL *allocate_mdl(uint64_t address, uint64_t length) {
    uint64_t pages = ((address & 4095) + length + 4095) / 4096;
    uint64_t bytes = sizeof(MDL) + pages * 8;
    if (length > 0xffffffff || pages == 0) return nullptr;
    auto *m = static_cast<MDL *>(pool_allocate(bytes, MDL_TAG, true));
    if (m == nullptr) return nullptr;
    memset(static_cast<void *>(m), 0, bytes);
    m->Size = static_cast<SHORT>(std::min<uint64_t>(bytes, 32760));
    m->StartVa = reinterpret_cast<void *>(page_down(address));
    m->ByteOffset = static_cast<ULONG>(address & 4095);
    m->ByteCount = static_cast<ULONG>(length);
    return m;
}

static void unmap_system(MDL *m) {
    if ((m->MdlFlags & MDL_MAPPED_TO_SYSTEM_VA) == 0) return;
    uint64_t at = page_down(reinterpret_cast<uint64_t>(m->MappedSystemVa));
    memory().unmap_view(nullptr, at, mdl_pages(m));
    Locked l(g_lock);
    g_system_maps.erase(at);
    m->MdlFlags &= ~(MDL_MAPPED_TO_SYSTEM_VA | MDL_PARTIAL_HAS_BEEN_MAPPED);
}

void free_mdl(MDL *m) {
    if ((m->MdlFlags & MDL_PAGES_LOCKED) && g_verifier)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "IoFreeMdl: the pages of MDL %p are still locked",
                 (void *)m);
    if (m->MdlFlags & MDL_PARTIAL_HAS_BEEN_MAPPED) unmap_system(m);
    pool_free(m, MDL_TAG, true);
}

// NT probes for writing by reading a byte of each page and writing it back: what a device writes there in between is
// lost. Where the page is locked by somebody else as well, so that a device may be writing there, others run in between:
// a driver that probes such pages is found out.
static void probe_for_write(MDL *m, uint64_t address, uint64_t pages) {
    UserAccess open;
    for (uint64_t i = 0; i < pages; i++) {
        uint64_t at = i == 0 ? address : page_down(address) + i * 4096;
        auto page = page_pool().from_pfn(m->pfns()[i]);
        uint8_t seen;
        if (nth_safe_copy(&seen, reinterpret_cast<const void *>(at), 1) != 0) continue;
        if (page && page_pool().locks(*page) > 1) sched_yield();
        nth_safe_copy(reinterpret_cast<void *>(at), &seen, 1);
    }
}

NTSTATUS lock_mdl(MDL *m, Process *p, LockOperation operation) {
    uint64_t address = reinterpret_cast<uint64_t>(m->StartVa) + m->ByteOffset;
    bool write = operation != LockOperation::Read;
    NTSTATUS s = memory().lock_range(p, address, m->ByteCount, write, m->pfns());
    if (!nt_success(s)) return s;
    if (write && p != nullptr) probe_for_write(m, address, mdl_pages(m));
    m->Process = p;
    m->MdlFlags |= MDL_PAGES_LOCKED | (write ? MDL_WRITE_OPERATION : 0);
    if (p != nullptr) p->locked_pages += static_cast<int64_t>(mdl_pages(m));
    return STATUS_SUCCESS;
}

void unlock_mdl(MDL *m, const char *function) {
    if ((m->MdlFlags & MDL_PAGES_LOCKED) == 0)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "%s: the pages of MDL %p are not locked", function,
                 (void *)m);
    unmap_system(m);
    uint64_t pages = mdl_pages(m);
    for (uint64_t i = 0; i < pages; i++) {
        auto page = page_pool().from_pfn(m->pfns()[i]);
        if (!page || !page_pool().unlock(*page))
            bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "%s: page frame %llx of MDL %p is not locked",
                     function, (unsigned long long)m->pfns()[i], (void *)m);
    }
    if (m->Process != nullptr) static_cast<Process *>(m->Process)->locked_pages -= static_cast<int64_t>(pages);
    m->Process = nullptr;
    m->MdlFlags &= ~(MDL_PAGES_LOCKED | MDL_WRITE_OPERATION);
}

// ---- --require-secure: whatever is locked is secured
namespace {
struct LockedRange {
    MDL *mdl;
    Process *owner;
    uint64_t first, last;  // whole pages
};
std::vector<LockedRange> g_locked_ranges;  // under g_lock

void require_secured(const LockedRange &r, const char *function, const char *rule) {
    if (memory().secures_over(r.owner, r.first, r.last) == 0)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "%s: 0x%llx to 0x%llx is locked and not secured: %s", function,
                 (unsigned long long)r.first, (unsigned long long)r.last, rule);
}
void note_locked(MDL *m, Process *owner) {
    uint64_t first = reinterpret_cast<uint64_t>(m->StartVa), last = first + mdl_pages(m) * 4096 - 1;
    LockedRange range{m, owner, first, last};
    require_secured(range, "MmProbeAndLockPages", "secure before locking");
    Locked l(g_lock);
    g_locked_ranges.push_back(range);
}
void note_unlocked(MDL *m) {
    Locked l(g_lock);
    std::erase_if(g_locked_ranges, [m](const LockedRange &r) { return r.mdl == m; });
}
void check_unsecured(Process *owner) {
    std::vector<LockedRange> locked;
    {
        Locked l(g_lock);
        locked = g_locked_ranges;
    }
    for (const LockedRange &r : locked)
        if (r.owner == owner) require_secured(r, "MmUnsecureVirtualMemory", "unlock before unsecuring");
}
}  // namespace

bool g_require_secure = false;

std::string driver_leaks() {
    std::string out;
    auto add = [&](const std::string &s) { out += (out.empty() ? "" : "; ") + s; };
    if (std::string pool = pool_leaks(); !pool.empty()) add("pool: " + pool);
    Locked l(g_lock);
    if (!g_contiguous.empty()) add(std::to_string(g_contiguous.size()) + " contiguous allocations");
    if (!g_io_space.empty()) add(std::to_string(g_io_space.size()) + " MmMapIoSpace mappings");
    if (!g_system_maps.empty()) add(std::to_string(g_system_maps.size()) + " system mappings of MDLs");
    if (g_pages_for_mdl != 0) add(std::to_string(g_pages_for_mdl) + " pages from MmAllocatePagesForMdl");
    return out;
}

namespace {

MDL *NTAPI IoAllocateMdl(uint64_t address, ULONG length, BOOLEAN secondary, BOOLEAN, IRP *irp) {
    require_irql(DISPATCH_LEVEL, "IoAllocateMdl");
    MDL *m = allocate_mdl(address, length);
    if (m == nullptr || irp == nullptr) return m;
    MDL **link = &irp->MdlAddress;
    if (secondary)
        while (*link != nullptr) link = &(*link)->Next;
    *link = m;
    return m;
}
void NTAPI IoFreeMdl(MDL *m) {
    require_irql(DISPATCH_LEVEL, "IoFreeMdl");
    free_mdl(m);
}
void NTAPI IoBuildPartialMdl(MDL *source, MDL *target, uint64_t address, ULONG length) {
    uint64_t start = reinterpret_cast<uint64_t>(source->StartVa) + source->ByteOffset;
    uint64_t skip = address - start;
    if (length == 0) length = static_cast<ULONG>(source->ByteCount - skip);
    uint64_t first = (page_down(address) - reinterpret_cast<uint64_t>(source->StartVa)) / 4096;
    target->StartVa = reinterpret_cast<void *>(page_down(address));
    target->ByteOffset = static_cast<ULONG>(address & 4095);
    target->ByteCount = length;
    target->Process = source->Process;
    target->MdlFlags =
        static_cast<SHORT>(MDL_PARTIAL | (source->MdlFlags & (MDL_SOURCE_IS_NONPAGED_POOL | MDL_IO_SPACE)));
    if (source->MdlFlags & MDL_SOURCE_IS_NONPAGED_POOL)
        target->MappedSystemVa = static_cast<uint8_t *>(source->MappedSystemVa) + skip;
    memcpy(target->pfns(), source->pfns() + first, mdl_pages(target) * 8);
}
ULONG NTAPI MmSizeOfMdl(uint64_t address, uint64_t length) {
    return static_cast<ULONG>(sizeof(MDL) + ((address & 4095) + length + 4095) / 4096 * 8);
}

void NTAPI MmProbeAndLockPages(MDL *m, CCHAR mode, LockOperation operation) {
    require_irql(DISPATCH_LEVEL, "MmProbeAndLockPages");
    if (m->MdlFlags & (MDL_PAGES_LOCKED | MDL_SOURCE_IS_NONPAGED_POOL | MDL_PARTIAL))
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION",
                 "MmProbeAndLockPages: MDL %p is locked already, or describes nonpaged or partial memory", (void *)m);
    uint64_t address = reinterpret_cast<uint64_t>(m->StartVa) + m->ByteOffset;
    bool user = mode == UserMode;
    if (user) require_irql(APC_LEVEL, "MmProbeAndLockPages of user memory");
    if (should_fail(Fail::Lock)) raise_status(STATUS_WORKING_SET_QUOTA);
    if (user && should_fail(Fail::Access)) raise_access_violation(address, operation != LockOperation::Read);
    if (user && (!is_user_address(address) || !is_user_address(address + m->ByteCount - 1)))
        raise_access_violation(address, operation != LockOperation::Read);
    Process *p = is_user_address(address) ? current_process() : nullptr;
    if (p == nullptr && page_pool().from_linear(address)) {
        for (uint64_t i = 0; i < mdl_pages(m); i++) {
            auto page = page_pool().from_linear(page_down(address) + i * 4096);
            if (!page) raise_access_violation(address, false);
            page_pool().lock(*page);
            m->pfns()[i] = page_pool().pfn(*page);
        }
        m->MdlFlags |= MDL_PAGES_LOCKED;
        return;
    }
    NTSTATUS s = lock_mdl(m, p, operation);
    if (!nt_success(s)) raise_access_violation(address, operation != LockOperation::Read);
    if (g_require_secure && user) note_locked(m, p);
}
void NTAPI MmUnlockPages(MDL *m) {
    require_irql(DISPATCH_LEVEL, "MmUnlockPages");
    if (g_require_secure) note_unlocked(m);
    unlock_mdl(m, "MmUnlockPages");
}
void NTAPI MmBuildMdlForNonPagedPool(MDL *m) {
    require_irql(DISPATCH_LEVEL, "MmBuildMdlForNonPagedPool");
    auto va = reinterpret_cast<uint64_t>(m->StartVa);
    bool io = false;
    for (uint64_t i = 0; i < mdl_pages(m); i++) {
        auto pfn = memory().pfn_of(va + i * 4096);
        if (!pfn || is_user_address(va))
            bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION",
                     "MmBuildMdlForNonPagedPool: 0x%llx is not nonpaged kernel memory",
                     (unsigned long long)(va + i * 4096));
        io = io || !page_pool().from_pfn(*pfn);
        m->pfns()[i] = *pfn;
    }
    m->MappedSystemVa = reinterpret_cast<void *>(va + m->ByteOffset);
    m->Process = nullptr;
    m->MdlFlags |= MDL_SOURCE_IS_NONPAGED_POOL | (io ? MDL_IO_SPACE : 0);
}

// A view of the MDL's pages for `owner` (null: the kernel).
std::optional<uint64_t> map_mdl(MDL *m, Process *owner) {
    uint64_t pages = mdl_pages(m);
    if (should_fail(Fail::Map)) return std::nullopt;
    if ((m->MdlFlags & MDL_IO_SPACE) == 0) return memory().map_pages(owner, m->pfns(), pages, PAGE_READWRITE);
    for (uint64_t i = 1; i < pages; i++)
        if (m->pfns()[i] != m->pfns()[0] + i) return std::nullopt;
    auto at = memory().reserve_device_view(owner, m->pfns()[0], pages);
    if (at && (g_device == nullptr || !g_device->fill_mapping(*at, m->pfns()[0] << 12, pages * 4096))) {
        memory().unmap_view(owner, *at, pages);
        return std::nullopt;
    }
    return at;
}
void *NTAPI MmMapLockedPagesSpecifyCache(MDL *m, CCHAR mode, int, void *, ULONG, int) {
    require_irql(mode == KernelMode ? DISPATCH_LEVEL : APC_LEVEL, "MmMapLockedPagesSpecifyCache");
    if ((m->MdlFlags & (MDL_PAGES_LOCKED | MDL_SOURCE_IS_NONPAGED_POOL | MDL_PARTIAL)) == 0)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION",
                 "MmMapLockedPagesSpecifyCache: the pages of MDL %p are not locked", (void *)m);
    if (mode == KernelMode) {
        if (m->MdlFlags & (MDL_MAPPED_TO_SYSTEM_VA | MDL_SOURCE_IS_NONPAGED_POOL)) return m->MappedSystemVa;
        auto at = map_mdl(m, nullptr);
        if (!at) return nullptr;
        m->MappedSystemVa = reinterpret_cast<void *>(*at + m->ByteOffset);
        m->MdlFlags |= MDL_MAPPED_TO_SYSTEM_VA | ((m->MdlFlags & MDL_PARTIAL) ? MDL_PARTIAL_HAS_BEEN_MAPPED : 0);
        Locked l(g_lock);
        g_system_maps[*at] = mdl_pages(m);
        return m->MappedSystemVa;
    }
    Process *p = current_process();
    if (p == nullptr || p->is_system)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION",
                 "MmMapLockedPagesSpecifyCache to user mode in the System process");
    auto at = map_mdl(m, p);
    if (!at) raise_status(STATUS_INSUFFICIENT_RESOURCES);
    p->mapped_views++;
    return reinterpret_cast<void *>(*at + m->ByteOffset);
}
void *NTAPI MmMapLockedPages(MDL *m, CCHAR mode) {
    return MmMapLockedPagesSpecifyCache(m, mode, 1, nullptr, 0, 16);
}
void NTAPI MmUnmapLockedPages(uint64_t address, MDL *m) {
    if (!is_user_address(address)) {
        if ((m->MdlFlags & MDL_MAPPED_TO_SYSTEM_VA) == 0) {
            if (m->MdlFlags & MDL_SOURCE_IS_NONPAGED_POOL) return;
            bugcheck(0xda, "SYSTEM_PTE_MISUSE", "MmUnmapLockedPages: MDL %p is not mapped", (void *)m);
        }
        unmap_system(m);
        return;
    }
    require_irql(APC_LEVEL, "MmUnmapLockedPages");
    Process *p = current_process();
    uint64_t pages = mdl_pages(m);
    if (m->MdlFlags & MDL_IO_SPACE) g_device->drop_mapping(page_down(address), pages * 4096);
    if (!memory().unmap_view(p, address, pages))
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION",
                 "MmUnmapLockedPages: 0x%llx is not a mapping of that size in process %u (unmapped before, or in the "
                 "wrong process?)",
                 (unsigned long long)address, p->id);
    p->mapped_views--;
}

MDL *NTAPI MmAllocatePagesForMdlEx(int64_t, int64_t high, int64_t, uint64_t bytes, int, ULONG) {
    require_irql(APC_LEVEL, "MmAllocatePagesForMdl");
    if (bytes == 0 || should_fail(Fail::Contiguous)) return nullptr;
    MDL *m = allocate_mdl(0, bytes);
    if (m == nullptr) return nullptr;
    uint64_t pages = mdl_pages(m), n = 0;
    while (n < pages) {
        uint32_t got = 0;
        auto first = page_pool().allocate_run(static_cast<uint32_t>(pages - n), &got);
        if (!first) break;
        for (uint32_t i = 0; i < got; i++) m->pfns()[n++] = page_pool().pfn(*first + i);
    }
    if (n == 0 || (static_cast<uint64_t>(high) < page_pool().bytes())) {
        for (uint64_t i = 0; i < n; i++) page_pool().release(*page_pool().from_pfn(m->pfns()[i]));
        free_mdl(m);
        return nullptr;
    }
    if (n < pages) m->ByteCount = static_cast<ULONG>(n * 4096);
    g_pages_for_mdl += static_cast<int64_t>(n);
    m->MdlFlags |= MDL_PAGES_LOCKED;
    for (uint64_t i = 0; i < n; i++) page_pool().lock(*page_pool().from_pfn(m->pfns()[i]));
    return m;
}
MDL *NTAPI MmAllocatePagesForMdl(int64_t low, int64_t high, int64_t skip, uint64_t bytes) {
    return MmAllocatePagesForMdlEx(low, high, skip, bytes, 1, 0);
}
void NTAPI MmFreePagesFromMdl(MDL *m) {
    unmap_system(m);
    uint64_t pages = mdl_pages(m);
    for (uint64_t i = 0; i < pages; i++) {
        PageIndex p = *page_pool().from_pfn(m->pfns()[i]);
        page_pool().unlock(p);
        page_pool().release(p);
    }
    g_pages_for_mdl -= static_cast<int64_t>(pages);
    m->MdlFlags &= ~MDL_PAGES_LOCKED;
}

// ---- contiguous memory
uint64_t allocate_contiguous(uint64_t bytes, uint64_t highest, uint64_t boundary) {
    if (bytes == 0 || should_fail(Fail::Contiguous)) return 0;
    uint32_t pages = static_cast<uint32_t>(page_up(bytes) / 4096);
    uint32_t align = 1;
    if (boundary != 0)  // not to be crossed: aligning to the next power of two is enough
        while (align < pages) align *= 2;
    auto first = page_pool().allocate(pages, align, highest);
    if (!first) return 0;
    uint64_t at = reinterpret_cast<uint64_t>(page_pool().address(*first));
    Locked l(g_lock);
    g_contiguous[at] = {pages, *first};
    return at;
}
bool free_contiguous(uint64_t at) {
    Owned o;
    {
        Locked l(g_lock);
        auto it = g_contiguous.find(at);
        if (it == g_contiguous.end()) return false;
        o = it->second;
        g_contiguous.erase(it);
    }
    for (uint64_t i = 0; i < o.pages; i++) page_pool().release(o.first + static_cast<PageIndex>(i));
    return true;
}
uint64_t NTAPI MmAllocateContiguousMemorySpecifyCache(uint64_t bytes, int64_t, int64_t highest, int64_t boundary, int) {
    require_irql(DISPATCH_LEVEL, "MmAllocateContiguousMemorySpecifyCache");
    return allocate_contiguous(bytes, static_cast<uint64_t>(highest), static_cast<uint64_t>(boundary));
}
uint64_t NTAPI MmAllocateContiguousMemory(uint64_t bytes, int64_t highest) {
    return allocate_contiguous(bytes, static_cast<uint64_t>(highest), 0);
}
void NTAPI MmFreeContiguousMemory(uint64_t at) {
    require_irql(APC_LEVEL, "MmFreeContiguousMemory");
    if (!free_contiguous(at))
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION",
                 "MmFreeContiguousMemory: 0x%llx was freed before, or is none", (unsigned long long)at);
}
void NTAPI MmFreeContiguousMemorySpecifyCache(uint64_t at, uint64_t, int) {
    MmFreeContiguousMemory(at);
}

int64_t NTAPI MmGetPhysicalAddress(uint64_t va) {
    auto pfn = memory().pfn_of(va);
    return pfn ? static_cast<int64_t>(*pfn << 12 | (va & 4095)) : 0;
}
BOOLEAN NTAPI MmIsAddressValid(uint64_t va) {
    return memory().pfn_of(va).has_value();
}

// ---- I/O space
uint64_t NTAPI MmMapIoSpace(int64_t physical, uint64_t size, int) {
    require_irql(DISPATCH_LEVEL, "MmMapIoSpace");
    uint64_t bus = static_cast<uint64_t>(physical), first = page_down(bus);
    uint64_t pages = (page_up(bus + size) - first) / 4096;
    if (size == 0 || g_device == nullptr || should_fail(Fail::Map)) return 0;
    auto at = memory().reserve_device_view(nullptr, first >> 12, pages);
    if (!at) return 0;
    if (!g_device->fill_mapping(*at, first, pages * 4096)) {
        memory().unmap_view(nullptr, *at, pages);
        if (g_verifier)
            bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION",
                     "MmMapIoSpace: bus address 0x%llx, %llu bytes, is not the device's", (unsigned long long)bus,
                     (unsigned long long)size);
        return 0;
    }
    Locked l(g_lock);
    g_io_space[*at] = pages * 4096;
    return *at + (bus & 4095);
}
void NTAPI MmUnmapIoSpace(uint64_t address, uint64_t) {
    uint64_t at = page_down(address), size;
    {
        Locked l(g_lock);
        auto it = g_io_space.find(at);
        if (it == g_io_space.end())
            bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "MmUnmapIoSpace: 0x%llx is not mapped",
                     (unsigned long long)address);
        size = it->second;
        g_io_space.erase(it);
    }
    g_device->drop_mapping(at, size);
    memory().unmap_view(nullptr, at, size / 4096);
}

// ---- securing
uint64_t NTAPI MmSecureVirtualMemory(uint64_t address, uint64_t size, ULONG mode) {
    require_irql(APC_LEVEL, "MmSecureVirtualMemory");
    if (should_fail(Fail::Secure)) return 0;
    return memory().secure(current_process(), address, size, mode);
}
void NTAPI MmUnsecureVirtualMemory(uint64_t handle) {
    require_irql(APC_LEVEL, "MmUnsecureVirtualMemory");
    if (!memory().unsecure(current_process(), handle))
        bugcheck(
            0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION",
            "MmUnsecureVirtualMemory: 0x%llx is not secured in process %u (unsecured before, or in the wrong process?)",
            (unsigned long long)handle, current_process()->id);
    if (g_require_secure) check_unsecured(current_process());
}

// ---- probing
void NTAPI ProbeForRead(uint64_t address, uint64_t length, ULONG alignment) {
    require_irql(APC_LEVEL, "ProbeForRead");
    if (length == 0) return;
    if ((address & (alignment - 1)) != 0) raise_status(STATUS_DATATYPE_MISALIGNMENT);
    if (address + length < address || address + length > USER_LIMIT) raise_access_violation(USER_LIMIT, false);
}
void NTAPI ProbeForWrite(uint64_t address, uint64_t length, ULONG alignment) {
    require_irql(APC_LEVEL, "ProbeForWrite");
    if (length == 0) return;
    if ((address & (alignment - 1)) != 0) raise_status(STATUS_DATATYPE_MISALIGNMENT);
    if (address + length < address || address + length > USER_LIMIT) raise_access_violation(USER_LIMIT, true);
    if (!memory().accessible(current_process(), address, length, true)) raise_access_violation(address, true);
}

uint64_t MmHighestUserAddress = USER_LIMIT - 1, MmUserProbeAddress = USER_LIMIT, MmSystemRangeStart = KERNEL_BASE;
int NTAPI MmQuerySystemSize() {
    return 2;
}
BOOLEAN NTAPI MmIsThisAnNtAsSystem() {
    return 1;
}

const Import imports[] = {
    FN(IoAllocateMdl),
    FN(IoFreeMdl),
    FN(IoBuildPartialMdl),
    FN(MmSizeOfMdl),
    FN(MmProbeAndLockPages),
    FN(MmUnlockPages),
    FN(MmBuildMdlForNonPagedPool),
    FN(MmMapLockedPagesSpecifyCache),
    FN(MmMapLockedPages),
    FN(MmUnmapLockedPages),
    FN(MmAllocatePagesForMdl),
    FN(MmAllocatePagesForMdlEx),
    FN(MmFreePagesFromMdl),
    FN(MmAllocateContiguousMemorySpecifyCache),
    FN(MmAllocateContiguousMemory),
    FN(MmFreeContiguousMemory),
    FN(MmFreeContiguousMemorySpecifyCache),
    FN(MmGetPhysicalAddress),
    FN(MmIsAddressValid),
    FN(MmMapIoSpace),
    FN(MmUnmapIoSpace),
    FN(MmSecureVirtualMemory),
    FN(MmUnsecureVirtualMemory),
    FN(ProbeForRead),
    FN(ProbeForWrite),
    DATA(MmHighestUserAddress),
    DATA(MmUserProbeAddress),
    DATA(MmSystemRangeStart),
    FN(MmQuerySystemSize),
    FN(MmIsThisAnNtAsSystem),
};
const ImportTable registered("ntoskrnl.exe", imports);

}  // namespace

// For the DMA adapter.
uint64_t allocate_common_buffer(uint64_t bytes) {
    return allocate_contiguous(bytes, ~uint64_t{0}, 0);
}
bool free_common_buffer(uint64_t at) {
    return free_contiguous(at);
}

}  // namespace nth
