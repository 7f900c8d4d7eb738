// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest_memory.h"

#include <atomic>
#include <cstring>

namespace snic {

namespace {

template <typename Copy>
bool walk(Host &host, uint64_t addr, size_t len, bool write, Copy &&copy) {
    size_t done = 0;
    while (done < len) {
        size_t n = len - done;
        std::byte *p = host.map(addr + done, n, write);
        if (!p || n == 0) return false;
        copy(p, done, n);
        done += n;
    }
    return true;
}

template <typename Copy>
bool walk(Host &host, const PageMap &map, uint64_t offset, size_t len, bool write, Copy &&copy) {
    size_t done = 0;
    while (done < len) {
        PageMap::Run run = map.find(offset + done);
        size_t n = run.len < len - done ? run.len : len - done;
        if (!walk(host, run.addr, n, write, [&](std::byte *p, size_t at, size_t part) { copy(p, done + at, part); }))
            return false;
        done += n;
    }
    return true;
}

std::atomic_ref<uint32_t> word(std::byte *p) { return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t *>(p)); }

std::byte *map_word(Host &host, uint64_t addr, bool write) {
    if (addr & 3) return nullptr;
    size_t n = 4;
    std::byte *p = host.map(addr, n, write);
    return n == 4 ? p : nullptr;
}

}  // namespace

bool guest_read(Host &host, uint64_t addr, void *to, size_t len) {
    return walk(host, addr, len, false,
                [&](std::byte *p, size_t at, size_t n) { std::memcpy(static_cast<char *>(to) + at, p, n); });
}

bool guest_write(Host &host, uint64_t addr, const void *from, size_t len) {
    return walk(host, addr, len, true,
                [&](std::byte *p, size_t at, size_t n) { std::memcpy(p, static_cast<const char *>(from) + at, n); });
}

bool guest_read(Host &host, const PageMap &map, uint64_t offset, void *to, size_t len) {
    return walk(host, map, offset, len, false,
                [&](std::byte *p, size_t at, size_t n) { std::memcpy(static_cast<char *>(to) + at, p, n); });
}

bool guest_write(Host &host, const PageMap &map, uint64_t offset, const void *from, size_t len) {
    return walk(host, map, offset, len, true,
                [&](std::byte *p, size_t at, size_t n) { std::memcpy(p, static_cast<const char *>(from) + at, n); });
}

bool guest_load(Host &host, uint64_t addr, uint32_t &value) {
    std::byte *p = map_word(host, addr, false);
    if (!p) return false;
    value = word(p).load(std::memory_order_acquire);
    return true;
}

bool guest_store(Host &host, uint64_t addr, uint32_t value) {
    std::byte *p = map_word(host, addr, true);
    if (!p) return false;
    word(p).store(value, std::memory_order_release);
    return true;
}

bool guest_store(Host &host, const PageMap &map, uint64_t offset, uint32_t value) {
    return guest_store(host, map.find(offset).addr, value);
}

bool guest_pieces(Host &host, const PageMap &map, uint64_t offset, size_t len, bool write, Pieces &out) {
    bool room = true;
    return walk(host, map, offset, len, write, [&](std::byte *p, size_t, size_t n) { room = out.add(p, n) && room; }) && room;
}

void copy_pieces(const Pieces &to, const Pieces &from) {
    const Piece *s = from.begin();
    size_t used = 0;
    for (const Piece &d : to) {
        size_t done = 0;
        while (done < d.len && s != from.end()) {
            size_t n = s->len - used < d.len - done ? s->len - used : d.len - done;
            std::memmove(d.at + done, s->at + used, n);
            done += n;
            used += n;
            if (used == s->len) s++, used = 0;
        }
    }
}

}  // namespace snic
