// SPDX-License-Identifier: GPL-2.0-or-later
// mr_table.h: the memory-registration table (docs/snic.md, "Memory regions"): keys, rights, and the checks of every access.
//
// A key is variant << 32 | slot. A slot's variants are the images of a counter under a permutation of 32 bits that the injected
// randomness keys; so a revoked key comes again only after four thousand million others, and the next cannot be guessed from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "host.h"
#include "nic_config.h"
#include "page_map.h"

namespace snic {

struct Mr {
    uint64_t key = 0;  // 0: slot is free
    uint32_t pd = 0;
    uint32_t access = 0;     // SNIC_ACCESS_*
    uint32_t bound_qpn = 0;  // SNIC_QPN_ANY: every QP of the PD
    uint32_t uses = 0;       // operations in flight that may touch it
    uint64_t va = 0;
    uint64_t length = 0;
    bool dying = false;      // DEREGISTER_MR waits for uses to become 0; no new use starts
    PageMap pages;
};
// What the checks look at shares a cache line.
static_assert(offsetof(Mr, pages) <= 64);

// Why an access is refused, in the order of the checks.
enum class MrCheck : uint8_t { ok, key, pd, binding, rights, dying, bounds };

class MrTable {
  public:
    MrTable(Host &host, uint32_t max_mr);

    // Returns the new entry (key set), or nullptr when all slots are taken. The caller fills in the rest.
    Mr *create();
    void destroy(Mr &mr);
    // A new variant for an entry in place; the old key is dead at once.
    void rekey(Mr &mr);

    // Whole key must match. nullptr otherwise.
    Mr *find(uint64_t key);

    // Local use by an SGE of PD `pd`. need: SNIC_ACCESS_LOCAL_*. `out` is set on ok only.
    MrCheck check_local(uint64_t key, uint32_t pd, uint64_t va, uint64_t len, uint32_t need, Mr *&out);
    // Use by the peer of QP `qpn`, which belongs to PD `pd`. need: SNIC_ACCESS_REMOTE_*.
    MrCheck check_remote(uint64_t key, uint32_t pd, uint32_t qpn, uint64_t va, uint64_t len, uint32_t need, Mr *&out);

    uint32_t count() const { return count_; }
    template <typename F>
    void each(F &&f) {
        for (uint32_t i = 0; i < used_; i++)
            if (Mr &mr = slot(i).mr; mr.key) f(mr);
    }

  private:
    struct alignas(64) Slot {
        Mr mr;
        uint32_t counter = 0;
    };
    // Slots lie in blocks that never move: a look-up touches one cache line, and regions can be pointed to. A block is one large page
    // where the system has them, so that the cost of a look-up hardly grows with the number of regions.
    static constexpr uint32_t kBlock = 16384;
    struct Block {
        Slot slots[kBlock];
        static void *operator new(size_t size);
        static void operator delete(void *block);
    };
    Slot &slot(uint32_t i) { return blocks_[i / kBlock]->slots[i % kBlock]; }
    uint64_t next_key(Slot &slot, uint32_t index);
    MrCheck check(uint64_t key, uint32_t pd, uint32_t qpn, bool remote, uint64_t va, uint64_t len, uint32_t need, Mr *&out);

    uint32_t max_;
    uint32_t count_ = 0;
    uint32_t used_ = 0;  // slots that ever held a region
    std::vector<std::unique_ptr<Block>> blocks_;
    std::vector<uint32_t> free_;
    uint32_t secret_[4] = {};  // round keys of the permutation
};

}  // namespace snic
