// SPDX-License-Identifier: GPL-2.0-or-later
//
// perf_data.cc: the data that travels, and its verification. Every slot's bytes depend on the run's seed, the slot and the
// position, and its first bytes are stamped with the number of the operation that used it last: so stale, misplaced and
// missing data all show.
#include "perf.h"

#include <cstring>

namespace sanperf {

namespace {

uint64_t mix(uint64_t x) {
    x ^= x >> 31;
    x *= 0x9E3779B97F4A7C15ull;
    return x ^ x >> 29;
}

constexpr uint32_t stamp_bytes(uint32_t size) { return size < 4 ? size : 4; }

// The 8 bytes at that position (a multiple of 8).
uint64_t pattern(uint64_t base, uint32_t position) { return (base + position) * 0x2545F4914F6CDD1Dull; }

} // namespace

void fill_slot(unsigned char *slot, uint32_t size, uint64_t seed, uint32_t index) {
    const uint64_t base = mix(seed + index);
    uint32_t at = 0;
    for (; at + 8 <= size; at += 8) {
        const uint64_t word = pattern(base, at);
        memcpy(slot + at, &word, 8);
    }
    const uint64_t word = pattern(base, at);
    memcpy(slot + at, &word, size - at);
}

void stamp_slot(unsigned char *slot, uint32_t size, uint32_t iteration) { memcpy(slot, &iteration, stamp_bytes(size)); }

bool check_slot(const unsigned char *slot, uint32_t size, uint64_t seed, uint32_t index, uint32_t iteration) {
    const uint64_t base = mix(seed + index);
    const uint32_t stamp = stamp_bytes(size);
    if (memcmp(slot, &iteration, stamp) != 0) return false;
    uint32_t at = 0;
    for (; at + 8 <= size; at += 8) {
        const uint64_t word = pattern(base, at);
        const uint32_t skip = at == 0 ? stamp : 0;
        if (memcmp(slot + at + skip, reinterpret_cast<const unsigned char *>(&word) + skip, 8 - skip) != 0) return false;
    }
    const uint64_t word = pattern(base, at);
    const uint32_t skip = at == 0 ? stamp : 0;
    return memcmp(slot + at + skip, reinterpret_cast<const unsigned char *>(&word) + skip, size - at - skip) == 0;
}

bool check_all(const Run &run) {
    const uint32_t used = run.iterations < run.slots ? run.iterations : run.slots;
    for (uint32_t i = 0; i < used; ++i) {
        const uint32_t last = i + (run.iterations - 1 - i) / run.slots * run.slots;
        if (!check_slot(run.local.data() + static_cast<uint64_t>(i) * run.size, run.size, run.seed, i, last)) return false;
    }
    return true;
}

double now_seconds() {
    static LARGE_INTEGER frequency;
    LARGE_INTEGER now;
    if (frequency.QuadPart == 0) QueryPerformanceFrequency(&frequency);
    QueryPerformanceCounter(&now);
    return static_cast<double>(now.QuadPart) / static_cast<double>(frequency.QuadPart);
}

double measure_memcpy(uint64_t bytes, uint32_t size) {
    Buffer from, to;
    if (size > bytes) return 0;
    // Where memory is short, halves of it: what counts is that the caches cannot hold what it cycles through.
    if (!from.alloc(bytes) || !to.alloc(bytes)) {
        bytes /= 2;
        if (size > bytes || !from.alloc(bytes) || !to.alloc(bytes)) return 0;
    }
    memset(from.data(), 1, from.size());
    memset(to.data(), 2, to.size());
    const uint64_t slots = bytes / size;
    // Once through, at least 256 MiB in all.
    uint64_t count = slots;
    while (count * size < 256ull << 20) count += slots;
    const double begin = now_seconds();
    for (uint64_t i = 0; i < count; ++i) memcpy(to.data() + i % slots * size, from.data() + i % slots * size, size);
    return static_cast<double>(count) * size / (now_seconds() - begin);
}

} // namespace sanperf
