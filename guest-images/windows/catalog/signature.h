// SPDX-License-Identifier: GPL-2.0-or-later
// signature.h: is a catalog signed by this very certificate? A test certificate signs itself: there is no chain to follow.
#pragma once

#include <string>

#include "catalog.h"

namespace sancat {

// Throws Error that says what is wrong: no signature, another certificate, not for signing code, not valid now, or not for this list.
// `certificate` is a file, PEM or DER.
void check_signature(const Bytes &file, const Catalog &catalog, const std::string &certificate);

}  // namespace sancat
