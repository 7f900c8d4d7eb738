// SPDX-License-Identifier: GPL-2.0-or-later
//
// fault.h: signals. A fault in PE code, or in a leaf import, becomes an exception there; a fault in device memory is
// carried out (mmio.h); mov cr8 is carried out; anything else is nthost's own mistake.
#pragma once

#include <csignal>

namespace nth {

inline constexpr int NUDGE_SIGNAL = SIGUSR2;  // "look at your terminate and suspend flags"

void install_fault_handlers();

}  // namespace nth
