// SPDX-License-Identifier: GPL-2.0-or-later
// handle_table.h: objects by handle. A handle is generation << 20 | (index + 1): 0 is never one, and a handle that was destroyed
// does not name the slot's next object. Objects do not move.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace snic {

template <typename T>
class HandleTable {
  public:
    static constexpr uint32_t kIndexBits = 20;
    static constexpr uint32_t kMaxObjects = (1u << kIndexBits) - 1;

    explicit HandleTable(uint32_t max) : max_(max < kMaxObjects ? max : kMaxObjects) {}

    // nullptr: all slots are taken. The object's `handle` member is set.
    T *create() {
        uint32_t index;
        if (!free_.empty()) {
            index = free_.back();
            free_.pop_back();
        } else {
            if (slots_.size() >= max_) return nullptr;
            index = static_cast<uint32_t>(slots_.size());
            slots_.emplace_back();
        }
        Slot &slot = slots_[index];
        slot.object = std::make_unique<T>();
        slot.object->handle = slot.generation << kIndexBits | (index + 1);
        count_++;
        return slot.object.get();
    }

    void destroy(uint32_t handle) {
        if (!find(handle)) return;
        uint32_t index = (handle & kMaxObjects) - 1;
        Slot &slot = slots_[index];
        slot.object.reset();
        slot.generation = (slot.generation + 1) & ((1u << (32 - kIndexBits)) - 1);
        free_.push_back(index);
        count_--;
    }

    T *find(uint32_t handle) {
        uint32_t index = (handle & kMaxObjects) - 1;
        if (index >= slots_.size() || !slots_[index].object) return nullptr;
        return slots_[index].object->handle == handle ? slots_[index].object.get() : nullptr;
    }

    // Destroys all objects; their handles stay dead.
    void clear() {
        for (uint32_t i = 0; i < slots_.size(); i++)
            if (slots_[i].object) destroy(slots_[i].object->handle);
    }

    // `f` must not create or destroy objects of this table.
    template <typename F>
    void each(F &&f) {
        for (auto &slot : slots_)
            if (slot.object) f(*slot.object);
    }

    uint32_t count() const { return count_; }

  private:
    struct Slot {
        std::unique_ptr<T> object;
        uint32_t generation = 0;
    };
    uint32_t max_;
    uint32_t count_ = 0;
    std::vector<Slot> slots_;
    std::vector<uint32_t> free_;
};

}  // namespace snic
