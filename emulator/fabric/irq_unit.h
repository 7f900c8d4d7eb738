// SPDX-License-Identifier: GPL-2.0-or-later
// irq_unit.h: cause and mask of the interrupt line (docs/snic.md, "Interrupts"). Thread safe: the engine raises, MMIO acknowledges.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

namespace fabric {

class IrqUnit {
  public:
    // `line` is called with the lock held, on every change of level.
    explicit IrqUnit(std::function<void(bool)> line) : line_(std::move(line)) {}

    void raise(unsigned vector) { update([&] { cause_ |= 1u << vector; }); }
    void acknowledge(uint32_t bits) { update([&] { cause_ &= ~bits; }); }
    void set_mask(uint32_t mask) { update([&] { mask_ = mask; }); }
    void reset() { update([&] { cause_ = mask_ = 0; }); }
    uint32_t cause() { return read(cause_); }
    uint32_t mask() { return read(mask_); }

  private:
    template <typename F>
    void update(F &&change) {
        std::lock_guard lock(mutex_);
        change();
        bool level = (cause_ & mask_) != 0;
        if (level != level_) line_(level_ = level);
    }
    uint32_t read(const uint32_t &word) {
        std::lock_guard lock(mutex_);
        return word;
    }

    std::mutex mutex_;
    uint32_t cause_ = 0, mask_ = 0;
    bool level_ = false;
    std::function<void(bool)> line_;
};

}  // namespace fabric
