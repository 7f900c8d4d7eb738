// SPDX-License-Identifier: GPL-2.0-or-later
//
// exception.h: structured exceptions: raising them from imports and from faults, finding handlers, unwinding.
#pragma once

#include "nt_status.h"
#include "nt_types.h"

namespace nth {

class Thread;

// Raises in the PE code that called the current import; returns only if a filter says to continue.
void raise_exception(nt::EXCEPTION_RECORD *record);
// The usual case: a status, not continuable.
[[noreturn]] void raise_status(nt::NTSTATUS status);
[[noreturn]] void raise_access_violation(uint64_t address, bool write);

// Looks for a handler, starting at the frame of `context`; continues execution somewhere, in any case.
[[noreturn]] void dispatch_exception(nt::EXCEPTION_RECORD *record, nt::CONTEXT *context);

// RtlUnwindEx, starting at `start`. target_frame 0: exit unwind.
[[noreturn]] void unwind_to(uint64_t target_frame, uint64_t target_ip, nt::EXCEPTION_RECORD *record, uint64_t value,
                            nt::CONTEXT *start, void *history);

// Leaves the current execution for the one in `context`.
[[noreturn]] void restore_context(nt::CONTEXT *context);

// The language handler of compilers with __try: an import that PE files name in their unwind data.
int NTAPI c_specific_handler(nt::EXCEPTION_RECORD *record, uint64_t frame, nt::CONTEXT *context,
                             nt::DISPATCHER_CONTEXT *dispatcher);

// Whether the PE code at context (and its callers up to the start of its stack) is inside a __try that would look at an
// access violation: the verifier's question.
bool inside_try(Thread *t, const nt::CONTEXT *context);

}  // namespace nth
