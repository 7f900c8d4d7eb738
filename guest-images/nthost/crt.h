// SPDX-License-Identifier: GPL-2.0-or-later
//
// crt.h: the part of msvcrt.dll's state that is per process, and its formatter.
#pragma once

#include <memory>
#include <string>

#include "nt_types.h"

namespace nth {

class Process;
struct CrtState;

std::unique_ptr<CrtState, void (*)(CrtState *)> make_crt_state(Process *p);
// Writes out what the process has buffered.
void crt_flush(Process *p);

// printf of msvcrt: `args` is a Windows va_list (8-byte slots). wide: %s means a wide string.
std::string format_ms(const char *format, __builtin_ms_va_list args);
std::string format_ms_wide(const char16_t *format, __builtin_ms_va_list args);

}  // namespace nth
