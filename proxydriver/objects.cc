// SPDX-License-Identifier: GPL-2.0-or-later
#include "objects.h"

namespace sanproxy {

void ObjectTable::free() {
    for (uint32_t i = 0; i < chunk_count_; ++i) pool_free(chunks_[i]);
    chunk_count_ = 0;
    first_free_ = 0;
}

bool ObjectTable::insert(Object *object) {
    if (first_free_ == 0) {
        if (chunk_count_ == max_chunks) return false;
        Slot *chunk = static_cast<Slot *>(pool_alloc(chunk_size * sizeof(Slot)));
        if (!chunk) return false;
        const uint32_t base = chunk_count_ << chunk_bits;
        for (uint32_t i = 0; i < chunk_size; ++i) chunk[i].next_free = i + 1 < chunk_size ? base + i + 2 : 0;
        chunks_[chunk_count_++] = chunk;
        first_free_ = base + 1;
    }
    const uint32_t index = first_free_ - 1;
    Slot *s = slot(index);
    first_free_ = s->next_free;
    s->generation = (s->generation + 1) & ((1u << (32 - slot_bits)) - 1);
    if (s->generation == 0) s->generation = 1;
    s->object = object;
    object->id = index | s->generation << slot_bits;
    return true;
}

void ObjectTable::remove(Object *object) {
    const uint32_t index = object->id & ((1u << slot_bits) - 1);
    Slot *s = slot(index);
    s->object = nullptr;
    s->next_free = first_free_;
    first_free_ = index + 1;
}

Object *ObjectTable::find(uint32_t id) const {
    const uint32_t index = id & ((1u << slot_bits) - 1);
    if (index >= chunk_count_ << chunk_bits) return nullptr;
    const Slot *s = slot(index);
    return s->generation == id >> slot_bits ? s->object : nullptr;
}

} // namespace sanproxy
