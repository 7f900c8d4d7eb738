// SPDX-License-Identifier: GPL-2.0-or-later
#include "secure_cache.h"

#include <algorithm>

#include "imports.h"

namespace nth {

using namespace nt;

bool flush_secure_memory_cache(Process *p, uint64_t address, uint64_t size) {
    std::vector<Process::SecureCallback *> callbacks;
    {
        Locked l(p->secure_lock);
        callbacks = p->secure_callbacks;
    }
    bool flushed = false;
    for (auto *c : callbacks)
        if (call_pe(c, reinterpret_cast<void *>(address), size) != 0) flushed = true;
    return flushed;
}

// Only the process itself flushes: a foreign caller gets the refusal.
static bool may_flush(Process *p) {
    return current() != nullptr && current()->process == p && !current()->in_kernel();
}

NTSTATUS free_virtual_memory(Process *p, uint64_t *address, uint64_t *size, uint32_t type) {
    uint64_t a = *address, n = *size;
    NTSTATUS s = memory().free(p, address, size, type);
    if (s != STATUS_INVALID_PAGE_PROTECTION || !may_flush(p)) return s;
    uint64_t range = n;
    if (range == 0) {
        MemoryInformation info = memory().query(p, a);
        range = info.AllocationBase != 0 ? info.BaseAddress + info.RegionSize - a : 0;
    }
    if (!flush_secure_memory_cache(p, a, range)) return s;
    *address = a;
    *size = n;
    return memory().free(p, address, size, type);
}

NTSTATUS protect_virtual_memory(Process *p, uint64_t *address, uint64_t *size, uint32_t protection, uint32_t *old) {
    uint64_t a = *address, n = *size;
    NTSTATUS s = memory().protect(p, address, size, protection, old);
    if (s != STATUS_INVALID_PAGE_PROTECTION || !may_flush(p)) return s;
    if (!flush_secure_memory_cache(p, a, n)) return s;
    *address = a;
    *size = n;
    return memory().protect(p, address, size, protection, old);
}

static NTSTATUS NTAPI RtlRegisterSecureMemoryCacheCallback(Process::SecureCallback *c) {
    Process *p = current()->process;
    Locked l(p->secure_lock);
    if (c == nullptr) return STATUS_INVALID_PARAMETER;
    p->secure_callbacks.push_back(c);
    return STATUS_SUCCESS;
}

static NTSTATUS NTAPI RtlDeregisterSecureMemoryCacheCallback(Process::SecureCallback *c) {
    Process *p = current()->process;
    Locked l(p->secure_lock);
    auto it = std::find(p->secure_callbacks.begin(), p->secure_callbacks.end(), c);
    if (it == p->secure_callbacks.end()) return STATUS_INVALID_PARAMETER;
    p->secure_callbacks.erase(it);
    return STATUS_SUCCESS;
}

static BOOLEAN NTAPI RtlFlushSecureMemoryCache(uint64_t address, uint64_t size) {
    return flush_secure_memory_cache(current()->process, address, size);
}

static BOOL NTAPI AddSecureMemoryCacheCallback(Process::SecureCallback *c) {
    NTSTATUS s = RtlRegisterSecureMemoryCacheCallback(c);
    current()->set_last_error(status_to_win32(s));
    return nt_success(s);
}

static BOOL NTAPI RemoveSecureMemoryCacheCallback(Process::SecureCallback *c) {
    NTSTATUS s = RtlDeregisterSecureMemoryCacheCallback(c);
    current()->set_last_error(status_to_win32(s));
    return nt_success(s);
}

static const Import ntdll_imports[] = {FN(RtlRegisterSecureMemoryCacheCallback),
                                       FN(RtlDeregisterSecureMemoryCacheCallback), FN(RtlFlushSecureMemoryCache)};
static const Import kernel32_imports[] = {FN(AddSecureMemoryCacheCallback), FN(RemoveSecureMemoryCacheCallback)};
static const ImportTable register_ntdll("ntdll.dll", ntdll_imports);
static const ImportTable register_kernel32("kernel32.dll", kernel32_imports);

}  // namespace nth
