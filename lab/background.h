// SPDX-License-Identifier: GPL-2.0-or-later
// background.h: programs that outlive this one (sanfabricd of a lab, a private libvirtd).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace lab {

// Starts it in a session of its own, output appended to `log`. Returns its process id. Throws when it cannot be started.
pid_t run_in_background(const std::vector<std::string> &argv, const std::string &log);

}  // namespace lab
