// SPDX-License-Identifier: GPL-2.0-or-later
// The structured exceptions of probe.exe: clang's part, as g++ has no __try.
#include <windows.h>

#include <excpt.h>

namespace {
__attribute__((noinline)) int peek(const volatile int *p) { return *p; }
int g_order;
void note(int digit) { g_order = g_order * 10 + digit; }
int filter(int digit, int answer) {
    note(digit);
    return answer;
}
__attribute__((noinline)) void raise_it() {
    __try {
        RaiseException(0xe0000001, 0, 0, nullptr);
        note(8);  // a filter said to go on
        RaiseException(0xe0000002, EXCEPTION_NONCONTINUABLE, 0, nullptr);
    } __finally {
        note(AbnormalTermination() ? 3 : 9);
    }
}
LONG continue_first(EXCEPTION_POINTERS *p) {
    return p->ExceptionRecord->ExceptionCode == 0xe0000001 ? EXCEPTION_CONTINUE_EXECUTION : EXCEPTION_EXECUTE_HANDLER;
}
}  // namespace

extern "C" unsigned long seh_read_code(const int *p, int *value) {
    unsigned long code = 0;
    __try {
        *value = peek(p);
    } __except (EXCEPTION_EXECUTE_HANDLER) {
        code = GetExceptionCode();
    }
    return code;
}

extern "C" int seh_order(void) {
    g_order = 0;
    __try {
        raise_it();
    } __except (continue_first((EXCEPTION_POINTERS *)_exception_info())) {
        note(5);
    }
    __try {
        __try {
            peek(nullptr);
        } __except (filter(1, EXCEPTION_CONTINUE_SEARCH)) {
            note(9);
        }
    } __except (filter(2, EXCEPTION_EXECUTE_HANDLER)) {
        note(4);
    }
    return g_order;
}
