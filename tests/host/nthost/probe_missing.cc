// SPDX-License-Identifier: GPL-2.0-or-later
// A program whose imports nthost lacks on purpose.
#include <windows.h>

int main() { return MessageBoxA(nullptr, "", "", 0) + BeginPaint(nullptr, nullptr) != nullptr; }
