// SPDX-License-Identifier: GPL-2.0-or-later
//
// Ending a process from outside: a work item stops its threads; the last of them tears the process down.
#include "cpu.h"
#include "io.h"
#include "process.h"

namespace nth {

void queue_reaper(Process *p, uint32_t) {
    queue_work(
        [](void *arg) {
            auto *process = static_cast<Process *>(arg);
            stop_other_threads(process, process->exit_code);
            object_release(process);
        },
        p);
}

}  // namespace nth
