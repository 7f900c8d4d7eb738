// SPDX-License-Identifier: GPL-2.0-or-later
// fabric.h: the sanfabricd of a RUN folder. One for all: the lab's guests and the domains that were attached join the
// same fabric. It runs from the first that needs it to the last.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "paths.h"

namespace lab {

std::string fabric_socket(const Paths &paths);
// The one that serves fabric_socket(); 0: none.
pid_t running_fabric(const Paths &paths);
// Starts it if none runs, and opens it to the hypervisors of the attached domains. Throws when it does not come up.
void start_fabric(const Paths &paths);
void stop_fabric(const Paths &paths);

// A domain of the user's that has a NIC on this fabric: kept in RUN/attached.json, since libvirt has no list of them.
struct AttachedDomain {
    std::string uri, domain, ip, nic;
    int64_t user = -1;  // whom libvirt runs its hypervisor as, -1: not known
    bool operator==(const AttachedDomain &) const = default;
};
// Throws UserError when the file is damaged.
std::vector<AttachedDomain> attached_domains(const Paths &paths);
// Lets a hypervisor that runs as this user open the fabric's socket: it becomes that user's. False: not permitted.
bool admit_to_fabric(const std::string &socket, int64_t user);
void save_attached(const Paths &paths, const std::vector<AttachedDomain> &domains);

}  // namespace lab
