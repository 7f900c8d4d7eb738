// SPDX-License-Identifier: GPL-2.0-or-later
#include "admin_queue.h"

namespace sanproxy {

namespace {
constexpr unsigned spin_rounds = 4000; // some tens of microseconds: most commands are done by then
constexpr LONGLONG ticks_per_ms = 10000;       // of 100 ns
} // namespace

bool AdminQueue::alloc() {
    for (Slot &slot : slots_) KeInitializeEvent(&slot.done, NotificationEvent, FALSE);
    return commands_.alloc(entries * sizeof(snic_cmd)) && completions_.alloc(entries * sizeof(snic_cpl));
}

void AdminQueue::free() {
    commands_.free();
    completions_.free();
}

void AdminQueue::start(volatile uint32_t *doorbell, uint32_t timeout_ms, void (*give_up)(void *), void *owner) {
    memset(completions_.as<void>(), 0, entries * sizeof(snic_cpl));
    doorbell_ = doorbell;
    timeout_ms_ = timeout_ms;
    give_up_ = give_up;
    owner_ = owner;
    next_ = 0;
    for (volatile LONG &busy : busy_) busy = 0;
    InterlockedExchange(&failed_, 0);
}

void AdminQueue::fail() {
    InterlockedExchange(&failed_, 1);
    for (Slot &slot : slots_) KeSetEvent(&slot.done, IO_NO_INCREMENT, FALSE);
}

bool AdminQueue::arrived(uint32_t slot) const {
    const snic_cpl *ring = const_cast<AdminQueue *>(this)->completions_.as<snic_cpl>();
    return *const_cast<const volatile uint32_t *>(&ring[slot].phase) == slots_[slot].pass;
}

void AdminQueue::on_interrupt() {
    for (uint32_t i = 0; i < entries; ++i)
        if (slots_[i].waiting && arrived(i)) KeSetEvent(&slots_[i].done, IO_NETWORK_INCREMENT, FALSE);
}

// Called with mutex_ held. The next slot may still belong to an earlier command that takes long.
bool AdminQueue::take_slot(uint32_t &slot) {
    slot = next_ % entries;
    for (unsigned round = 0; busy_[slot]; ++round) {
        if (failed_ || round == timeout_ms_) return false;
        LARGE_INTEGER interval;
        interval.QuadPart = -ticks_per_ms;
        KeDelayExecutionThread(KernelMode, FALSE, &interval);
    }
    return !failed_;
}

bool AdminQueue::await(uint32_t slot) {
    for (unsigned i = 0; i < spin_rounds; ++i) {
        if (arrived(slot)) return true;
        YieldProcessor();
    }
    InterlockedExchange(&slots_[slot].waiting, 1);
    LARGE_INTEGER limit;
    limit.QuadPart = -ticks_per_ms * timeout_ms_;
    while (!arrived(slot) && !failed_) {
        const NTSTATUS status =
            KeWaitForSingleObject(&slots_[slot].done, Executive, KernelMode, FALSE, &limit);
        KeResetEvent(&slots_[slot].done);
        if (status == STATUS_TIMEOUT && !arrived(slot)) {
            DbgPrint("sanproxy: the NIC has not answered a command for %u ms; it is out of use until it is restarted\n",
                     timeout_ms_);
            fail();
        }
    }
    InterlockedExchange(&slots_[slot].waiting, 0);
    return arrived(slot);
}

bool AdminQueue::post(const Command &command, uint32_t &slot) {
    MutexGuard guard(mutex_);
    if (failed_ || !take_slot(slot)) return false;
    busy_[slot] = 1;
    slots_[slot].pass = next_ / entries + 1;
    KeResetEvent(&slots_[slot].done);
    memcpy(&commands_.as<snic_cmd>()[slot], &command.cmd, sizeof(snic_cmd));
    memory_barrier();
    *doorbell_ = ++next_;
    return true;
}

uint16_t AdminQueue::execute(Command &command) {
    uint32_t slot;
    // A slot whose completion never came stays busy until the NIC is restarted.
    if (!post(command, slot) || !await(slot)) {
        give_up_(owner_);
        return no_answer;
    }
    memory_barrier();
    memcpy(&command.cpl, &completions_.as<snic_cpl>()[slot], sizeof(snic_cpl));
    InterlockedExchange(&busy_[slot], 0);
    return command.cpl.status;
}

} // namespace sanproxy
