// SPDX-License-Identifier: GPL-2.0-or-later
//
// guarded.cc: every call that touches user memory or raises, alone in a __try. The compiler covers only calls by __try, so
// each body is exactly one call; nothing else in the driver dereferences a user address.
#include "memory.h"

namespace sanproxy {

__attribute__((noinline)) NTSTATUS guarded_lock(MDL *mdl, LOCK_OPERATION operation) {
    NTSTATUS status = STATUS_SUCCESS;
    __try {
        MmProbeAndLockPages(mdl, UserMode, operation);
    } __except (EXCEPTION_EXECUTE_HANDLER) {
        status = GetExceptionCode();
        if (NT_SUCCESS(status)) status = STATUS_ACCESS_VIOLATION;
    }
    return status;
}

__attribute__((noinline)) void *guarded_map_user(MDL *mdl, MEMORY_CACHING_TYPE caching) {
    void *va = nullptr;
    __try {
        va = MmMapLockedPagesSpecifyCache(mdl, UserMode, caching, nullptr, FALSE, NormalPagePriority);
    } __except (EXCEPTION_EXECUTE_HANDLER) {
        va = nullptr;
    }
    return va;
}

__attribute__((noinline)) HANDLE guarded_secure(void *va, size_t length, ULONG mode) {
    HANDLE secure = nullptr;
    __try {
        secure = MmSecureVirtualMemory(va, length, mode);
    } __except (EXCEPTION_EXECUTE_HANDLER) {
        secure = nullptr;
    }
    return secure;
}

__attribute__((noinline)) void guarded_unsecure(HANDLE secure) {
    __try {
        MmUnsecureVirtualMemory(secure);
    } __except (EXCEPTION_EXECUTE_HANDLER) {
        // Only a range that is no longer secured raises: then there is nothing left to do.
    }
}

} // namespace sanproxy
