// SPDX-License-Identifier: GPL-2.0-or-later
//
// run.h: goes through the steps, in order to install, in reverse to uninstall. The first failure undoes what this run has done, last
// change first; the first undo that fails ends that, so that what stays is what a shorter run would have left.
#pragma once

#include "step.h"

namespace sanctl {

enum class Exit : int { Ok = 0, Missing = 1, Usage = 2, Failed = 3 };
enum class Change { Install, Uninstall };

Exit change(const Steps &steps, Change change, bool dry_run);
Exit status(const Steps &steps, bool json);

} // namespace sanctl
