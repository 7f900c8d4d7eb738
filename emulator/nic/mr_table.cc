// SPDX-License-Identifier: GPL-2.0-or-later
#include "mr_table.h"

#include <sys/mman.h>

#include <cstdlib>
#include <new>

namespace snic {

namespace {

uint32_t half_round(uint32_t half, uint32_t key) {
    uint32_t x = (half ^ key) * 0x9E3779B1u;
    x ^= x >> 15;
    x *= 0x85EBCA77u;
    return (x ^ x >> 13) & 0xFFFF;
}

}  // namespace

void *MrTable::Block::operator new(size_t size) {
    constexpr size_t kLargePage = size_t{2} << 20;
    static_assert(sizeof(Block) % kLargePage == 0);
    void *block = std::aligned_alloc(kLargePage, size);
    if (!block) throw std::bad_alloc();
    madvise(block, size, MADV_HUGEPAGE);  // a wish
    return block;
}

void MrTable::Block::operator delete(void *block) { std::free(block); }

MrTable::MrTable(Host &host, uint32_t max_mr) : max_(max_mr) {
    for (uint32_t &key : secret_) key = host.random();
}

// A Feistel network is a permutation whatever its round function: distinct counters give distinct variants. The slot enters the
// first round, so that slots do not share their sequence.
uint64_t MrTable::next_key(Slot &slot, uint32_t index) {
    uint32_t counter = slot.counter++;
    uint32_t left = counter >> 16, right = counter & 0xFFFF;
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t mixed = left ^ half_round(right, secret_[i] + (i == 0 ? index * 0xC2B2AE3Du : 0));
        left = right;
        right = mixed;
    }
    uint64_t variant = uint64_t{left} << 16 | right;
    return variant << SNIC_KEY_SLOT_BITS | index;
}

Mr *MrTable::create() {
    uint32_t index;
    if (!free_.empty()) {
        index = free_.back();
        free_.pop_back();
    } else {
        if (used_ >= max_) return nullptr;
        if (used_ % kBlock == 0) blocks_.push_back(std::make_unique<Block>());
        index = ++used_;  // slot 0 is named 1
    }
    Slot &s = slot(index - 1);
    s.mr.key = next_key(s, index);
    count_++;
    return &s.mr;
}

void MrTable::destroy(Mr &mr) {
    uint32_t index = static_cast<uint32_t>(mr.key);
    mr = Mr{};
    free_.push_back(index);
    count_--;
}

void MrTable::rekey(Mr &mr) {
    uint32_t index = static_cast<uint32_t>(mr.key);
    mr.key = next_key(slot(index - 1), index);
}

Mr *MrTable::find(uint64_t key) {
    uint32_t index = static_cast<uint32_t>(key);
    if (index == 0 || index > used_) return nullptr;
    Mr &mr = slot(index - 1).mr;
    return mr.key == key ? &mr : nullptr;
}

// The order is the manual's: key, protection domain, binding, rights, state, bounds.
MrCheck MrTable::check(uint64_t key, uint32_t pd, uint32_t qpn, bool remote, uint64_t va, uint64_t len, uint32_t need,
                       Mr *&out) {
    Mr *mr = find(key);
    if (!mr || key == 0) return MrCheck::key;
    if (mr->pd != pd) return MrCheck::pd;
    if (remote && mr->bound_qpn != SNIC_QPN_ANY && mr->bound_qpn != qpn) return MrCheck::binding;
    if ((mr->access & need) != need) return MrCheck::rights;
    if (mr->dying) return MrCheck::dying;
    if (va < mr->va || len > mr->length || va - mr->va > mr->length - len) return MrCheck::bounds;
    out = mr;
    return MrCheck::ok;
}

MrCheck MrTable::check_local(uint64_t key, uint32_t pd, uint64_t va, uint64_t len, uint32_t need, Mr *&out) {
    return check(key, pd, SNIC_QPN_ANY, false, va, len, need, out);
}

MrCheck MrTable::check_remote(uint64_t key, uint32_t pd, uint32_t qpn, uint64_t va, uint64_t len, uint32_t need, Mr *&out) {
    return check(key, pd, qpn, true, va, len, need, out);
}

}  // namespace snic
