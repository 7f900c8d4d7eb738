// SPDX-License-Identifier: GPL-2.0-or-later
#include "fault_filter.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace fabric {

void FaultFilter::refresh(const fabric_faults *page, uint64_t link) {
    if (!page) return;
    auto generation = [&] {
        return std::atomic_ref(const_cast<uint32_t &>(page->generation)).load(std::memory_order_acquire);
    };
    uint32_t before = generation();
    if (before == policy_.generation || before & 1) return;
    fabric_faults copy;
    std::memcpy(&copy, page, sizeof copy);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (generation() != before) return;
    bool reseed = copy.seed != policy_.seed;
    policy_ = copy;
    policy_.generation = before;
    if (reseed) rng_.seed(copy.seed ^ link);
    active_ = copy.link_down || copy.loss_ppm || copy.duplicate_ppm || copy.corrupt_ppm || copy.reorder_ppm || copy.delay_ns ||
              copy.jitter_ns;
}

void FaultFilter::hold(std::span<const std::byte> record, uint64_t due) {
    if (held_.size() >= kMaxHeld) return;  // a link has only so much room; the rest is lost
    auto at = std::upper_bound(held_.begin(), held_.end(), due, [](uint64_t d, const Held &h) { return d < h.due; });
    held_.insert(at, {due, {record.begin(), record.end()}});
}

void FaultFilter::take(std::span<const std::byte> record, uint64_t now, const Deliver &deliver) {
    if (policy_.link_down || chance(policy_.loss_ppm)) return;
    std::vector<std::byte> damaged;
    if (chance(policy_.corrupt_ppm)) {
        damaged.assign(record.begin(), record.end());
        damaged[rng_() % damaged.size()] ^= std::byte{static_cast<uint8_t>(1u << rng_() % 8)};
        record = damaged;
    }
    uint64_t due = now + policy_.delay_ns + (policy_.jitter_ns ? rng_() % policy_.jitter_ns : 0);
    bool later = chance(policy_.reorder_ppm), twice = chance(policy_.duplicate_ppm);
    // Reordering: held for 50 us, so that whatever comes meanwhile passes.
    if (later) due += 50'000;
    bool overtakes = policy_.reorder_ppm != 0;
    if (due == now && (overtakes || held_.empty())) {
        deliver(record);
        if (twice) deliver(record);
        return;
    }
    hold(record, due);
    if (twice) hold(record, due);
}

void FaultFilter::release(uint64_t now, const Deliver &deliver) {
    while (!held_.empty() && held_.front().due <= now) {
        std::vector<std::byte> record = std::move(held_.front().record);
        held_.pop_front();
        deliver(record);
    }
}

}  // namespace fabric
