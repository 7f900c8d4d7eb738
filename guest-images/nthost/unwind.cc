// SPDX-License-Identifier: GPL-2.0-or-later
#include "unwind.h"

#include <cstring>

#include "base.h"
#include "pe_image.h"
#include "thread.h"

namespace nth {

using namespace nt;

namespace {

struct UnwindInfo {
    uint8_t VersionFlags, PrologSize, CodeCount, FrameRegister;
    uint16_t Code[1];
    unsigned flags() const { return VersionFlags >> 3; }
};

enum {
    UWOP_PUSH_NONVOL,
    UWOP_ALLOC_LARGE,
    UWOP_ALLOC_SMALL,
    UWOP_SET_FPREG,
    UWOP_SAVE_NONVOL,
    UWOP_SAVE_NONVOL_FAR,
    UWOP_EPILOG,
    UWOP_SPARE,
    UWOP_SAVE_XMM128,
    UWOP_SAVE_XMM128_FAR,
    UWOP_PUSH_MACHFRAME
};

constexpr unsigned CHAIN = 4;

uint64_t load(uint64_t address) {
    return *reinterpret_cast<uint64_t *>(address);
}

unsigned slots(unsigned op, unsigned info) {
    switch (op) {
        case UWOP_ALLOC_LARGE: return info == 0 ? 2 : 3;
        case UWOP_SAVE_NONVOL:
        case UWOP_SAVE_XMM128:
        case UWOP_EPILOG: return 2;
        case UWOP_SAVE_NONVOL_FAR:
        case UWOP_SAVE_XMM128_FAR:
        case UWOP_SPARE: return 3;
        default: return 1;
    }
}

}  // namespace

EXCEPTION_ROUTINE *virtual_unwind(uint32_t handler_type, uint64_t base, uint64_t pc, RUNTIME_FUNCTION *function,
                                  CONTEXT *ctx, void **handler_data, uint64_t *establisher) {
    if (function == nullptr) {  // leaf
        *establisher = ctx->Reg[RSP];
        ctx->Rip = load(ctx->Reg[RSP]);
        ctx->Reg[RSP] += 8;
        return nullptr;
    }
    uint32_t offset = static_cast<uint32_t>(pc - base) - function->Begin;
    EXCEPTION_ROUTINE *handler = nullptr;
    bool machine_frame = false, first = true;
    for (RUNTIME_FUNCTION *f = function; f != nullptr;) {
        auto *info = reinterpret_cast<UnwindInfo *>(base + f->UnwindInfo);
        bool in_prolog = first && offset < info->PrologSize;
        unsigned fp = info->FrameRegister & 15;
        uint64_t fp_offset = (info->FrameRegister >> 4) * 16u;
        if (first) {
            bool fp_set = fp != 0 && !in_prolog;
            for (unsigned i = 0; in_prolog && i < info->CodeCount;) {
                unsigned op = info->Code[i] >> 8 & 15, op_info = info->Code[i] >> 12, at = info->Code[i] & 0xff;
                if (op == UWOP_SET_FPREG && at <= offset) fp_set = true;
                i += slots(op, op_info);
            }
            *establisher = fp_set ? ctx->Reg[fp] - fp_offset : ctx->Reg[RSP];
        }
        // Saved registers are relative to the frame, or to rsp when there is no frame pointer.
        uint64_t frame = fp != 0 && !in_prolog ? ctx->Reg[fp] - fp_offset : ctx->Reg[RSP];
        if (first && in_prolog) frame = *establisher;
        for (unsigned i = 0; i < info->CodeCount;) {
            uint16_t *c = info->Code + i;
            unsigned op = c[0] >> 8 & 15, op_info = c[0] >> 12, at = c[0] & 0xff;
            i += slots(op, op_info);
            if (in_prolog && at > offset) continue;
            switch (op) {
                case UWOP_PUSH_NONVOL:
                    ctx->Reg[op_info] = load(ctx->Reg[RSP]);
                    ctx->Reg[RSP] += 8;
                    break;
                case UWOP_ALLOC_LARGE: ctx->Reg[RSP] += op_info == 0 ? c[1] * 8u : (c[1] | uint32_t{c[2]} << 16); break;
                case UWOP_ALLOC_SMALL: ctx->Reg[RSP] += op_info * 8 + 8; break;
                case UWOP_SET_FPREG: ctx->Reg[RSP] = ctx->Reg[fp] - fp_offset; break;
                case UWOP_SAVE_NONVOL: ctx->Reg[op_info] = load(frame + c[1] * 8u); break;
                case UWOP_SAVE_NONVOL_FAR: ctx->Reg[op_info] = load(frame + (c[1] | uint32_t{c[2]} << 16)); break;
                case UWOP_SAVE_XMM128:
                    memcpy(&ctx->Xmm[op_info], reinterpret_cast<void *>(frame + c[1] * 16u), 16);
                    break;
                case UWOP_SAVE_XMM128_FAR:
                    memcpy(&ctx->Xmm[op_info], reinterpret_cast<void *>(frame + (c[1] | uint32_t{c[2]} << 16)), 16);
                    break;
                case UWOP_PUSH_MACHFRAME: {
                    uint64_t sp = ctx->Reg[RSP] + (op_info != 0 ? 8 : 0);
                    ctx->Rip = load(sp);
                    ctx->Reg[RSP] = load(sp + 24);
                    machine_frame = true;
                    break;
                }
                default: break;  // epilogue descriptions
            }
        }
        unsigned flags = info->flags();
        unsigned even = (info->CodeCount + 1) & ~1u;
        if (flags & CHAIN) {
            f = reinterpret_cast<RUNTIME_FUNCTION *>(info->Code + even);
            first = false;
            continue;
        }
        if (!in_prolog && (flags & handler_type) != 0) {
            uint32_t rva;
            memcpy(&rva, info->Code + even, 4);
            handler = reinterpret_cast<EXCEPTION_ROUTINE *>(base + rva);
            *handler_data = info->Code + even + 2;
        }
        break;
    }
    if (!machine_frame) {
        ctx->Rip = load(ctx->Reg[RSP]);
        ctx->Reg[RSP] += 8;
    }
    return handler;
}

static void context_from_record(const CallRecord *r, CONTEXT *ctx) {
    ctx->ContextFlags = CONTEXT_FULL_FLAGS;
    ctx->Rip = load(r->rsp);
    ctx->Reg[RSP] = r->rsp + 8;
    ctx->Reg[RBX] = r->rbx;
    ctx->Reg[RBP] = r->rbp;
    ctx->Reg[RSI] = r->rsi;
    ctx->Reg[RDI] = r->rdi;
    ctx->Reg[R12] = r->r12;
    ctx->Reg[R13] = r->r13;
    ctx->Reg[R14] = r->r14;
    ctx->Reg[R15] = r->r15;
    memcpy(&ctx->Xmm[6], r->xmm, sizeof r->xmm);
}

// Records of the current stack: the newest first, down to the mark where the stack starts.
static const CallRecord *next_record(Thread *t, uint64_t above) {
    for (CallRecord *r = t->record_top() - 1; r->rsp != ~uint64_t{0}; r--)
        if (r->rsp > above) return r;
    return nullptr;
}

bool cross_host_frames(Thread *t, CONTEXT *ctx) {
    if (image_of(ctx->Rip) != nullptr) return true;
    uint64_t sp = ctx->Reg[RSP];
    const CallRecord *r = next_record(t, sp);
    Active *a = t->active;
    while (a != nullptr && a->host_sp <= sp) a = a->outer;
    if (a != nullptr && (r == nullptr || a->host_sp < r->rsp)) {
        // The frame that the walk goes on from must be further out, or the walk would never end.
        if (a->resume->Reg[RSP] <= sp && a->kind == Active::Dispatch) return false;
        CONTEXT next = *a->resume;
        *ctx = next;
        return image_of(ctx->Rip) != nullptr || cross_host_frames(t, ctx);
    }
    if (r == nullptr) return false;
    context_from_record(r, ctx);
    return image_of(ctx->Rip) != nullptr || cross_host_frames(t, ctx);
}

bool step(Thread *t, CONTEXT *ctx, uint32_t handler_type, Frame *frame) {
    if (!cross_host_frames(t, ctx)) return false;
    frame->pc = ctx->Rip;
    frame->image = image_of(ctx->Rip);
    frame->function = find_function(*frame->image, ctx->Rip);
    frame->handler = virtual_unwind(handler_type, frame->image->base, frame->pc, frame->function, ctx,
                                    &frame->handler_data, &frame->establisher);
    return true;
}

bool context_of_caller(Thread *t, CONTEXT *ctx) {
    const CallRecord *r = t->record_top() - 1;
    if (r->rsp == ~uint64_t{0}) return false;
    *ctx = CONTEXT{};
    ctx->MxCsr = 0x1f80;
    context_from_record(r, ctx);
    return true;
}

}  // namespace nth
