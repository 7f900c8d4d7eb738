// SPDX-License-Identifier: GPL-2.0-or-later
#include "ring.h"

#include <atomic>
#include <cstring>

namespace fabric {

namespace {

constexpr uint64_t kMask = FABRIC_RING_BYTES - 1;

uint64_t aligned(uint64_t n) { return (n + FABRIC_RECORD_ALIGN - 1) & ~uint64_t{FABRIC_RECORD_ALIGN - 1}; }

template <typename T>
std::atomic_ref<T> shared(T &word) {
    return std::atomic_ref<T>(word);
}

}  // namespace

void format_link(std::byte *base) {
    for (uint64_t offset : {uint64_t{0}, uint64_t{FABRIC_RING_STRIDE}}) {
        auto *ring = reinterpret_cast<fabric_ring *>(base + offset);
        ring->cookie = FABRIC_COOKIE;
        ring->version = FABRIC_VERSION;
        ring->bytes = FABRIC_RING_BYTES;
    }
}

RingWriter::RingWriter(std::byte *base)
    : ring_(reinterpret_cast<fabric_ring *>(base)), data_(base + FABRIC_RING_HEADER) {
    head_ = shared(ring_->head).load();
    tail_ = shared(ring_->tail).load();
}

bool RingWriter::has_room(uint64_t need) {
    if (FABRIC_RING_BYTES - (head_ - tail_) >= need) return true;
    uint64_t tail = shared(ring_->tail).load(std::memory_order_acquire);
    if (head_ - tail > FABRIC_RING_BYTES || tail - tail_ > head_ - tail_) {
        broken_ = true;
        return false;
    }
    tail_ = tail;
    return FABRIC_RING_BYTES - (head_ - tail_) >= need;
}

std::span<std::byte> RingWriter::reserve(size_t size) {
    if (broken_ || size > FABRIC_MAX_RECORD) return {};
    uint64_t need = aligned(size);
    uint64_t to_end = FABRIC_RING_BYTES - (head_ & kMask);
    uint64_t pad = to_end < need ? to_end : 0;  // records do not wrap
    if (!has_room(pad + need)) {
        // Say so, then look once more: the consumer moves its tail, then looks whether we said so.
        shared(ring_->starved).store(1, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (!has_room(pad + need)) return {};
    }
    if (pad) {
        fabric_msg filler = {};
        filler.size = static_cast<uint32_t>(pad);
        filler.type = FABRIC_PAD;
        std::memcpy(data_ + (head_ & kMask), &filler, sizeof filler);
    }
    reserved_ = pad + need;
    return {data_ + ((head_ + pad) & kMask), size};
}

bool RingWriter::commit() {
    head_ += reserved_;
    reserved_ = 0;
    shared(ring_->head).store(head_, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return shared(ring_->waiting).load(std::memory_order_relaxed) != 0;
}

RingReader::RingReader(std::byte *base)
    : ring_(reinterpret_cast<fabric_ring *>(base)), data_(base + FABRIC_RING_HEADER) {
    tail_ = shared(ring_->tail).load();
}

std::span<const std::byte> RingReader::front() {
    while (!broken_) {
        uint64_t head = shared(ring_->head).load(std::memory_order_acquire);
        uint64_t filled = head - tail_;
        if (filled == 0) return {};
        uint64_t to_end = FABRIC_RING_BYTES - (tail_ & kMask);
        fabric_msg msg;
        if (filled > FABRIC_RING_BYTES || filled % FABRIC_RECORD_ALIGN) break;
        std::memcpy(&msg, data_ + (tail_ & kMask), sizeof msg);
        uint64_t room = filled < to_end ? filled : to_end;
        if (msg.size < sizeof msg || aligned(msg.size) > room) break;
        size_ = aligned(msg.size);
        if (msg.type != FABRIC_PAD) {
            if (msg.size > FABRIC_MAX_RECORD) break;
            return {data_ + (tail_ & kMask), msg.size};
        }
        pop();
    }
    broken_ = true;
    return {};
}

void RingReader::pop() {
    tail_ += size_;
    size_ = 0;
    shared(ring_->tail).store(tail_, std::memory_order_release);
}

bool RingReader::take_starved() {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (shared(ring_->starved).load(std::memory_order_relaxed) == 0) return false;
    return shared(ring_->starved).exchange(0) != 0;
}

void RingReader::set_waiting(bool waiting) {
    shared(ring_->waiting).store(waiting, std::memory_order_relaxed);
    if (waiting) std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace fabric
