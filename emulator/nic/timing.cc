// SPDX-License-Identifier: GPL-2.0-or-later
// The latency and bandwidth model: a transmitter that is busy for bytes / rate and for each operation it begins, and a wire on which
// every record takes its time. What is not asked for costs nothing.
#include <algorithm>

#include "nic.h"

namespace snic {

// False: the transmitter is busy, try again at `wait_until`.
bool Nic::may_transmit(uint64_t &wait_until) {
    if (!paced() || host_.now_ns() >= tx_free_) return true;
    wait_until = tx_free_;
    return false;
}

void Nic::account_transmit(size_t bytes, bool begins_operation) {
    if (!paced()) return;
    uint64_t busy = begins_operation ? config_.op_cost : 0;
    if (config_.link_rate)
        busy += static_cast<uint64_t>(static_cast<unsigned __int128>(bytes) * 1'000'000'000 / config_.link_rate);
    tx_free_ = std::max(tx_free_, host_.now_ns()) + busy;
}

void Nic::hold_record(PeerId peer, std::span<const std::byte> record) {
    if (held_records_.size() >= kMaxHeldRecords) return;  // lost, as on a wire whose buffers are full
    uint64_t due = host_.now_ns() + config_.delay + (config_.jitter ? host_.random() % (config_.jitter + 1) : 0);
    if (!held_records_.empty()) due = std::max(due, held_records_.back().due);
    held_records_.push_back({due, peer, {record.begin(), record.end()}});
}

bool Nic::deliver_held_records() {
    if (held_records_.empty()) return false;
    uint64_t now = host_.now_ns();
    bool some = false;
    while (!held_records_.empty() && held_records_.front().due <= now) {
        HeldRecord r = std::move(held_records_.front());
        held_records_.pop_front();
        dispatch(r.peer, r.bytes);
        some = true;
    }
    return some;
}

}  // namespace snic
