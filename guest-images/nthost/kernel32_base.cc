// SPDX-License-Identifier: GPL-2.0-or-later
//
// kernel32.dll: errors, modules, processes, time, strings and the console.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "crt.h"
#include "heap.h"
#include "imports.h"
#include "pe_image.h"
#include "process.h"
#include "user.h"

namespace nth {

using namespace nt;

namespace {

DWORD NTAPI GetLastError() {
    return current()->last_error();
}
void NTAPI SetLastError(DWORD e) {
    current()->set_last_error(e);
}

DWORD NTAPI FormatMessageA(DWORD flags, const void *, DWORD id, DWORD, char *out, DWORD size, void *) {
    char text[64];
    int n = snprintf(text, sizeof text, "error %u", id);
    if (flags & 0x100) {  // allocate
        auto *p = static_cast<char *>(user_malloc(n + 1));
        if (p == nullptr) return 0;
        memcpy(p, text, n + 1);
        *reinterpret_cast<char **>(out) = p;
        return n;
    }
    if (size <= static_cast<DWORD>(n)) return fail(ERROR_INSUFFICIENT_BUFFER), 0;
    memcpy(out, text, n + 1);
    return n;
}
DWORD NTAPI FormatMessageW(DWORD flags, const void *source, DWORD id, DWORD language, WCHAR *out, DWORD size, void *arguments) {
    char text[64];
    if (flags & 0x100) return fail(ERROR_CALL_NOT_IMPLEMENTED), 0;
    DWORD n = FormatMessageA(flags, source, id, language, text, sizeof text, arguments);
    if (n >= size) return fail(ERROR_INSUFFICIENT_BUFFER), 0;
    std::u16string w = widen(text);
    memcpy(out, w.c_str(), w.size() * 2 + 2);
    return n;
}

HANDLE NTAPI LocalFree(void *p) {
    if (p != nullptr) user_free(p);
    return nullptr;
}
void *NTAPI LocalAlloc(DWORD flags, uint64_t size) {
    return heap_allocate(current()->process->heap, size, (flags & 0x40) != 0);
}

// ---- modules. Modules that nthost stands for have small handles of their own.
constexpr const char *kBuiltin[] = {"kernel32.dll", "ntdll.dll",    "msvcrt.dll", "ws2_32.dll",
                                     "advapi32.dll", "setupapi.dll", "newdev.dll"};

uint64_t builtin_handle(const std::string &name) {
    std::string n = lower(name);
    size_t slash = n.find_last_of("/\\");
    if (slash != std::string::npos) n = n.substr(slash + 1);
    if (n.find('.') == std::string::npos) n += ".dll";
    for (unsigned i = 0; i < std::size(kBuiltin); i++)
        if (n == kBuiltin[i] && is_builtin_module(n)) return 0x10 + i * 0x10;
    return 0;
}
const char *builtin_name(uint64_t handle) {
    uint64_t i = handle / 0x10 - 1;
    return handle % 0x10 == 0 && i < std::size(kBuiltin) ? kBuiltin[i] : nullptr;
}

uint64_t module_handle(const std::string &name) {
    if (uint64_t h = builtin_handle(name)) return h;
    Image *i = find_module(current()->process, name);
    if (i == nullptr) fail(ERROR_MOD_NOT_FOUND);
    return i != nullptr ? i->base : 0;
}
uint64_t program_base() {
    return reinterpret_cast<uint64_t *>(current()->process->peb)[2];
}
uint64_t NTAPI GetModuleHandleA(const char *name) {
    return name == nullptr ? program_base() : module_handle(name);
}
uint64_t NTAPI GetModuleHandleW(const WCHAR *name) {
    return name == nullptr ? program_base() : module_handle(narrow_z(name));
}

uint64_t load_library(const std::string &name) {
    if (uint64_t h = builtin_handle(name)) return h;
    ProgramMissing missing;
    Image *i = load_module(current()->process, name, false, &missing);
    if (!missing.imports.empty()) report_missing_imports(name, missing.imports);  // does not return
    if (i == nullptr) {
        fail(missing.error.rfind("DllMain", 0) == 0 ? DWORD{1114} : DWORD{ERROR_MOD_NOT_FOUND});
        return 0;
    }
    return i->base;
}
uint64_t NTAPI LoadLibraryA(const char *name) {
    return load_library(name);
}
uint64_t NTAPI LoadLibraryW(const WCHAR *name) {
    return load_library(narrow_z(name));
}
uint64_t NTAPI LoadLibraryExA(const char *name, HANDLE, DWORD) {
    return load_library(name);
}
uint64_t NTAPI LoadLibraryExW(const WCHAR *name, HANDLE, DWORD) {
    return load_library(narrow_z(name));
}

Image *image_by_handle(uint64_t module) {
    Image *i = image_of(module);
    return i != nullptr && i->base == module && i->owner == current()->process ? i : nullptr;
}
BOOL NTAPI FreeLibrary(uint64_t module) {
    if (builtin_name(module) != nullptr) return 1;
    Image *i = image_by_handle(module);
    if (i == nullptr) return fail(ERROR_MOD_NOT_FOUND);
    return unload_module(current()->process, i);
}
const void *NTAPI GetProcAddress(uint64_t module, const char *name) {
    const void *p = nullptr;
    if (reinterpret_cast<uint64_t>(name) < 0x10000) {
        fail(ERROR_PROC_NOT_FOUND);
        return nullptr;
    }
    if (const char *builtin = builtin_name(module)) p = find_import(builtin, name);
    else if (Image *i = image_by_handle(module)) p = reinterpret_cast<const void *>(find_export(*i, name));
    if (p == nullptr) fail(ERROR_PROC_NOT_FOUND);
    return p;
}
DWORD NTAPI GetModuleFileNameA(uint64_t module, char *out, DWORD size) {
    Image *i = image_by_handle(module == 0 ? program_base() : module);
    if (i == nullptr || size == 0) return fail(ERROR_MOD_NOT_FOUND), 0;
    DWORD n = std::min<DWORD>(size - 1, static_cast<DWORD>(i->path.size()));
    memcpy(out, i->path.data(), n);
    out[n] = 0;
    if (n < i->path.size()) fail(ERROR_INSUFFICIENT_BUFFER);
    return n;
}
DWORD NTAPI GetModuleFileNameW(uint64_t module, WCHAR *out, DWORD size) {
    Image *i = image_by_handle(module == 0 ? program_base() : module);
    if (i == nullptr || size == 0) return fail(ERROR_MOD_NOT_FOUND), 0;
    std::u16string w = widen(i->path);
    DWORD n = std::min<DWORD>(size - 1, static_cast<DWORD>(w.size()));
    memcpy(out, w.data(), n * 2);
    out[n] = 0;
    return n;
}
BOOL NTAPI GetModuleHandleExW(DWORD flags, const WCHAR *name, uint64_t *out) {
    if (flags & 4) {  // from an address
        Image *i = image_of(reinterpret_cast<uint64_t>(name));
        *out = i != nullptr ? i->base : 0;
        if (i != nullptr && (flags & 2) == 0) i->references++;
    } else {
        *out = GetModuleHandleW(name);
    }
    return *out != 0;
}
BOOL NTAPI DisableThreadLibraryCalls(uint64_t) {
    return 1;
}

// ---- process
struct StartupInfoA {
    DWORD cb;
    void *p[3];
    DWORD d[8];
    uint16_t show, reserved;
    void *q, *h[3];
};
static_assert(sizeof(StartupInfoA) == 104);
void NTAPI GetStartupInfoA(StartupInfoA *s) {
    *s = StartupInfoA{};
    s->cb = sizeof *s;
}
const char *NTAPI GetCommandLineA() {
    return current()->process->command_line.c_str();
}
const WCHAR *NTAPI GetCommandLineW() {
    return current()->process->command_line_wide.c_str();
}
void NTAPI ExitProcess(DWORD code) {
    exit_process(code);
}
BOOL NTAPI IsDebuggerPresent() {
    return 0;
}
void NTAPI DebugBreak() {
    note("process %u: DebugBreak()", current()->process->id);
}
void NTAPI OutputDebugStringA(const char *text) {
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) n--;
    note("debug[%u]: %.*s", current()->process->id, static_cast<int>(n), text);
}
void NTAPI OutputDebugStringW(const WCHAR *text) {
    OutputDebugStringA(narrow_z(text).c_str());
}
void *NTAPI SetUnhandledExceptionFilter(int32_t(NTAPI *f)(EXCEPTION_POINTERS *)) {
    auto *old = reinterpret_cast<void *>(current()->process->unhandled_filter);
    current()->process->unhandled_filter = f;
    return old;
}
int32_t NTAPI UnhandledExceptionFilter(EXCEPTION_POINTERS *) {
    return 1;
}
void *NTAPI AddVectoredExceptionHandler(DWORD first, void *f) {
    Process *p = current()->process;
    Locked l(p->lock);
    p->vectored.insert(first != 0 ? p->vectored.begin() : p->vectored.end(), f);
    return f;
}
DWORD NTAPI RemoveVectoredExceptionHandler(void *f) {
    Process *p = current()->process;
    Locked l(p->lock);
    return std::erase(p->vectored, f) != 0;
}
DWORD NTAPI SetErrorMode(DWORD) {
    return 0;
}
DWORD NTAPI GetVersion() {
    return 0x0ece0205;
}  // 5.2, build 3790
struct OsVersion {
    DWORD size, major, minor, build, platform;
};
BOOL NTAPI GetVersionExA(OsVersion *v) {
    v->major = 5;
    v->minor = 2;
    v->build = 3790;
    v->platform = 2;
    return 1;
}
struct SystemInfo {
    uint16_t architecture, reserved;
    DWORD page_size;
    uint64_t minimum, maximum, mask;
    DWORD processors, type, granularity;
    uint16_t level, revision;
};
void NTAPI GetSystemInfo(SystemInfo *s) {
    *s = SystemInfo{};
    s->architecture = 9;
    s->page_size = 4096;
    s->minimum = USER_FIRST;
    s->maximum = USER_LIMIT - 1;
    s->processors = static_cast<DWORD>(std::min<long>(sysconf(_SC_NPROCESSORS_ONLN), 64));
    s->mask = s->processors == 64 ? ~uint64_t{0} : (uint64_t{1} << s->processors) - 1;
    s->type = 8664;
    s->granularity = 65536;
    s->level = 6;
}
BOOL NTAPI GetProcessAffinityMask(HANDLE, uint64_t *process, uint64_t *system) {
    SystemInfo s;
    GetSystemInfo(&s);
    *process = *system = s.mask;
    return 1;
}
BOOL NTAPI SetProcessAffinityMask(HANDLE, uint64_t) {
    return 1;
}

// ---- time
DWORD NTAPI GetTickCount() {
    return static_cast<DWORD>(monotonic_ns() / 1000000);
}
uint64_t NTAPI GetTickCount64() {
    return monotonic_ns() / 1000000;
}
BOOL NTAPI QueryPerformanceCounter(int64_t *v) {
    *v = static_cast<int64_t>(monotonic_ns());
    return 1;
}
BOOL NTAPI QueryPerformanceFrequency(int64_t *v) {
    *v = 1000000000;
    return 1;
}
void NTAPI GetSystemTimeAsFileTime(uint64_t *t) {
    uint64_t now = system_time();
    memcpy(t, &now, 8);
}
struct SystemTime {
    uint16_t year, month, weekday, day, hour, minute, second, milliseconds;
};
void fill_time(SystemTime *s, const struct tm &t, unsigned ms) {
    *s = {static_cast<uint16_t>(t.tm_year + 1900), static_cast<uint16_t>(t.tm_mon + 1),
          static_cast<uint16_t>(t.tm_wday),        static_cast<uint16_t>(t.tm_mday),
          static_cast<uint16_t>(t.tm_hour),        static_cast<uint16_t>(t.tm_min),
          static_cast<uint16_t>(t.tm_sec),         static_cast<uint16_t>(ms)};
}
BOOL NTAPI FileTimeToSystemTime(const uint64_t *ft, SystemTime *s) {
    uint64_t v;
    memcpy(&v, ft, 8);
    time_t seconds = static_cast<time_t>(v / 10000000 - 11644473600ull);
    struct tm t;
    gmtime_r(&seconds, &t);
    fill_time(s, t, static_cast<unsigned>(v / 10000 % 1000));
    return 1;
}
void NTAPI GetSystemTime(SystemTime *s) {
    uint64_t now = system_time();
    FileTimeToSystemTime(&now, s);
}
BOOL NTAPI SetSystemTime(const SystemTime *) {
    return fail(1314);
}  // a privilege is not held
void NTAPI GetLocalTime(SystemTime *s) {
    GetSystemTime(s);
}
DWORD NTAPI GetTimeZoneInformation(void *out) {
    memset(out, 0, 172);
    return 0;
}
// All of it as user time: nthost's kernel is a part of the process.
BOOL used_time(clockid_t clock, uint64_t *create, uint64_t *exit, uint64_t *kernel, uint64_t *user) {
    timespec ts;
    clock_gettime(clock, &ts);
    uint64_t zero = 0, v = uint64_t(ts.tv_sec) * 10000000 + ts.tv_nsec / 100;
    for (uint64_t *none : {create, exit, kernel}) memcpy(none, &zero, 8);
    memcpy(user, &v, 8);
    return 1;
}
BOOL NTAPI GetProcessTimes(HANDLE, uint64_t *create, uint64_t *exit, uint64_t *kernel, uint64_t *user) {
    return used_time(CLOCK_PROCESS_CPUTIME_ID, create, exit, kernel, user);
}
BOOL NTAPI GetThreadTimes(HANDLE, uint64_t *create, uint64_t *exit, uint64_t *kernel, uint64_t *user) {
    return used_time(CLOCK_THREAD_CPUTIME_ID, create, exit, kernel, user);
}
BOOL NTAPI GetSystemTimeAdjustment(DWORD *adjustment, DWORD *increment, BOOL *disabled) {
    *adjustment = *increment = 156250;
    *disabled = 1;
    return 1;
}

// ---- environment
DWORD NTAPI GetEnvironmentVariableA(const char *name, char *out, DWORD size) {
    const char *v = getenv(name);
    if (v == nullptr) return fail(ERROR_ENVVAR_NOT_FOUND), 0;
    auto n = static_cast<DWORD>(strlen(v));
    if (n >= size) return n + 1;
    memcpy(out, v, n + 1);
    return n;
}
BOOL NTAPI SetEnvironmentVariableA(const char *name, const char *value) {
    return (value != nullptr ? setenv(name, value, 1) : unsetenv(name)) == 0;
}
DWORD NTAPI GetEnvironmentVariableW(const WCHAR *name, WCHAR *out, DWORD size) {
    const char *v = getenv(narrow_z(name).c_str());
    if (v == nullptr) return fail(ERROR_ENVVAR_NOT_FOUND), 0;
    std::u16string w = widen(v);
    auto n = static_cast<DWORD>(w.size());
    if (n >= size) return n + 1;
    memcpy(out, w.c_str(), n * 2 + 2);
    return n;
}

// ---- strings. All code pages are UTF-8 here.
int NTAPI MultiByteToWideChar(DWORD, DWORD, const char *in, int length, WCHAR *out, int size) {
    bool terminated = length < 0;
    std::u16string w = widen(terminated ? std::string(in) : std::string(in, length));
    int n = static_cast<int>(w.size()) + (terminated ? 1 : 0);
    if (size == 0) return n;
    if (n > size) return fail(ERROR_INSUFFICIENT_BUFFER);
    memcpy(out, w.c_str(), n * 2);
    return n;
}
int NTAPI WideCharToMultiByte(DWORD, DWORD, const WCHAR *in, int length, char *out, int size, const char *,
                              BOOL *used_default) {
    bool terminated = length < 0;
    std::string s = terminated ? narrow_z(in) : narrow(in, length);
    int n = static_cast<int>(s.size()) + (terminated ? 1 : 0);
    if (used_default != nullptr) *used_default = 0;
    if (size == 0) return n;
    if (n > size) return fail(ERROR_INSUFFICIENT_BUFFER);
    memcpy(out, s.c_str(), n);
    return n;
}
BOOL NTAPI IsDBCSLeadByteEx(DWORD, UCHAR) {
    return 0;
}
DWORD NTAPI GetACP() {
    return 65001;
}
int NTAPI lstrlenA(const char *s) {
    return s != nullptr ? static_cast<int>(strlen(s)) : 0;
}
int NTAPI lstrlenW(const WCHAR *s) {
    return s != nullptr ? static_cast<int>(std::char_traits<char16_t>::length(s)) : 0;
}
int NTAPI lstrcmpiA(const char *a, const char *b) {
    return strcasecmp(a, b);
}

// ---- console
BOOL NTAPI SetConsoleCtrlHandler(void *, BOOL) {
    return 1;
}
BOOL NTAPI GetConsoleMode(HANDLE, DWORD *) {
    return fail(ERROR_INVALID_HANDLE);
}
BOOL NTAPI SetConsoleMode(HANDLE, DWORD) {
    return fail(ERROR_INVALID_HANDLE);
}
BOOL NTAPI GetConsoleScreenBufferInfo(HANDLE, void *) {
    return fail(ERROR_INVALID_HANDLE);
}
BOOL NTAPI SetConsoleTextAttribute(HANDLE, uint16_t) {
    return fail(ERROR_INVALID_HANDLE);
}
BOOL NTAPI SetConsoleOutputCP(DWORD) {
    return 1;
}
DWORD NTAPI GetConsoleOutputCP() {
    return 65001;
}

const Import imports[] = {
    FN(GetLastError),
    FN(SetLastError),
    FN(FormatMessageA),
    FN(FormatMessageW),
    FN(LocalFree),
    FN(LocalAlloc),
    FN(GetModuleHandleA),
    FN(GetModuleHandleW),
    FN(LoadLibraryA),
    FN(LoadLibraryW),
    FN(LoadLibraryExA),
    FN(LoadLibraryExW),
    FN(FreeLibrary),
    FN(GetProcAddress),
    FN(GetModuleFileNameA),
    FN(GetModuleFileNameW),
    FN(GetModuleHandleExW),
    FN(DisableThreadLibraryCalls),
    FN(GetStartupInfoA),
    FN_AS("GetStartupInfoW", GetStartupInfoA),
    FN(GetCommandLineA),
    FN(GetCommandLineW),
    FN(ExitProcess),
    FN(IsDebuggerPresent),
    FN(DebugBreak),
    FN(OutputDebugStringA),
    FN(OutputDebugStringW),
    FN(SetUnhandledExceptionFilter),
    FN(UnhandledExceptionFilter),
    FN(AddVectoredExceptionHandler),
    FN(RemoveVectoredExceptionHandler),
    FN(SetErrorMode),
    FN(GetVersion),
    FN(GetVersionExA),
    FN_AS("GetVersionExW", GetVersionExA),
    FN(GetSystemInfo),
    FN_AS("GetNativeSystemInfo", GetSystemInfo),
    FN(GetProcessAffinityMask),
    FN(SetProcessAffinityMask),
    FN(GetTickCount),
    FN(GetTickCount64),
    FN(QueryPerformanceCounter),
    FN(QueryPerformanceFrequency),
    FN(GetSystemTimeAsFileTime),
    FN(FileTimeToSystemTime),
    FN(GetSystemTime),
    FN(GetLocalTime),
    FN(SetSystemTime),
    FN(GetTimeZoneInformation),
    FN(GetProcessTimes),
    FN(GetThreadTimes),
    FN(GetSystemTimeAdjustment),
    FN(GetEnvironmentVariableA),
    FN(SetEnvironmentVariableA),
    FN(GetEnvironmentVariableW),
    FN(MultiByteToWideChar),
    FN(WideCharToMultiByte),
    FN(IsDBCSLeadByteEx),
    FN(GetACP),
    FN(lstrlenA),
    FN(lstrlenW),
    FN(lstrcmpiA),
    FN(SetConsoleCtrlHandler),
    FN(GetConsoleMode),
    FN(SetConsoleMode),
    FN(GetConsoleScreenBufferInfo),
    FN(SetConsoleTextAttribute),
    FN(SetConsoleOutputCP),
    FN(GetConsoleOutputCP),
};
const ImportTable registered("kernel32.dll", imports);

}  // namespace

}  // namespace nth
