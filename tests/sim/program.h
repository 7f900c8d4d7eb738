// SPDX-License-Identifier: GPL-2.0-or-later
// program.h: one random program of registrations, connections and transfers over simulated NICs, checked against a
// simple model.
#pragma once

#include <cstdint>
#include <string>

namespace sim {

struct Shape {           // what a seed may choose from; shrinking makes these smaller
    uint32_t nics = 4;   // 2..8
    uint32_t pairs = 4;  // connections
    uint32_t ops = 60;   // for each connection
    bool faults = true;
    bool upsets = true;  // disconnects, dead links, bad keys in the middle
};

struct Verdict {
    bool ok = true;
    std::string what;  // first thing that was wrong
    uint64_t completions = 0, retransmits = 0;
};

// Runs the program of `seed`. The same seed and shape give the same run.
Verdict run_program(uint64_t seed, const Shape &shape);

}  // namespace sim
