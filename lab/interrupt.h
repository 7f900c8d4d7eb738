// SPDX-License-Identifier: GPL-2.0-or-later
// interrupt.h: ^C, SIGTERM and a closed terminal end a command in order. Whatever waits asks here and throws; what the
// command holds is given back on the way out. A second signal does not disturb that.
#pragma once

namespace lab {

// Not a std::exception: who treats those as "the guest does not answer" must let this one pass.
struct Interrupted {
    int signal;
};

// From now on signals are remembered instead of ending the process.
void catch_interrupts();
// Throws Interrupted after a signal has come, and once only: undoing is not interrupted.
void throw_if_interrupted();
// What has begun is brought to its end: throw_if_interrupted() throws no more.
void finish_despite_interrupts();

}  // namespace lab
