// SPDX-License-Identifier: GPL-2.0-or-later
//
// verifier.h: what the verifier keeps besides the checks that sit in their own modules, and low-resource injection.
#pragma once

#include <cstdint>
#include <string>

#include "base.h"

namespace nth {

extern bool g_verifier;  // --verifier on|off
// --require-secure: user memory must be secured before it is locked, and unlocked before it is unsecured.
extern bool g_require_secure;

// ---- low-resource injection (injection.cc): calls that --fail can make fail
enum class Fail {
    Pool,
    Lock,
    Secure,
    Map,
    Event,
    Thread,
    Contiguous,
    Access,
    Heap,  // HeapAlloc of DLLs
    Registry,  // calls of programs, from here on
    Catalog,
    Driver,
    File,
    Kinds
};

// "pool:3", "lock:1", "pool:p=0.01,seed=7". false with *error filled in.
bool add_failure(const std::string &text, std::string *error);
// Whether any call of that kind was asked to fail.
bool failure_planned(Fail kind);
// Says on standard error which calls that were asked to fail never came, and how many there were.
void report_unreached_failures();
// Whether this call has to fail.
bool should_fail(Fail kind);
// The same for a call that programs make, too: only those of DLLs count. Called by imports that are recorded.
bool should_fail_in_library(Fail kind);

// ---- kernel pool (kernel_pool.cc)
// Null when the pool is used up, or a failure is injected. tag as in ExAllocatePoolWithTag; from_driver: counted
// against the driver at unload.
void *pool_allocate(uint64_t size, uint32_t tag, bool from_driver);
void pool_free(void *p, uint32_t tag, bool check_tag);
// Blocks that the driver still has: "tag: count blocks, bytes"; empty: none.
std::string pool_leaks();
bool pool_owns(uint64_t address);

// What a driver must have given back at unload, and a process at its end. Text of the first leak found, or empty.
std::string driver_leaks();

}  // namespace nth
