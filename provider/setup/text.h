// SPDX-License-Identifier: GPL-2.0-or-later
//
// text.h: what sanctl says: wide text to a narrow stream, error codes in words, and what to do about them.
#pragma once

#include <cstdio>
#include <string>

#include "step.h"

namespace sanctl {

std::string narrow(const std::wstring &text);
void say(FILE *to, const std::wstring &text); // and a new line
std::wstring error_text(DWORD code);          // "error 5 (access is denied)"
std::wstring advice(DWORD code);              // one sentence, never empty
std::string json_string(const std::wstring &text);

} // namespace sanctl
