// SPDX-License-Identifier: GPL-2.0-or-later
#include "exception.h"

#include <cstring>

#include "imports.h"
#include "pe_image.h"
#include "process.h"
#include "stack_trace.h"
#include "thread.h"
#include "unwind.h"

extern "C" [[noreturn]] void nth_restore(const nt::CONTEXT *);

namespace nth {

using namespace nt;

namespace {

constexpr NTSTATUS STATUS_BAD_FUNCTION_TABLE = static_cast<NTSTATUS>(0xC00000FF);

struct ScopeTable {
    uint32_t Count;
    struct {
        uint32_t Begin, End, Handler, Target;
    } Scope[1];
};

// Keeps an Active on the thread's list while a handler runs. No destructor runs when a handler unwinds past it: then
// restore_context takes it off.
struct ActiveScope {
    Thread *t;
    Active a;
    ActiveScope(Thread *thread, Active::Kind kind, CONTEXT *resume, EXCEPTION_RECORD *record)
        : t(thread), a{kind, reinterpret_cast<uint64_t>(this), resume, record, thread->active} {
        t->active = &a;
    }
    ~ActiveScope() { t->active = a.outer; }
};

[[noreturn]] void unhandled(EXCEPTION_RECORD *record, CONTEXT *context) {
    Thread *t = current();
    if (t->in_kernel() || t->is_system) {
        bool user_touch = record->ExceptionCode == STATUS_ACCESS_VIOLATION &&
                          is_user_address(record->ExceptionInformation[1]) &&
                          record->ExceptionInformation[1] >= USER_FIRST;
        const char *name = status_name(record->ExceptionCode);
        set_stack_context(context);
        if (record->ExceptionCode == STATUS_ACCESS_VIOLATION)
            bugcheck(user_touch ? 0x3b : 0x1e, user_touch ? "SYSTEM_SERVICE_EXCEPTION" : "KMODE_EXCEPTION_NOT_HANDLED",
                     "%s %s address 0x%llx%s, at %s", name,
                     record->ExceptionInformation[0] == 1   ? "writing"
                     : record->ExceptionInformation[0] == 8 ? "executing"
                                                            : "reading",
                     (unsigned long long)record->ExceptionInformation[1],
                     user_touch ? " (user memory touched outside __try)" : "", describe_address(context->Rip).c_str());
        bugcheck(0x1e, "KMODE_EXCEPTION_NOT_HANDLED", "0x%08X %s, at %s", uint32_t(record->ExceptionCode),
                 name ? name : "", describe_address(context->Rip).c_str());
    }
    // Its process is being ended around it: whatever it still trips over does not matter.
    if (t->terminate) exit_current_thread(t->exit_code);
    // The filter may make the exception go away: libgcc relies on it to end in std::terminate.
    if (auto filter = t->process->unhandled_filter) {
        EXCEPTION_POINTERS pointers{record, context};
        int32_t answer = call_pe(filter, &pointers);
        if (answer == -1) restore_context(context);
        if (answer == 1) exit_process(record->ExceptionCode);
    }
    note("process %u (%s) ends with exception 0x%08X %s at %s%s", t->process->id, t->process->name.c_str(),
         uint32_t(record->ExceptionCode), status_name(record->ExceptionCode) ? status_name(record->ExceptionCode) : "",
         describe_address(context->Rip).c_str(), describe_fault(record).c_str());
    print_stack(t, context);
    exit_process(record->ExceptionCode);
}

}  // namespace

void restore_context(CONTEXT *context) {
    Thread *t = current();
    uint64_t sp = context->Reg[RSP];
    while (t->active != nullptr && t->active->host_sp < sp) t->active = t->active->outer;
    CallRecord *r = t->record_top();
    while (r[-1].rsp < sp) r--;  // the mark at the start of the stack has rsp ~0
    t->set_record_top(r);
    nth_restore(context);
}

void dispatch_exception(EXCEPTION_RECORD *record, CONTEXT *context) {
    Thread *t = current();
    if (!t->in_kernel() && !t->is_system) {
        for (void *v : t->process->vectored_handlers()) {
            EXCEPTION_POINTERS pointers{record, context};
            ActiveScope active(t, Active::Dispatch, context, record);
            if (call_pe(reinterpret_cast<int32_t(NTAPI *)(EXCEPTION_POINTERS *)>(v), &pointers) == -1)
                restore_context(context);
        }
    }
    CONTEXT walk = *context;
    Frame frame;
    for (;;) {
        CONTEXT before;
        if (!cross_host_frames(t, &walk)) break;
        before = walk;
        if (!step(t, &walk, UNW_EHANDLER, &frame)) break;
        if (frame.handler == nullptr) continue;
        DISPATCHER_CONTEXT d{};
        d.ControlPc = frame.pc;
        d.ImageBase = frame.image->base;
        d.FunctionEntry = frame.function;
        d.EstablisherFrame = frame.establisher;
        d.ContextRecord = &before;
        d.LanguageHandler = frame.handler;
        d.HandlerData = frame.handler_data;
        int answer;
        {
            ActiveScope active(t, Active::Dispatch, context, record);
            answer = call_pe(frame.handler, record, frame.establisher, context, &d);
        }
        if (answer == ExceptionContinueExecution) {
            if (record->ExceptionFlags & EXCEPTION_NONCONTINUABLE) {
                EXCEPTION_RECORD again{};
                again.ExceptionCode = STATUS_NONCONTINUABLE_EXCEPTION;
                again.ExceptionFlags = EXCEPTION_NONCONTINUABLE;
                again.Nested = record;
                again.ExceptionAddress = record->ExceptionAddress;
                unhandled(&again, context);
            }
            restore_context(context);
        }
    }
    unhandled(record, context);
}

void unwind_to(uint64_t target_frame, uint64_t target_ip, EXCEPTION_RECORD *record, uint64_t value, CONTEXT *start,
               void *history) {
    Thread *t = current();
    EXCEPTION_RECORD own{};
    if (record == nullptr) {
        own.ExceptionCode = STATUS_UNWIND;
        own.ExceptionAddress = reinterpret_cast<void *>(start->Rip);
        record = &own;
    }
    record->ExceptionFlags |= EXCEPTION_UNWINDING;
    if (target_frame == 0) record->ExceptionFlags |= EXCEPTION_EXIT_UNWIND;
    CONTEXT here = *start;
    Frame frame;
    for (;;) {
        if (!cross_host_frames(t, &here)) break;
        CONTEXT next = here;
        if (!step(t, &next, UNW_UHANDLER, &frame)) break;
        bool at_target = frame.establisher == target_frame;
        if (frame.handler != nullptr) {
            if (at_target) record->ExceptionFlags |= EXCEPTION_TARGET_UNWIND;
            DISPATCHER_CONTEXT d{};
            d.ControlPc = frame.pc;
            d.ImageBase = frame.image->base;
            d.FunctionEntry = frame.function;
            d.EstablisherFrame = frame.establisher;
            d.TargetIp = target_ip;
            d.ContextRecord = &here;
            d.LanguageHandler = frame.handler;
            d.HandlerData = frame.handler_data;
            d.HistoryTable = history;
            here.Reg[RAX] = value;
            {
                ActiveScope active(t, Active::Unwind, &here, record);
                call_pe(frame.handler, record, frame.establisher, start, &d);
            }
            record->ExceptionFlags &= ~(EXCEPTION_TARGET_UNWIND | EXCEPTION_COLLIDED_UNWIND);
        }
        if (at_target) {
            here.Reg[RAX] = value;
            here.Rip = target_ip;
            restore_context(&here);
        }
        if (target_frame != 0 && frame.establisher > target_frame) break;  // went past it
        here = next;
    }
    if (target_frame == 0) exit_process(record->ExceptionCode);
    set_stack_context(start);
    host_bug("unwind: frame 0x%llx was not found (exception 0x%08X)", (unsigned long long)target_frame,
             uint32_t(record->ExceptionCode));
}

int NTAPI c_specific_handler(EXCEPTION_RECORD *record, uint64_t frame, CONTEXT *context, DISPATCHER_CONTEXT *d) {
    auto *table = static_cast<ScopeTable *>(d->HandlerData);
    uint32_t pc = static_cast<uint32_t>(d->ControlPc - d->ImageBase);
    if ((record->ExceptionFlags & (EXCEPTION_UNWINDING | EXCEPTION_EXIT_UNWIND)) == 0) {
        for (uint32_t i = d->ScopeIndex; i < table->Count; i++) {
            auto &s = table->Scope[i];
            if (pc < s.Begin || pc >= s.End || s.Target == 0) continue;
            int32_t answer = 1;
            if (s.Handler != 1) {
                EXCEPTION_POINTERS pointers{record, context};
                answer = call_pe(
                    reinterpret_cast<int32_t(NTAPI *)(EXCEPTION_POINTERS *, uint64_t)>(d->ImageBase + s.Handler),
                    &pointers, frame);
            }
            if (answer < 0) return ExceptionContinueExecution;
            if (answer > 0)
                unwind_to(frame, d->ImageBase + s.Target, record, uint32_t(record->ExceptionCode),
                          current()->active->resume, d->HistoryTable);
        }
        return ExceptionContinueSearch;
    }
    uint32_t target = static_cast<uint32_t>(d->TargetIp - d->ImageBase);
    bool at_target = (record->ExceptionFlags & EXCEPTION_TARGET_UNWIND) != 0;
    for (uint32_t i = d->ScopeIndex; i < table->Count; i++) {
        auto &s = table->Scope[i];
        if (pc < s.Begin || pc >= s.End) continue;
        if (at_target) {
            // The target lies in a scope: its own and outer __finally blocks are not left.
            if (s.Target == 0 && target >= s.Begin && target < s.End) break;
            if (s.Target != 0 && s.Target == target) break;
        }
        if (s.Target != 0) continue;
        d->ScopeIndex = i + 1;
        call_pe(reinterpret_cast<void(NTAPI *)(BOOLEAN, uint64_t)>(d->ImageBase + s.Handler), BOOLEAN{1}, frame);
    }
    return ExceptionContinueSearch;
}

void raise_exception(EXCEPTION_RECORD *record) {
    Thread *t = current();
    CONTEXT context;
    if (!context_of_caller(t, &context))
        host_bug("exception 0x%08X raised outside an import", uint32_t(record->ExceptionCode));
    if (record->ExceptionAddress == nullptr) record->ExceptionAddress = reinterpret_cast<void *>(context.Rip);
    dispatch_exception(record, &context);
}

void raise_status(NTSTATUS status) {
    EXCEPTION_RECORD record{};
    record.ExceptionCode = status;
    record.ExceptionFlags = EXCEPTION_NONCONTINUABLE;
    raise_exception(&record);
    __builtin_unreachable();
}

void raise_access_violation(uint64_t address, bool write) {
    EXCEPTION_RECORD record{};
    record.ExceptionCode = STATUS_ACCESS_VIOLATION;
    record.NumberParameters = 2;
    record.ExceptionInformation[0] = write;
    record.ExceptionInformation[1] = address;
    raise_exception(&record);
    __builtin_unreachable();
}

bool inside_try(Thread *t, const CONTEXT *context) {
    CONTEXT walk = *context;
    Frame frame;
    while (step(t, &walk, UNW_EHANDLER, &frame)) {
        if (frame.handler == nullptr) continue;
        // A driver has no other language handler than the one with scope tables.
        auto *table = static_cast<ScopeTable *>(frame.handler_data);
        uint32_t pc = static_cast<uint32_t>(frame.pc - frame.image->base);
        for (uint32_t i = 0; i < table->Count && i < 4096; i++) {
            auto &s = table->Scope[i];
            if (pc >= s.Begin && pc < s.End && s.Target != 0) return true;
        }
    }
    return false;
}

// ---- imports of both worlds

static void NTAPI RtlUnwindEx(uint64_t frame, uint64_t ip, EXCEPTION_RECORD *record, uint64_t value, CONTEXT *,
                              void *history) {
    CONTEXT start;
    context_of_caller(current(), &start);
    unwind_to(frame, ip, record, value, &start, history);
}

static void NTAPI RtlUnwind(uint64_t frame, uint64_t ip, EXCEPTION_RECORD *record, uint64_t value) {
    CONTEXT start;
    context_of_caller(current(), &start);
    unwind_to(frame, ip, record, value, &start, nullptr);
}

static void NTAPI RtlCaptureContext(CONTEXT *out) {
    CONTEXT c;
    context_of_caller(current(), &c);
    c.SegCs = 0x33;
    c.SegSs = 0x2b;
    *out = c;
}

static RUNTIME_FUNCTION *NTAPI RtlLookupFunctionEntry(uint64_t pc, uint64_t *base, void *) {
    Image *i = image_of(pc);
    if (i == nullptr) return nullptr;
    *base = i->base;
    return find_function(*i, pc);
}

static EXCEPTION_ROUTINE *NTAPI RtlVirtualUnwind(uint32_t type, uint64_t base, uint64_t pc, RUNTIME_FUNCTION *f,
                                                 CONTEXT *ctx, void **data, uint64_t *establisher, void *) {
    EXCEPTION_ROUTINE *h = virtual_unwind(type, base, pc, f, ctx, data, establisher);
    // libgcc walks until rip is 0: show it the next PE frame, or the end.
    if (!cross_host_frames(current(), ctx)) ctx->Rip = 0;
    return h;
}

static void *NTAPI RtlPcToFileHeader(uint64_t pc, void **base) {
    Image *i = image_of(pc);
    *base = i != nullptr ? reinterpret_cast<void *>(i->base) : nullptr;
    return *base;
}

static void NTAPI RtlRaiseException(EXCEPTION_RECORD *record) {
    raise_exception(record);
}
static void NTAPI RtlRaiseStatus(NTSTATUS status) {
    raise_status(status);
}

static void NTAPI RaiseException(DWORD code, DWORD flags, DWORD count, const uint64_t *parameters) {
    EXCEPTION_RECORD record{};
    record.ExceptionCode = static_cast<NTSTATUS>(code);
    record.ExceptionFlags = flags & EXCEPTION_NONCONTINUABLE;
    record.NumberParameters = parameters == nullptr ? 0 : std::min<DWORD>(count, 15);
    for (unsigned i = 0; i < record.NumberParameters; i++) record.ExceptionInformation[i] = parameters[i];
    raise_exception(&record);
}

static void NTAPI RtlRestoreContext(CONTEXT *context, EXCEPTION_RECORD *) {
    restore_context(context);
}

#define UNWIND_FUNCTIONS                                                                                     \
    FN(RtlUnwindEx), FN(RtlUnwind), FN(RtlCaptureContext), FN(RtlLookupFunctionEntry), FN(RtlVirtualUnwind), \
        FN(RtlPcToFileHeader), LEAF_AS("__C_specific_handler", c_specific_handler)

static const Import kernel_imports[] = {UNWIND_FUNCTIONS, FN_AS("ExRaiseStatus", RtlRaiseStatus),
                                        FN(RtlRaiseException)};
static const Import kernel32_imports[] = {UNWIND_FUNCTIONS, FN(RaiseException), FN(RtlRestoreContext)};
static const Import ntdll_imports[] = {UNWIND_FUNCTIONS, FN(RtlRaiseException), FN(RtlRaiseStatus),
                                       FN(RtlRestoreContext)};
static const Import msvcrt_imports[] = {LEAF_AS("__C_specific_handler", c_specific_handler)};
static const ImportTable register_kernel("ntoskrnl.exe", kernel_imports);
static const ImportTable register_kernel32("kernel32.dll", kernel32_imports);
static const ImportTable register_ntdll("ntdll.dll", ntdll_imports);
static const ImportTable register_msvcrt("msvcrt.dll", msvcrt_imports);

}  // namespace nth
