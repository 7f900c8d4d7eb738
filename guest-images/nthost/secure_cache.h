// SPDX-License-Identifier: GPL-2.0-or-later
//
// secure_cache.h: user-mode freeing and protecting of memory, with the chain that secured memory sets off: refusal with
// STATUS_INVALID_PAGE_PROTECTION, RtlFlushSecureMemoryCache, one retry.
#pragma once

#include "process.h"

namespace nth {

nt::NTSTATUS free_virtual_memory(Process *p, uint64_t *address, uint64_t *size, uint32_t type);
nt::NTSTATUS protect_virtual_memory(Process *p, uint64_t *address, uint64_t *size, uint32_t protection, uint32_t *old);

// Calls the registered callbacks; true when one of them let go of something.
bool flush_secure_memory_cache(Process *p, uint64_t address, uint64_t size);

}  // namespace nth
