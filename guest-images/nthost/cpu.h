// SPDX-License-Identifier: GPL-2.0-or-later
//
// cpu.h: what runs above PASSIVE_LEVEL: interrupt service routines, DPCs and timers, and the IRQL rules.
//
// One Linux thread, the "CPU", runs them: first interrupts that are due, then queued DPCs, then it sleeps until the
// next timer. A back end whose interrupts arrive on a thread of its own may run them there (run_interrupt), which saves
// a thread switch.
#pragma once

#include <cstdint>

#include "base.h"
#include "nt_types.h"

namespace nth {

class Thread;

void start_cpu();
// Wakes the CPU thread: something was queued, or a nearer timer was set.
void poke_cpu();
// false: already queued. wake: poke the CPU (not needed from the CPU itself).
bool queue_dpc(nt::KDPC *dpc, void *arg1, void *arg2, bool wake = true);
bool remove_dpc(nt::KDPC *dpc);
// Until all DPCs queued so far have run.
void flush_dpcs();
bool dpc_queued_in(uint64_t first, uint64_t last);  // any queued KDPC in that memory (verifier)

// ---- interrupts
// The device's side: message `vector` was sent / the line changed its level. Any thread, never blocks.
void post_message_interrupt(unsigned vector);
void set_interrupt_line(bool level);
// Runs an interrupt and the DPCs it queues on the calling thread, which must be a system thread. The line's routines
// are called once each: for back ends where an asserted line reports again by itself.
void run_message_interrupt(unsigned vector);
void run_line_interrupt();

struct InterruptObject {
    nt::KSERVICE_ROUTINE *line_routine;
    nt::KMESSAGE_SERVICE_ROUTINE *message_routine;
    void *context;
    uint64_t *spin_lock;  // the driver's, or own_lock
    uint64_t own_lock;
    nt::KIRQL irql, synchronize_irql;
    unsigned message;
};
// false: the vector is taken or does not exist.
bool connect_interrupt(InterruptObject *o, bool is_message);
void disconnect_interrupt(InterruptObject *o);
unsigned connected_interrupts();

// ---- IRQL
nt::KIRQL raise_irql(nt::KIRQL to);
void lower_irql(nt::KIRQL to);
// Verifier: bugcheck when the caller's IRQL is above `highest`.
void require_irql(nt::KIRQL highest, const char *function);

// ---- spin locks: driver memory, low word as FutexLock, high word the owner's thread id
void acquire_spin_lock(uint64_t *lock, const char *function);
void release_spin_lock(uint64_t *lock, const char *function);
bool try_spin_lock(uint64_t *lock);

// ---- work items
void queue_work(void (*routine)(void *), void *context);
// Until all work queued so far has run.
void flush_work();

}  // namespace nth
