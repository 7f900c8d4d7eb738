// SPDX-License-Identifier: GPL-2.0-or-later
//
// The kernel's heap, over the linear view of the page pool. Blocks carry a header and, with the verifier, a guard
// behind them; freed blocks are filled and kept for a while before they are used again, so that a late write is found.
#include <cstring>
#include <deque>
#include <map>
#include <sstream>
#include <unordered_map>
#include <vector>

#include "process.h"
#include "verifier.h"

namespace nth {

bool g_verifier = true;

namespace {

constexpr uint8_t GUARD = 0xfb, FREED = 0xdd;
constexpr uint32_t GUARD_BYTES = 16;
constexpr size_t QUARANTINE_BLOCKS = 256;

struct Block {
    uint64_t size;   // asked for
    uint64_t whole;  // with the guard
    uint32_t tag;
    uint32_t pages;  // page-sized blocks: how many; 0: from a size class
    bool from_driver;
};

FutexLock g_lock;  // guards all below
std::unordered_map<uint64_t, Block> g_blocks;
std::map<uint64_t, std::vector<uint64_t>> g_free;  // size class -> free addresses
std::deque<std::pair<uint64_t, Block>> g_quarantine;

uint64_t size_class(uint64_t n) {
    if (n <= 256) return (n + 15) & ~uint64_t{15};
    uint64_t c = 256;
    while (c < n) c *= 2;
    return c;
}

void check_guard(uint64_t address, const Block &b) {
    auto *p = reinterpret_cast<const uint8_t *>(address);
    for (uint64_t i = b.size; i < b.whole; i++)
        if (p[i] != GUARD)
            bugcheck(0x19, "BAD_POOL_HEADER", "pool block %p of %llu bytes (tag %.4s) was overrun: byte %llu is 0x%02x",
                     (const void *)p, (unsigned long long)b.size, reinterpret_cast<const char *>(&b.tag),
                     (unsigned long long)i, p[i]);
}

void recycle(uint64_t address, const Block &b) {
    if (g_verifier) {
        auto *p = reinterpret_cast<const uint8_t *>(address);
        for (uint64_t i = 0; i < b.whole; i++)
            if (p[i] != FREED)
                bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION",
                         "pool block %p (tag %.4s) was written after it was freed, at offset %llu", (const void *)p,
                         reinterpret_cast<const char *>(&b.tag), (unsigned long long)i);
    }
    if (b.pages != 0) {
        PageIndex first = *page_pool().from_linear(address);
        for (uint32_t i = 0; i < b.pages; i++) page_pool().release(first + i);
    } else {
        g_free[size_class(b.whole)].push_back(address);
    }
}

}  // namespace

void *pool_allocate(uint64_t size, uint32_t tag, bool from_driver) {
    if (from_driver && should_fail(Fail::Pool)) return nullptr;
    if (size > page_pool().bytes()) return nullptr;
    uint64_t whole = std::max<uint64_t>(size, 1);
    bool paged = size >= 4096;  // NT gives such blocks whole pages
    if (paged) whole = page_up(size + (g_verifier && size % 4096 == 0 && from_driver ? GUARD_BYTES : 0));
    else whole += g_verifier ? GUARD_BYTES : 0;
    uint64_t address = 0;
    Block b{size, whole, tag, 0, from_driver};
    Locked l(g_lock);
    if (paged) {
        b.pages = static_cast<uint32_t>(whole / 4096);
        auto first = page_pool().allocate_linear(b.pages);
        if (!first) return nullptr;
        address = reinterpret_cast<uint64_t>(page_pool().address(*first));
    } else {
        uint64_t c = size_class(whole);
        auto &list = g_free[c];
        if (list.empty()) {
            uint32_t pages = c >= 4096 ? static_cast<uint32_t>(page_up(c) / 4096) : 4;
            auto first = page_pool().allocate_linear(pages);
            if (!first) return nullptr;
            auto base = reinterpret_cast<uint64_t>(page_pool().address(*first));
            for (uint64_t at = 0; at + c <= uint64_t{pages} * 4096; at += c) list.push_back(base + at);
        }
        address = list.back();
        list.pop_back();
    }
    g_blocks[address] = b;
    auto *p = reinterpret_cast<uint8_t *>(address);
    // NT leaves old content; a driver that relies on zeroes should notice.
    if (g_verifier && from_driver) memset(p, 0xcd, size);
    if (g_verifier) memset(p + size, GUARD, whole - size);
    return p;
}

void pool_free(void *p, uint32_t tag, bool check_tag) {
    auto address = reinterpret_cast<uint64_t>(p);
    Locked l(g_lock);
    auto it = g_blocks.find(address);
    if (it == g_blocks.end()) {
        for (auto &[a, b] : g_quarantine)
            if (a == address)
                bugcheck(0xc2, "BAD_POOL_CALLER", "pool block %p (tag %.4s) was freed twice", p,
                         reinterpret_cast<const char *>(&b.tag));
        bugcheck(0xc2, "BAD_POOL_CALLER", "%p is not a pool block", p);
    }
    Block b = it->second;
    if (check_tag && tag != 0 && b.tag != tag)
        bugcheck(0xc2, "BAD_POOL_CALLER", "pool block %p has tag %.4s and was freed with tag %.4s", p,
                 reinterpret_cast<const char *>(&b.tag), reinterpret_cast<const char *>(&tag));
    if (g_verifier) {
        check_guard(address, b);
        if (b.from_driver && timer_armed_in(address, address + b.size - 1))
            bugcheck(0xc7, "TIMER_OR_DPC_INVALID", "pool block %p (tag %.4s) was freed with an armed timer in it", p,
                     reinterpret_cast<const char *>(&b.tag));
        memset(p, FREED, b.whole);
    }
    g_blocks.erase(it);
    if (!g_verifier) {
        recycle(address, b);
        return;
    }
    g_quarantine.emplace_back(address, b);
    if (g_quarantine.size() > QUARANTINE_BLOCKS) {
        auto [a, old] = g_quarantine.front();
        g_quarantine.pop_front();
        recycle(a, old);
    }
}

bool pool_owns(uint64_t address) {
    Locked l(g_lock);
    return g_blocks.contains(address);
}

std::string pool_leaks() {
    Locked l(g_lock);
    std::map<uint32_t, std::pair<unsigned, uint64_t>> by_tag;
    for (auto &[address, b] : g_blocks) {
        if (!b.from_driver) continue;
        by_tag[b.tag].first++;
        by_tag[b.tag].second += b.size;
    }
    std::ostringstream out;
    for (auto &[tag, n] : by_tag)
        out << (out.tellp() > 0 ? ", " : "") << std::string(reinterpret_cast<const char *>(&tag), 4) << ": " << n.first
            << " blocks, " << n.second << " bytes";
    return out.str();
}

}  // namespace nth
