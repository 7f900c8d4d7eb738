// SPDX-License-Identifier: GPL-2.0-or-later
// fault_filter.h: what the fault page does to the records of one link, on their way in. Deterministic for a seed and a sequence of records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <span>
#include <vector>

#include "sanlab/fabric_wire.h"

namespace fabric {

class FaultFilter {
  public:
    using Deliver = std::function<void(std::span<const std::byte>)>;

    // The policy now in force. A page in mid-update leaves the old one. Cheap when nothing has changed.
    void refresh(const fabric_faults *page, uint64_t link);
    // False: records may go straight to the NIC.
    bool active() const { return active_ || !held_.empty(); }
    bool link_down() const { return policy_.link_down; }
    bool corrupts() const { return policy_.corrupt_ppm != 0; }

    // Takes a record that came in, calls `deliver` for what is to be handed on now.
    void take(std::span<const std::byte> record, uint64_t now, const Deliver &deliver);
    // Hands on what was delayed until now.
    void release(uint64_t now, const Deliver &deliver);
    // When release() has something to do; UINT64_MAX: never.
    uint64_t due() const { return held_.empty() ? UINT64_MAX : held_.front().due; }

  private:
    bool chance(uint32_t ppm) { return ppm && rng_() % 1'000'000 < ppm; }
    void hold(std::span<const std::byte> record, uint64_t due);

    static constexpr size_t kMaxHeld = 4096;
    struct Held {
        uint64_t due;
        std::vector<std::byte> record;
    };
    fabric_faults policy_ = {};
    bool active_ = false;
    std::mt19937_64 rng_{1};
    std::deque<Held> held_;  // by due time
};

}  // namespace fabric
