// SPDX-License-Identifier: GPL-2.0-or-later
// system.h: the clock and the randomness that the model in emulator/nic is given, and names as they come over the wire.
#pragma once

#include <cstdint>
#include <string>

#include "sanlab/fabric_wire.h"

namespace fabric {

// Nanoseconds on CLOCK_MONOTONIC: for deadlines and intervals.
uint64_t monotonic_ns();

// From the system's generator: for identities, nonces and seeds.
uint64_t random64();

// A NIC's name, whatever bytes its sender put there: at most 32 characters, those that cannot be printed as '?'.
std::string name_of(const fabric_nic &nic);

}  // namespace fabric
