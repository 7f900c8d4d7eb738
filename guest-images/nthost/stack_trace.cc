// SPDX-License-Identifier: GPL-2.0-or-later
#include "stack_trace.h"

#include <cstdio>

#include "debug_hook.h"
#include "imports.h"
#include "pe_image.h"
#include "process.h"
#include "thread.h"
#include "unwind.h"

extern "C" __attribute__((noinline)) void nthost_image_loaded(const char *path, uint64_t base, uint64_t preferred) {
    asm volatile("" ::"r"(path), "r"(base), "r"(preferred));
}

namespace nth {

using namespace nt;

static thread_local const CONTEXT *t_stack_context;

void set_stack_context(const CONTEXT *context) {
    t_stack_context = context;
}

std::string describe_address(uint64_t address) {
    char text[160];
    if (Image *i = image_of(address)) {
        snprintf(text, sizeof text, "%s+0x%llx", i->name.c_str(), (unsigned long long)(address - i->base));
    } else if (const ImportSlot *s = import_of_thunk(address)) {
        snprintf(text, sizeof text, "%s!%s", s->module, s->name);
    } else {
        snprintf(text, sizeof text, "0x%llx", (unsigned long long)address);
    }
    return text;
}

std::string describe_fault(const EXCEPTION_RECORD *r) {
    if (r->ExceptionCode != STATUS_ACCESS_VIOLATION || r->NumberParameters < 2) return "";
    char text[64];
    snprintf(text, sizeof text, ", %s address 0x%llx",
             r->ExceptionInformation[0] == 1   ? "writing"
             : r->ExceptionInformation[0] == 8 ? "executing"
                                               : "reading",
             (unsigned long long)r->ExceptionInformation[1]);
    return text;
}

void print_stack(Thread *t, const CONTEXT *context) {
    CONTEXT walk = *context;
    Frame frame;
    for (int i = 0; i < 40 && step(t, &walk, 0, &frame); i++)
        fprintf(stderr, "  %2d  %s\n", i, describe_address(frame.pc).c_str());
}

void print_current_stack() {
    Thread *t = current();
    if (t == nullptr) {
        fprintf(stderr, "  on a thread of nthost's own\n");
        return;
    }
    fprintf(stderr, "  thread %u of process %u (%s), IRQL %u\n", t->id, t->process != nullptr ? t->process->id : 0,
            t->process != nullptr ? t->process->name.c_str() : "none", t->irql);
    CONTEXT context;
    if (t_stack_context != nullptr) {
        print_stack(t, t_stack_context);
    } else if (context_of_caller(t, &context)) {
        const CallRecord *r = t->record_top() - 1;
        fprintf(stderr, "   *  %s\n", static_cast<const ImportSlot *>(r->slot)->name);
        print_stack(t, &context);
    }
    fflush(stderr);
}

}  // namespace nth
