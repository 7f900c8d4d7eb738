// SPDX-License-Identifier: GPL-2.0-or-later
// kvm.h: does KVM really run a guest here? An openable /dev/kvm proves nothing.
#pragma once

#include <string>

namespace lab {

// True: a guest of one instruction ran to its end. False: *why says what failed.
bool kvm_works(std::string *why);

}  // namespace lab
