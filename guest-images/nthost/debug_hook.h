// SPDX-License-Identifier: GPL-2.0-or-later
//
// debug_hook.h: an empty function for debuggers to break on: called once per image, after it was mapped and relocated.
#pragma once

#include <cstdint>

extern "C" void nthost_image_loaded(const char *path, uint64_t base, uint64_t preferred);
