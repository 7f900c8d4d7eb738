// SPDX-License-Identifier: GPL-2.0-or-later
//
// stack_trace.h: stacks for people: PE frames as module+offset, with the export or import name where there is one.
#pragma once

#include <string>

#include "nt_types.h"

namespace nth {

class Thread;

std::string describe_address(uint64_t address);  // "sanproxy.sys+0x1234"
std::string describe_fault(const nt::EXCEPTION_RECORD *record);
void print_stack(Thread *t, const nt::CONTEXT *context);
// The calling thread's PE frames, from the context given to set_stack_context or from the current import on.
void print_current_stack();
void set_stack_context(const nt::CONTEXT *context);

}  // namespace nth
