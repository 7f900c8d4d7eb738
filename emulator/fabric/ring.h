// SPDX-License-Identifier: GPL-2.0-or-later
// ring.h: the two ends of a shared-memory ring (fabric_wire.h, section 1). The other end is another process: whatever it writes is
// read once, checked against the bounds of the mapping, and if wrong the ring counts as broken, for good.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sanlab/fabric_wire.h"

namespace fabric {

// Writes the headers of both rings of a new link: FABRIC_LINK_BYTES of zeroed memory at `base`.
void format_link(std::byte *base);

// Producer. Not thread safe; one reservation at a time.
class RingWriter {
  public:
    RingWriter() = default;
    // `base`: the ring's header; data follows at FABRIC_RING_HEADER. Resets nothing: continues at the ring's head.
    explicit RingWriter(std::byte *base);

    // Room for a record of `size` bytes, at most FABRIC_MAX_RECORD; empty when the ring is full or broken. After it was full the consumer
    // wakes us when it has made room.
    std::span<std::byte> reserve(size_t size);
    // Publishes the reservation. True: the consumer sleeps and must be woken.
    bool commit();

    fabric_ring *header() const { return ring_; }
    bool broken() const { return broken_; }

  private:
    bool has_room(uint64_t need);

    fabric_ring *ring_ = nullptr;
    std::byte *data_ = nullptr;
    uint64_t head_ = 0;      // ours; the shared one is only written
    uint64_t tail_ = 0;      // as last seen
    uint64_t reserved_ = 0;  // bytes, with padding
    bool broken_ = false;
};

// Consumer. Not thread safe.
class RingReader {
  public:
    RingReader() = default;
    explicit RingReader(std::byte *base);

    // The oldest record, or empty. It lies in shared memory: copy what you check.
    std::span<const std::byte> front();
    void pop();
    // After a burst of pop(): does the producer wait for room? True once for each time it does: wake it.
    bool take_starved();

    // Before and after sleeping. Setting is followed by a full fence, so that front() afterwards sees what was missed.
    void set_waiting(bool waiting);
    fabric_ring *header() const { return ring_; }
    bool broken() const { return broken_; }

  private:
    fabric_ring *ring_ = nullptr;
    std::byte *data_ = nullptr;
    uint64_t tail_ = 0;
    uint64_t size_ = 0;  // of the record that front() returned
    bool broken_ = false;
};

}  // namespace fabric
