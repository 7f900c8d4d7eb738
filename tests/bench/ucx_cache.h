// SPDX-License-Identifier: GPL-2.0-or-later
//
// ucx_cache.h: UCX's registration cache (libucs) with a registration that does nothing, for comparison. Only where
// libucx-dev is installed: SANLAB_UCX says whether.
#pragma once

#include <cstdint>

struct ucs_rcache;

class UcxCache {
  public:
    UcxCache();
    ~UcxCache();
    UcxCache(const UcxCache &) = delete;
    UcxCache &operator=(const UcxCache &) = delete;
    static const char *version();

    // False: UCX refused.
    bool acquire(uint64_t start, uint64_t length, void *&region);
    void release(void *region);

  private:
    ucs_rcache *cache_ = nullptr;
};
