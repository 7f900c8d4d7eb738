// SPDX-License-Identifier: GPL-2.0-or-later
//
// unwind.h: walking x64 PE frames by their unwind data, across the nthost frames between them.
//
// Contract: a walk is a CONTEXT that moves outwards. Where a PE function was called by nthost, the walk goes on at
// whatever made nthost run: the import call that is nearest up the stack (a CallRecord), or the exception dispatch or
// unwind in progress whose handler this is (an Active). It ends where a thread or a kernel entry starts.
#pragma once

#include <string>
#include <vector>

#include "nt_types.h"

namespace nth {

class Thread;
struct Image;

// An exception dispatch or an unwind that is calling handlers, on the stack of the function that does it.
struct Active {
    enum Kind { Dispatch, Unwind } kind;
    uint64_t host_sp;     // an address in that function's frame
    nt::CONTEXT *resume;  // where an outward walk goes on: the exception's context, or the frame being unwound
    nt::EXCEPTION_RECORD *record;
    Active *outer;
};

// One frame: the function that ctx->Rip is in.
struct Frame {
    uint64_t pc = 0;
    Image *image = nullptr;
    nt::RUNTIME_FUNCTION *function = nullptr;
    uint64_t establisher = 0;
    nt::EXCEPTION_ROUTINE *handler = nullptr;  // of the asked-for type
    void *handler_data = nullptr;
};

inline constexpr uint32_t UNW_EHANDLER = 1, UNW_UHANDLER = 2;

// Undoes one PE function; ctx->Rip must be in `image`. Returns its handler if it has one of `handler_type`.
nt::EXCEPTION_ROUTINE *virtual_unwind(uint32_t handler_type, uint64_t image_base, uint64_t pc,
                                      nt::RUNTIME_FUNCTION *function, nt::CONTEXT *ctx, void **handler_data,
                                      uint64_t *establisher);

// If ctx->Rip is not in an image: moves ctx on to the next PE frame. false: there is none.
bool cross_host_frames(Thread *t, nt::CONTEXT *ctx);
// Describes the frame at ctx and unwinds ctx past it. false: no PE frame is left.
bool step(Thread *t, nt::CONTEXT *ctx, uint32_t handler_type, Frame *frame);

// Context of the PE code that called the current import. false: no import is in progress.
bool context_of_caller(Thread *t, nt::CONTEXT *ctx);

}  // namespace nth
