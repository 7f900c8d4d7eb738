// SPDX-License-Identifier: GPL-2.0-or-later
#include "socket.h"

namespace sanprov {

// word: references (bits 0..30), closed (bit 31), generation (bits 32..63).
struct TableSlot {
    volatile LONG64 word;
    Socket *socket;
    TableSlot *next_free;
};

namespace {

constexpr LONG64 closed_bit = 1ll << 31;
constexpr uint32_t chunk_bits = 8, chunk_slots = 1u << chunk_bits, max_chunks = 64;
constexpr uint32_t index_bits = 14, generation_mask = 0xffff;
static_assert(max_chunks << chunk_bits == 1u << index_bits);

struct Table {
    volatile LONG lock = 0; // a spin lock: held for a few instructions, and needs no constructor
    TableSlot *chunks[max_chunks] = {};
    uint32_t chunk_count = 0;
    TableSlot *free = nullptr;
};
constinit Table table;

class TableGuard {
  public:
    TableGuard() {
        while (InterlockedExchange(&table.lock, 1)) Sleep(0);
    }
    ~TableGuard() { InterlockedExchange(&table.lock, 0); }
};

uint32_t generation(LONG64 word) { return static_cast<uint32_t>(word >> 32); }
uint32_t references(LONG64 word) { return static_cast<uint32_t>(word & (closed_bit - 1)); }

SOCKET make_handle(uint32_t index, uint32_t gen) { return static_cast<SOCKET>(gen) << (index_bits + 2) | index << 2; }

TableSlot *slot_of(SOCKET handle, uint32_t &gen) {
    const uint32_t index = handle >> 2 & ((1u << index_bits) - 1);
    if (handle & 3 || handle >> (index_bits + 2) > generation_mask) return nullptr;
    gen = static_cast<uint32_t>(handle >> (index_bits + 2));
    TableSlot *chunk = table.chunks[index >> chunk_bits];
    return chunk ? &chunk[index & (chunk_slots - 1)] : nullptr;
}

bool grow() {
    auto *chunk = static_cast<TableSlot *>(heap_alloc(chunk_slots * sizeof(TableSlot)));
    if (!chunk) return false;
    for (uint32_t i = 0; i < chunk_slots; ++i) {
        chunk[i].word = closed_bit;
        chunk[i].next_free = i + 1 < chunk_slots ? &chunk[i + 1] : nullptr;
    }
    TableGuard guard;
    if (table.chunk_count == max_chunks) {
        heap_free(chunk);
        return false;
    }
    chunk[chunk_slots - 1].next_free = table.free;
    table.free = chunk;
    table.chunks[table.chunk_count++] = chunk;
    return true;
}

uint32_t index_of(const TableSlot *slot) {
    for (uint32_t c = 0; c < table.chunk_count; ++c)
        if (slot >= table.chunks[c] && slot < table.chunks[c] + chunk_slots)
            return c << chunk_bits | static_cast<uint32_t>(slot - table.chunks[c]);
    return 0;
}

} // namespace

bool table_publish(Socket *s) {
    for (;;) {
        {
            TableGuard guard;
            if (TableSlot *slot = table.free) {
                table.free = slot->next_free;
                uint32_t gen = (generation(slot->word) + 1) & generation_mask;
                if (gen == 0) gen = 1;
                slot->socket = s;
                s->slot = slot;
                s->handle = make_handle(index_of(slot), gen);
                InterlockedExchange64(&slot->word, static_cast<LONG64>(gen) << 32 | 1);
                return true;
            }
        }
        if (!grow()) return false;
    }
}

Socket *table_acquire(SOCKET handle) {
    uint32_t gen;
    TableSlot *slot = slot_of(handle, gen);
    if (!slot) return nullptr;
    for (LONG64 word = slot->word;;) {
        if (generation(word) != gen || word & closed_bit) return nullptr;
        const LONG64 seen = InterlockedCompareExchange64(&slot->word, word + 1, word);
        if (seen == word) return slot->socket;
        word = seen;
    }
}

bool table_close(SOCKET handle) {
    uint32_t gen;
    TableSlot *slot = slot_of(handle, gen);
    if (!slot) return false;
    for (LONG64 word = slot->word;;) {
        if (generation(word) != gen || word & closed_bit) return false;
        const LONG64 seen = InterlockedCompareExchange64(&slot->word, word | closed_bit, word);
        if (seen == word) return true;
        word = seen;
    }
}

SOCKET table_first_open() { return table_next_open(INVALID_SOCKET); }

SOCKET table_next_open(SOCKET after) {
    TableGuard guard;
    uint32_t at = after == INVALID_SOCKET ? 0 : (static_cast<uint32_t>(after) >> 2 & ((1u << index_bits) - 1)) + 1;
    for (; at < table.chunk_count << chunk_bits; ++at) {
        const LONG64 word = table.chunks[at >> chunk_bits][at & (chunk_slots - 1)].word;
        if (!(word & closed_bit)) return make_handle(at, generation(word));
    }
    return INVALID_SOCKET;
}

void socket_hold(Socket &s) { InterlockedIncrement64(&s.slot->word); }

void socket_release(Socket &s) {
    TableSlot *slot = s.slot;
    // The switch's reference goes only after table_close: at zero the slot is closed, and nobody can find it.
    if (references(InterlockedDecrement64(&slot->word)) != 0) return;
    socket_destroy(slot->socket);
    TableGuard guard;
    slot->socket = nullptr;
    slot->next_free = table.free;
    table.free = slot;
}

} // namespace sanprov
