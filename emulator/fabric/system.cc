// SPDX-License-Identifier: GPL-2.0-or-later
#include "system.h"

#include <sys/random.h>
#include <time.h>

#include <cstring>
#include <random>

namespace fabric {

uint64_t monotonic_ns() {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

uint64_t random64() {
    uint64_t v;
    if (getrandom(&v, sizeof v, 0) == sizeof v) return v;
    std::random_device other;  // a kernel without getrandom(2): /dev/urandom, or an exception
    return uint64_t{other()} << 32 | other();
}

std::string name_of(const fabric_nic &nic) {
    std::string name(nic.name, strnlen(nic.name, sizeof nic.name));
    for (char &c : name)
        if (c < 32 || c > 126) c = '?';
    return name;
}

}  // namespace fabric
