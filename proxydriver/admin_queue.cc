// SPDX-License-Identifier: GPL-2.0-or-later
#include "admin_queue.h"

namespace sanproxy {

namespace {
constexpr unsigned spin_rounds = 4000;          // some tens of microseconds: most commands are done by then
constexpr LONGLONG timeout = -10 * 10000000LL;  // ten seconds in all, in units of 100 ns
constexpr unsigned slot_wait_rounds = 10000;    // times 1 ms, for a free slot
} // namespace

bool AdminQueue::alloc() {
    for (Slot &slot : slots_) KeInitializeEvent(&slot.done, NotificationEvent, FALSE);
    return commands_.alloc(entries * sizeof(snic_cmd)) && completions_.alloc(entries * sizeof(snic_cpl));
}

void AdminQueue::free() {
    commands_.free();
    completions_.free();
}

void AdminQueue::start(volatile uint32_t *doorbell) {
    memset(completions_.as<void>(), 0, entries * sizeof(snic_cpl));
    doorbell_ = doorbell;
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
        if (failed_ || round == slot_wait_rounds) return false;
        LARGE_INTEGER interval;
        interval.QuadPart = -10000;
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
    limit.QuadPart = timeout;
    while (!arrived(slot) && !failed_) {
        const NTSTATUS status =
            KeWaitForSingleObject(&slots_[slot].done, Executive, KernelMode, FALSE, &limit);
        KeResetEvent(&slots_[slot].done);
        if (status == STATUS_TIMEOUT && !arrived(slot)) {
            DbgPrint("sanproxy: the NIC has not answered a command for 10 s; it is out of use until it is restarted\n");
            fail();
        }
    }
    InterlockedExchange(&slots_[slot].waiting, 0);
    return arrived(slot);
}

uint16_t AdminQueue::execute(Command &command) {
    uint32_t slot;
    {
        MutexGuard guard(mutex_);
        if (failed_ || !take_slot(slot)) return no_answer;
        busy_[slot] = 1;
        slots_[slot].pass = next_ / entries + 1;
        KeResetEvent(&slots_[slot].done);
        memcpy(&commands_.as<snic_cmd>()[slot], &command.cmd, sizeof(snic_cmd));
        memory_barrier();
        *doorbell_ = ++next_;
    }
    // A slot whose completion never came stays busy: the NIC may still write it.
    if (!await(slot)) return no_answer;
    memory_barrier();
    memcpy(&command.cpl, &completions_.as<snic_cpl>()[slot], sizeof(snic_cpl));
    InterlockedExchange(&busy_[slot], 0);
    return command.cpl.status;
}

} // namespace sanproxy
