// SPDX-License-Identifier: GPL-2.0-or-later
// background.h: programs that outlive this one (sanfabricd of a lab, a private libvirtd).
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace lab {

// What becomes of the processes that the program leaves behind or starts as daemons.
enum class Orphans {
    to_init,
    adopt,  // a process of ours stays and waits for them: who polls for their end is not kept waiting by a slow init
};

// Starts it in a session of its own, output appended to `log`. Returns its process id. Throws when it cannot be
// started.
pid_t run_in_background(const std::vector<std::string> &argv, const std::string &log,
                        Orphans orphans = Orphans::to_init);

// Does this process run, and is `name` its program? Not: another one that got the number since, or one that only waits
// to be reaped.
bool process_runs(pid_t pid, const std::string &name);

// The process id in a file; 0: none.
pid_t read_pid(const std::string &path);

// Ends it, if it is that program: asks, and insists after `patience_ms`.
void end_process(pid_t pid, const std::string &name, unsigned patience_ms);

}  // namespace lab
