// SPDX-License-Identifier: GPL-2.0-or-later
#include "ucx_cache.h"

extern "C" {
#include <ucs/memory/rcache.h>
#include <uct/api/version.h>
}
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace {
ucs_status_t do_register(void *, ucs_rcache_t *, void *, ucs_rcache_region_t *, uint16_t) { return UCS_OK; }
void do_deregister(void *, ucs_rcache_t *, ucs_rcache_region_t *) {}
void do_dump(void *, ucs_rcache_t *, ucs_rcache_region_t *, char *, size_t) {}
const ucs_rcache_ops_t operations = {do_register, do_deregister, do_dump};
}  // namespace

UcxCache::UcxCache() {
    ucs_rcache_params_t params = {};
    params.region_struct_size = sizeof(ucs_rcache_region_t);
    params.alignment = UCS_RCACHE_MIN_ALIGNMENT;
    params.max_alignment = 4096;
    params.ops = &operations;
    params.max_regions = params.max_size = params.max_unreleased = ~0ul;
    if (ucs_rcache_create(&params, "cache_bench", nullptr, &cache_) != UCS_OK) {
        std::fprintf(stderr, "cache_bench: UCX gives no registration cache\n");
        std::exit(1);
    }
}

UcxCache::~UcxCache() { ucs_rcache_destroy(cache_); }

const char *UcxCache::version() { return UCT_VERNO_STRING; }

bool UcxCache::acquire(uint64_t start, uint64_t length, void *&region) {
    ucs_rcache_region_t *found = nullptr;
    if (ucs_rcache_get(cache_, reinterpret_cast<void *>(start), length, PROT_READ | PROT_WRITE, nullptr, &found) !=
        UCS_OK)
        return false;
    region = found;
    return true;
}

void UcxCache::release(void *region) { ucs_rcache_region_put(cache_, static_cast<ucs_rcache_region_t *>(region)); }
