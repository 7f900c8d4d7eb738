// SPDX-License-Identifier: GPL-2.0-or-later
// input.h: takes a fuzzer's bytes apart; past the end everything is zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace fuzz {

class Input {
  public:
    Input(const uint8_t *data, size_t size) : at_(data), left_(size) {}
    bool empty() const { return left_ == 0; }
    template <typename T>
    T take() {
        T value{};
        copy(&value, sizeof value);
        return value;
    }
    // Fills `size` bytes; returns how many came from the input.
    size_t copy(void *to, size_t size) {
        size_t n = size < left_ ? size : left_;
        std::memcpy(to, at_, n);
        at_ += n;
        left_ -= n;
        return n;
    }

  private:
    const uint8_t *at_;
    size_t left_;
};

// A property that must hold for every input.
inline void require(bool holds) {
    if (!holds) std::abort();
}

}  // namespace fuzz
