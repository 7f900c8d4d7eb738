// SPDX-License-Identifier: GPL-2.0-or-later
//
// kernel32.dll and ntdll.dll: virtual memory and heaps.
#include <cstring>

#include "heap.h"
#include "imports.h"
#include "secure_cache.h"
#include "user.h"
#include "verifier.h"

namespace nth {

using namespace nt;

namespace {

uint64_t allocate_in(Process *p, uint64_t address, uint64_t size, DWORD type, DWORD protection) {
    NTSTATUS s = memory().allocate(p, &address, &size, type & (MEM_COMMIT | MEM_RESERVE), protection);
    if (nt_success(s)) return address;
    fail_status(s);
    return 0;
}
uint64_t NTAPI VirtualAlloc(uint64_t address, uint64_t size, DWORD type, DWORD protection) {
    return allocate_in(current()->process, address, size, type, protection);
}
uint64_t NTAPI VirtualAllocEx(uint64_t h, uint64_t address, uint64_t size, DWORD type, DWORD protection) {
    auto p = user_object<Process>(h, ObjectKind::Process);
    return p ? allocate_in(p.get(), address, size, type, protection) : 0;
}
BOOL free_in(Process *p, uint64_t address, uint64_t size, DWORD type) {
    if (type == MEM_RELEASE && size != 0) return fail(ERROR_INVALID_PARAMETER);
    NTSTATUS s = free_virtual_memory(p, &address, &size, type);
    return nt_success(s) ? 1 : fail_status(s);
}
BOOL NTAPI VirtualFree(uint64_t address, uint64_t size, DWORD type) {
    return free_in(current()->process, address, size, type);
}
BOOL NTAPI VirtualFreeEx(uint64_t h, uint64_t address, uint64_t size, DWORD type) {
    auto p = user_object<Process>(h, ObjectKind::Process);
    return p ? free_in(p.get(), address, size, type) : 0;
}
BOOL NTAPI VirtualProtect(uint64_t address, uint64_t size, DWORD protection, DWORD *old) {
    if (old == nullptr) return fail(ERROR_INVALID_ADDRESS);
    NTSTATUS s = protect_virtual_memory(current()->process, &address, &size, protection, old);
    return nt_success(s) ? 1 : fail_status(s);
}
BOOL NTAPI VirtualProtectEx(uint64_t h, uint64_t address, uint64_t size, DWORD protection, DWORD *old) {
    auto p = user_object<Process>(h, ObjectKind::Process);
    if (!p) return 0;
    NTSTATUS s = protect_virtual_memory(p.get(), &address, &size, protection, old);
    return nt_success(s) ? 1 : fail_status(s);
}
uint64_t NTAPI VirtualQuery(uint64_t address, MemoryInformation *out, uint64_t size) {
    if (size < sizeof *out || !is_user_address(address)) return fail(ERROR_INVALID_PARAMETER), 0;
    *out = memory().query(current()->process, address);
    return sizeof *out;
}
uint64_t NTAPI VirtualQueryEx(uint64_t h, uint64_t address, MemoryInformation *out, uint64_t size) {
    auto p = user_object<Process>(h, ObjectKind::Process);
    if (!p || size < sizeof *out || !is_user_address(address)) return 0;
    *out = memory().query(p.get(), address);
    return sizeof *out;
}
BOOL NTAPI VirtualLock(uint64_t address, uint64_t size) {
    return memory().accessible(current()->process, address, size, false) ? 1 : fail(ERROR_INVALID_ADDRESS);
}
BOOL NTAPI VirtualUnlock(uint64_t address, uint64_t size) {
    return VirtualLock(address, size);
}
BOOL NTAPI IsBadReadPtr(uint64_t address, uint64_t size) {
    return size != 0 && !memory().accessible(current()->process, address, size, false);
}
BOOL NTAPI IsBadWritePtr(uint64_t address, uint64_t size) {
    return size != 0 && !memory().accessible(current()->process, address, size, true);
}
BOOL NTAPI FlushInstructionCache(uint64_t, void *, uint64_t) {
    return 1;
}
struct MemoryStatusEx {
    DWORD length, load;
    uint64_t total, available, total_file, available_file, total_virtual, available_virtual, extended;
};
BOOL NTAPI GlobalMemoryStatusEx(MemoryStatusEx *m) {
    m->total = m->total_file = page_pool().bytes();
    m->available = m->available_file = uint64_t{page_pool().free_pages()} * 4096;
    m->total_virtual = m->available_virtual = USER_LIMIT;
    m->load = static_cast<DWORD>(100 - 100 * m->available / m->total);
    return 1;
}

// ---- NT names
NTSTATUS NTAPI NtAllocateVirtualMemory(uint64_t h, uint64_t *address, uint64_t, uint64_t *size, ULONG type,
                                       ULONG protection) {
    auto p = user_object<Process>(h, ObjectKind::Process);
    return p ? memory().allocate(p.get(), address, size, type, protection) : STATUS_INVALID_HANDLE;
}
NTSTATUS NTAPI NtFreeVirtualMemory(uint64_t h, uint64_t *address, uint64_t *size, ULONG type) {
    auto p = user_object<Process>(h, ObjectKind::Process);
    return p ? memory().free(p.get(), address, size, type) : STATUS_INVALID_HANDLE;
}
NTSTATUS NTAPI NtProtectVirtualMemory(uint64_t h, uint64_t *address, uint64_t *size, ULONG protection, ULONG *old) {
    auto p = user_object<Process>(h, ObjectKind::Process);
    return p ? memory().protect(p.get(), address, size, protection, old) : STATUS_INVALID_HANDLE;
}

// ---- heaps
Heap *NTAPI GetProcessHeap() {
    return current()->process->heap;
}
Heap *NTAPI HeapCreate(DWORD, uint64_t, uint64_t) {
    return heap_create(current()->process);
}
BOOL NTAPI HeapDestroy(Heap *h) {
    heap_destroy(h);
    return 1;
}
void *NTAPI HeapAlloc(Heap *h, DWORD flags, uint64_t size) {
    if (should_fail_in_library(Fail::Heap)) return nullptr;
    return heap_allocate(h, size, (flags & 8) != 0);
}
BOOL NTAPI HeapFree(Heap *h, DWORD, void *p) {
    return heap_free(h, p);
}
void *NTAPI HeapReAlloc(Heap *h, DWORD flags, void *p, uint64_t size) {
    return heap_reallocate(h, p, size, (flags & 8) != 0);
}
uint64_t NTAPI HeapSize(Heap *h, DWORD, void *p) {
    return heap_size(h, p);
}
BOOL NTAPI HeapValidate(Heap *h, DWORD, void *p) {
    return p == nullptr || heap_size(h, p) != ~uint64_t{0};
}
uint64_t NTAPI HeapCompact(Heap *, DWORD) {
    return HEAP_LARGE;
}
BOOL NTAPI HeapSetInformation(Heap *, int, void *, uint64_t) {
    return 1;
}
void *NTAPI GlobalAlloc(DWORD flags, uint64_t size) {
    return heap_allocate(current()->process->heap, size, (flags & 0x40) != 0);
}
void *NTAPI GlobalFree(void *p) {
    if (p != nullptr) user_free(p);
    return nullptr;
}

const Import imports[] = {
    FN(VirtualAlloc),
    FN(VirtualAllocEx),
    FN(VirtualFree),
    FN(VirtualFreeEx),
    FN(VirtualProtect),
    FN(VirtualProtectEx),
    FN(VirtualQuery),
    FN(VirtualQueryEx),
    FN(VirtualLock),
    FN(VirtualUnlock),
    FN(IsBadReadPtr),
    FN(IsBadWritePtr),
    FN(FlushInstructionCache),
    FN(GlobalMemoryStatusEx),
    FN(GetProcessHeap),
    FN(HeapCreate),
    FN(HeapDestroy),
    FN(HeapAlloc),
    FN(HeapFree),
    FN(HeapReAlloc),
    FN(HeapSize),
    FN(HeapValidate),
    FN(HeapCompact),
    FN(HeapSetInformation),
    FN(GlobalAlloc),
    FN(GlobalFree),
};
const Import ntdll_imports[] = {
    FN(NtAllocateVirtualMemory),
    FN(NtFreeVirtualMemory),
    FN(NtProtectVirtualMemory),
    FN_AS("ZwAllocateVirtualMemory", NtAllocateVirtualMemory),
    FN_AS("ZwFreeVirtualMemory", NtFreeVirtualMemory),
    FN_AS("ZwProtectVirtualMemory", NtProtectVirtualMemory),
    FN_AS("RtlAllocateHeap", HeapAlloc),
    FN_AS("RtlFreeHeap", HeapFree),
    FN_AS("RtlReAllocateHeap", HeapReAlloc),
    FN_AS("RtlSizeHeap", HeapSize),
};
const ImportTable registered("kernel32.dll", imports);
const ImportTable registered_ntdll("ntdll.dll", ntdll_imports);

}  // namespace

}  // namespace nth
