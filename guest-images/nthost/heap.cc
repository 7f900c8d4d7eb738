// SPDX-License-Identifier: GPL-2.0-or-later
#include "heap.h"

#include <cstring>
#include <vector>

#include "process.h"
#include "secure_cache.h"

namespace nth {

using namespace nt;

namespace {

constexpr uint32_t USED = 0x44455355, FREE = 0x45455246, BIG = 0x20474942;
constexpr uint64_t SEGMENT = 1 << 20;

struct alignas(16) BlockHeader {
    uint32_t state;
    uint16_t size_class;
    uint16_t offset;  // in units of 16: from this header to the block's real start (aligned blocks)
    uint64_t size;    // as asked for
};
static_assert(sizeof(BlockHeader) == 16);

constexpr unsigned CLASSES = 64;
// 16-byte steps up to 256, then four steps per doubling.
uint64_t class_size(unsigned c) {
    if (c < 16) return (c + 1) * 16;
    unsigned step = (c - 16) % 4, power = (c - 16) / 4;
    uint64_t base = uint64_t{256} << power;
    return base + (step + 1) * base / 4;
}
unsigned class_of(uint64_t n) {
    if (n <= 256) return n == 0 ? 0 : static_cast<unsigned>((n - 1) / 16);
    unsigned c = 16;
    while (class_size(c) < n) c++;
    return c;
}

}  // namespace

struct Heap {
    Process *owner;
    FutexLock lock;  // guards all below
    BlockHeader *free_list[CLASSES] = {};
    uint64_t segment_at = 0, segment_end = 0;
};

Heap *heap_create(Process *owner) {
    auto *h = new Heap;
    h->owner = owner;
    return h;
}

void heap_destroy(Heap *heap) {
    delete heap;
}

static BlockHeader *&next_free(BlockHeader *b) {
    return *reinterpret_cast<BlockHeader **>(b + 1);
}

static BlockHeader *take(Heap *heap, unsigned c) {
    Locked l(heap->lock);
    if (BlockHeader *b = heap->free_list[c]) {
        heap->free_list[c] = next_free(b);
        return b;
    }
    uint64_t bytes = class_size(c) + sizeof(BlockHeader);
    if (heap->segment_at + bytes > heap->segment_end) {
        uint64_t at = 0, size = SEGMENT;
        if (!nt_success(memory().allocate(heap->owner, &at, &size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE)))
            return nullptr;
        heap->segment_at = at;
        heap->segment_end = at + size;
    }
    auto *b = reinterpret_cast<BlockHeader *>(heap->segment_at);
    heap->segment_at += bytes;
    return b;
}

void *heap_allocate(Heap *heap, uint64_t size, bool zero, uint64_t align) {
    uint64_t want = align > 16 ? size + align : size;
    if (want < size || want > USER_LIMIT) return nullptr;
    BlockHeader *b;
    if (want >= HEAP_LARGE) {
        uint64_t at = 0, bytes = want + sizeof(BlockHeader);
        if (!nt_success(memory().allocate(heap->owner, &at, &bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE)))
            return nullptr;
        b = reinterpret_cast<BlockHeader *>(at);
        b->state = BIG;
        zero = false;
    } else {
        unsigned c = class_of(want);
        b = take(heap, c);
        if (b == nullptr) return nullptr;
        b->state = USED;
        b->size_class = static_cast<uint16_t>(c);
    }
    b->offset = 0;
    b->size = size;
    auto address = reinterpret_cast<uint64_t>(b + 1);
    if (align > 16 && (address & (align - 1)) != 0) {
        uint64_t aligned = (address + align - 1) & ~(align - 1);
        BlockHeader copy = *b;
        copy.offset = static_cast<uint16_t>((aligned - address) / 16);
        *(reinterpret_cast<BlockHeader *>(aligned) - 1) = copy;
        address = aligned;
    }
    if (zero) memset(reinterpret_cast<void *>(address), 0, size);
    return reinterpret_cast<void *>(address);
}

static BlockHeader *header_of(void *p) {
    if ((reinterpret_cast<uint64_t>(p) & 15) != 0) return nullptr;
    auto *b = static_cast<BlockHeader *>(p) - 1;
    return b->state == USED || b->state == BIG ? b : nullptr;
}

bool heap_free(Heap *heap, void *p) {
    if (p == nullptr) return true;
    BlockHeader *b = header_of(p);
    if (b == nullptr) {
        note("process %u: heap block %p is freed twice or is none", heap->owner->id, p);
        return false;
    }
    BlockHeader head = *b;
    b->state = FREE;
    auto *real = reinterpret_cast<BlockHeader *>(reinterpret_cast<uint8_t *>(b) - head.offset * 16u);
    if (head.state == BIG) {
        uint64_t at = reinterpret_cast<uint64_t>(real), size = 0;
        return nt_success(free_virtual_memory(heap->owner, &at, &size, MEM_RELEASE));
    }
    Locked l(heap->lock);
    real->state = FREE;
    next_free(real) = heap->free_list[head.size_class];
    heap->free_list[head.size_class] = real;
    return true;
}

uint64_t heap_size(Heap *, void *p) {
    BlockHeader *b = header_of(p);
    return b == nullptr ? ~uint64_t{0} : b->size;
}

void *heap_reallocate(Heap *heap, void *p, uint64_t size, bool zero) {
    if (p == nullptr) return heap_allocate(heap, size, zero);
    BlockHeader *b = header_of(p);
    if (b == nullptr) return nullptr;
    if (b->state == USED && b->offset == 0 && size <= class_size(b->size_class) &&
        size * 4 >= class_size(b->size_class)) {
        if (zero && size > b->size) memset(static_cast<uint8_t *>(p) + b->size, 0, size - b->size);
        b->size = size;
        return p;
    }
    void *n = heap_allocate(heap, size, zero);
    if (n == nullptr) return nullptr;
    memcpy(n, p, std::min(b->size, size));
    heap_free(heap, p);
    return n;
}

void *user_malloc(uint64_t size) {
    return heap_allocate(current()->process->heap, size, false);
}
void user_free(void *p) {
    heap_free(current()->process->heap, p);
}

}  // namespace nth
