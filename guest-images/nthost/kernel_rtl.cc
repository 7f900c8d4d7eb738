// SPDX-License-Identifier: GPL-2.0-or-later
//
// ntoskrnl.exe and ntdll.dll: Rtl strings and memory, debug output, C library functions of the kernel.
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "cpu.h"
#include "crt.h"
#include "exception.h"
#include "imports.h"
#include "process.h"
#include "user.h"
#include "user_access.h"
#include "verifier.h"

extern "C" {
void nth_ms_memmove();
void nth_ms_memset();
void nth_ms_memcmp();
void nth_ms_memzero();
}

namespace nth {

using namespace nt;

namespace {

constexpr uint32_t STRING_TAG = 0x72745352;

uint64_t length16(const WCHAR *s) {
    uint64_t n = 0;
    while (s[n] != 0) n++;
    return n;
}

void NTAPI RtlInitUnicodeString(UNICODE_STRING *u, WCHAR *s) {
    uint64_t n = s != nullptr ? std::min<uint64_t>(length16(s), 32766) : 0;
    *u = {static_cast<USHORT>(n * 2), static_cast<USHORT>(s != nullptr ? n * 2 + 2 : 0), s};
}
void NTAPI RtlInitAnsiString(ANSI_STRING *u, char *s) {
    uint64_t n = s != nullptr ? std::min<uint64_t>(strlen(s), 65534) : 0;
    *u = {static_cast<USHORT>(n), static_cast<USHORT>(s != nullptr ? n + 1 : 0), s};
}
void NTAPI RtlCopyUnicodeString(UNICODE_STRING *to, const UNICODE_STRING *from) {
    if (from == nullptr) {
        to->Length = 0;
        return;
    }
    to->Length = std::min(from->Length, to->MaximumLength);
    memcpy(to->Buffer, from->Buffer, to->Length);
    if (to->Length + 2 <= to->MaximumLength) to->Buffer[to->Length / 2] = 0;
}
NTSTATUS NTAPI RtlAppendUnicodeToString(UNICODE_STRING *to, const WCHAR *s) {
    uint64_t n = s != nullptr ? length16(s) * 2 : 0;
    if (to->Length + n > to->MaximumLength) return STATUS_BUFFER_TOO_SMALL;
    memcpy(to->Buffer + to->Length / 2, s, n);
    to->Length = static_cast<USHORT>(to->Length + n);
    if (to->Length + 2 <= to->MaximumLength) to->Buffer[to->Length / 2] = 0;
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI RtlAppendUnicodeStringToString(UNICODE_STRING *to, const UNICODE_STRING *s) {
    if (to->Length + s->Length > to->MaximumLength) return STATUS_BUFFER_TOO_SMALL;
    memcpy(to->Buffer + to->Length / 2, s->Buffer, s->Length);
    to->Length = static_cast<USHORT>(to->Length + s->Length);
    return STATUS_SUCCESS;
}
int fold(WCHAR c) {
    return c < 128 ? toupper(c) : c;
}
LONG NTAPI RtlCompareUnicodeString(const UNICODE_STRING *a, const UNICODE_STRING *b, BOOLEAN ignore_case) {
    unsigned n = std::min(a->Length, b->Length) / 2;
    for (unsigned i = 0; i < n; i++) {
        int x = a->Buffer[i], y = b->Buffer[i];
        if (ignore_case) x = fold(a->Buffer[i]), y = fold(b->Buffer[i]);
        if (x != y) return x - y;
    }
    return int(a->Length) - int(b->Length);
}
BOOLEAN NTAPI RtlEqualUnicodeString(const UNICODE_STRING *a, const UNICODE_STRING *b, BOOLEAN ignore_case) {
    return RtlCompareUnicodeString(a, b, ignore_case) == 0;
}
void NTAPI RtlFreeUnicodeString(UNICODE_STRING *u) {
    require_irql(PASSIVE_LEVEL, "RtlFreeUnicodeString");
    if (u->Buffer != nullptr) pool_free(u->Buffer, 0, false);
    *u = {};
}
void NTAPI RtlFreeAnsiString(ANSI_STRING *u) {
    if (u->Buffer != nullptr) pool_free(u->Buffer, 0, false);
    *u = {};
}
NTSTATUS NTAPI RtlAnsiStringToUnicodeString(UNICODE_STRING *to, const ANSI_STRING *from, BOOLEAN allocate) {
    uint64_t n = uint64_t{from->Length} * 2 + 2;
    if (n > 65534) return STATUS_BUFFER_OVERFLOW;
    if (allocate) {
        to->Buffer = static_cast<WCHAR *>(pool_allocate(n, STRING_TAG, true));
        to->MaximumLength = static_cast<USHORT>(n);
        if (to->Buffer == nullptr) return STATUS_NO_MEMORY;
    } else if (to->MaximumLength < n) {
        return STATUS_BUFFER_OVERFLOW;
    }
    for (unsigned i = 0; i < from->Length; i++) to->Buffer[i] = static_cast<uint8_t>(from->Buffer[i]);
    to->Buffer[from->Length] = 0;
    to->Length = static_cast<USHORT>(from->Length * 2);
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI RtlUnicodeStringToAnsiString(ANSI_STRING *to, const UNICODE_STRING *from, BOOLEAN allocate) {
    unsigned n = from->Length / 2;
    if (allocate) {
        to->Buffer = static_cast<char *>(pool_allocate(n + 1, STRING_TAG, true));
        to->MaximumLength = static_cast<USHORT>(n + 1);
        if (to->Buffer == nullptr) return STATUS_NO_MEMORY;
    } else if (to->MaximumLength < n + 1) {
        return STATUS_BUFFER_OVERFLOW;
    }
    for (unsigned i = 0; i < n; i++) to->Buffer[i] = static_cast<char>(from->Buffer[i] < 256 ? from->Buffer[i] : '?');
    to->Buffer[n] = 0;
    to->Length = static_cast<USHORT>(n);
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI RtlIntegerToUnicodeString(ULONG v, ULONG base, UNICODE_STRING *to) {
    char text[40];
    snprintf(text, sizeof text, base == 16 ? "%X" : base == 8 ? "%o" : "%u", v);
    std::u16string w = widen(text);
    if (to->MaximumLength < w.size() * 2) return STATUS_BUFFER_OVERFLOW;
    memcpy(to->Buffer, w.data(), w.size() * 2);
    to->Length = static_cast<USHORT>(w.size() * 2);
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI RtlGUIDFromString(const UNICODE_STRING *s, GUID *g) {
    std::string t = narrow(s->Buffer, s->Length / 2);
    unsigned v[8];
    int n = sscanf(t.c_str(), "{%8x-%4hx-%4hx-%2x%2x-%2x%2x%2x%2x%2x%2x}", &g->Data1, &g->Data2, &g->Data3, &v[0],
                   &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]);
    if (n != 11) return STATUS_INVALID_PARAMETER;
    for (int i = 0; i < 8; i++) g->Data4[i] = static_cast<uint8_t>(v[i]);
    return STATUS_SUCCESS;
}
uint64_t NTAPI RtlCompareMemory(const uint8_t *a, const uint8_t *b, uint64_t n) {
    uint64_t i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}
ULONG NTAPI RtlNtStatusToDosError(NTSTATUS s) {
    return status_to_win32(s);
}
ULONG NTAPI RtlRandom(ULONG *seed) {
    return *seed = (*seed * 0x7fffffed + 0x7fffffc3) & 0x7fffffff;
}
void NTAPI RtlAssert(const char *what, const char *file, ULONG line, const char *text) {
    bugcheck(0xc4, "ASSERTION", "%s, %s:%u %s", what, file, line, text != nullptr ? text : "");
}
BOOLEAN NTAPI RtlTimeToSecondsSince1970(const int64_t *t, ULONG *s) {
    *s = static_cast<ULONG>(*t / 10000000 - 11644473600ll);
    return 1;
}

// ---- debug output: one line each
void print_debug(std::string s) {
    static FutexLock lock;
    static std::string line;  // guarded by lock
    Locked l(lock);
    line += s;
    for (size_t n; (n = line.find('\n')) != std::string::npos; line.erase(0, n + 1))
        note("driver: %s", line.substr(0, n).c_str());
    if (line.size() > 500) {
        note("driver: %s", line.c_str());
        line.clear();
    }
}
ULONG NTAPI DbgPrint(const char *format, ...) {
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    print_debug(format_ms(format, args));
    __builtin_ms_va_end(args);
    return 0;
}
ULONG NTAPI DbgPrintEx(ULONG, ULONG level, const char *format, ...) {
    if (level > 2 && level < 32) return 0;
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    print_debug(format_ms(format, args));
    __builtin_ms_va_end(args);
    return 0;
}
ULONG NTAPI vDbgPrintEx(ULONG, ULONG, const char *format, __builtin_ms_va_list args) {
    print_debug(format_ms(format, args));
    return 0;
}
void NTAPI DbgBreakPoint() {
    note("driver: DbgBreakPoint()");
}
char KdDebuggerEnabled_ = 0, KdDebuggerNotPresent_ = 1;

// ---- C library in the kernel
int NTAPI k_vsnprintf(char *out, uint64_t size, const char *format, __builtin_ms_va_list args) {
    std::string s = format_ms(format, args);
    if (s.size() < size) {
        memcpy(out, s.c_str(), s.size() + 1);
        return static_cast<int>(s.size());
    }
    memcpy(out, s.c_str(), size);
    return -1;
}
int NTAPI k_snprintf(char *out, uint64_t size, const char *format, ...) {
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    int n = k_vsnprintf(out, size, format, args);
    __builtin_ms_va_end(args);
    return n;
}
int NTAPI k_sprintf(char *out, const char *format, ...) {
    __builtin_ms_va_list args;
    __builtin_ms_va_start(args, format);
    int n = k_vsnprintf(out, 1 << 20, format, args);
    __builtin_ms_va_end(args);
    return n;
}
uint64_t NTAPI k_strlen(const char *s) {
    return strlen(s);
}
int NTAPI k_strcmp(const char *a, const char *b) {
    return strcmp(a, b);
}
int NTAPI k_strncmp(const char *a, const char *b, uint64_t n) {
    return strncmp(a, b, n);
}
int NTAPI k_stricmp(const char *a, const char *b) {
    return strcasecmp(a, b);
}
char *NTAPI k_strcpy(char *d, const char *s) {
    return strcpy(d, s);
}
char *NTAPI k_strncpy(char *d, const char *s, uint64_t n) {
    return strncpy(d, s, n);
}
char *NTAPI k_strcat(char *d, const char *s) {
    return strcat(d, s);
}
const char *NTAPI k_strchr(const char *s, int c) {
    return strchr(s, c);
}
const char *NTAPI k_strstr(const char *s, const char *t) {
    return strstr(s, t);
}
uint64_t NTAPI k_wcslen(const WCHAR *s) {
    return length16(s);
}
int NTAPI k_wcscmp(const WCHAR *a, const WCHAR *b) {
    while (*a != 0 && *a == *b) a++, b++;
    return int(*a) - int(*b);
}
int NTAPI k_wcsicmp(const WCHAR *a, const WCHAR *b) {
    while (*a != 0 && fold(*a) == fold(*b)) a++, b++;
    return fold(*a) - fold(*b);
}
WCHAR *NTAPI k_wcscpy(WCHAR *d, const WCHAR *s) {
    memcpy(d, s, length16(s) * 2 + 2);
    return d;
}

#define MEMORY_FUNCTIONS                                                                                            \
    LEAF_AS("memcpy", nth_ms_memmove), LEAF_AS("memmove", nth_ms_memmove), LEAF_AS("memset", nth_ms_memset),        \
        LEAF_AS("memcmp", nth_ms_memcmp), LEAF_AS("RtlCopyMemory", nth_ms_memmove),                                 \
        LEAF_AS("RtlMoveMemory", nth_ms_memmove), LEAF_AS("RtlCopyMemoryNonTemporal", nth_ms_memmove),              \
        LEAF_AS("RtlZeroMemory", nth_ms_memzero), FN(RtlCompareMemory), FN(RtlInitUnicodeString),                   \
        FN(RtlInitAnsiString), FN_AS("RtlInitString", RtlInitAnsiString), FN(RtlCopyUnicodeString),                 \
        FN(RtlAppendUnicodeToString), FN(RtlAppendUnicodeStringToString), FN(RtlCompareUnicodeString),              \
        FN(RtlEqualUnicodeString), FN(RtlNtStatusToDosError), FN(RtlGUIDFromString), FN(RtlIntegerToUnicodeString), \
        FN(DbgPrint), FN(DbgPrintEx), FN(DbgBreakPoint), FN(RtlAssert), FN(RtlRandom)

const Import imports[] = {
    MEMORY_FUNCTIONS,
    FN(RtlFreeUnicodeString),
    FN(RtlFreeAnsiString),
    FN(RtlAnsiStringToUnicodeString),
    FN(RtlUnicodeStringToAnsiString),
    FN(RtlTimeToSecondsSince1970),
    FN(vDbgPrintEx),
    DATA_AS("KdDebuggerEnabled", KdDebuggerEnabled_),
    DATA_AS("KdDebuggerNotPresent", KdDebuggerNotPresent_),
    FN_AS("_vsnprintf", k_vsnprintf),
    FN_AS("_snprintf", k_snprintf),
    FN_AS("sprintf", k_sprintf),
    FN_AS("strlen", k_strlen),
    FN_AS("strcmp", k_strcmp),
    FN_AS("strncmp", k_strncmp),
    FN_AS("_stricmp", k_stricmp),
    FN_AS("strcpy", k_strcpy),
    FN_AS("strncpy", k_strncpy),
    FN_AS("strcat", k_strcat),
    FN_AS("strchr", k_strchr),
    FN_AS("strstr", k_strstr),
    FN_AS("wcslen", k_wcslen),
    FN_AS("wcscmp", k_wcscmp),
    FN_AS("_wcsicmp", k_wcsicmp),
    FN_AS("wcscpy", k_wcscpy),
};
const Import ntdll_imports[] = {MEMORY_FUNCTIONS};
const ImportTable registered("ntoskrnl.exe", imports);
const ImportTable registered_ntdll("ntdll.dll", ntdll_imports);

}  // namespace

}  // namespace nth
