// SPDX-License-Identifier: GPL-2.0-or-later
//
// admin_queue.h: commands to the NIC (docs/snic.md section 5). Several threads may execute commands at the same time; each
// waits for its own completion, first by looking at it for a moment, then on an event that the interrupt sets. Every wait is
// bounded: a NIC that does not answer counts as failed from then on, and further commands fail at once. Whoever gets no answer
// may rely on it that the NIC has been reset: it uses no memory any more.
#pragma once

#include "memory.h"

namespace sanproxy {

// A command and, after execute, its completion. `body` is one of the snic_cmd_* structures.
struct Command {
    snic_cmd cmd = {};
    snic_cpl cpl = {};

    explicit Command(snic_opcode opcode) { cmd.opcode = static_cast<uint8_t>(opcode); }
    template <typename T> T &body() {
        static_assert(sizeof(T) <= sizeof(cmd.body));
        return *reinterpret_cast<T *>(cmd.body);
    }
};

class AdminQueue {
  public:
    static constexpr uint32_t entries = 64;
    static constexpr uint16_t no_answer = 0xffff; // as a status: the NIC has failed

    bool alloc();
    void free();
    // The NIC reads these when it is enabled.
    uint64_t command_bus() const { return commands_.bus(); }
    uint64_t completion_bus() const { return completions_.bus(); }
    // doorbell: SNIC_REG_AQ_DOORBELL. give_up(owner) is called by everyone who gets no answer: it resets the NIC, or waits until
    // somebody else has. Called before ENABLE.
    void start(volatile uint32_t *doorbell, uint32_t timeout_ms, void (*give_up)(void *), void *owner);
    // From now on commands fail, those that wait as well.
    void fail();
    bool failed() const { return failed_ != 0; }

    // PASSIVE_LEVEL or APC_LEVEL. Returns the status, SNIC_OK or what went wrong (enum snic_status, no_answer).
    uint16_t execute(Command &command);
    // From the DPC: wakes those whose completion has arrived.
    void on_interrupt();

  private:
    struct Slot {
        KEVENT done;
        volatile LONG waiting;
        uint32_t pass; // phase of the completion that is awaited
    };
    bool arrived(uint32_t slot) const;
    bool take_slot(uint32_t &slot);
    bool await(uint32_t slot);
    bool post(const Command &command, uint32_t &slot);

    DmaBuffer commands_, completions_;
    volatile uint32_t *doorbell_ = nullptr;
    volatile LONG failed_ = 0;
    uint32_t timeout_ms_ = 0;
    void (*give_up_)(void *) = nullptr;
    void *owner_ = nullptr;
    Mutex mutex_;                 // posting: next_, busy_
    uint32_t next_ = 0;
    volatile LONG busy_[entries] = {}; // a slot is free again when its completion has been read
    Slot slots_[entries];
};

} // namespace sanproxy
