// SPDX-License-Identifier: GPL-2.0-or-later
// probe.exe: checks of nthost's user-mode side and, with probe.sys, of its kernel. One check a run: probe.exe NAME
// [ARGS]. Exit status 0 passed, 1 failed. Mistakes of the driver (bad NAME) must not come back at all.
#include <windows.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "probe.h"

extern "C" unsigned long seh_read_code(const int *p, int *value);
extern "C" int seh_order(void);

namespace {

bool g_failed;
void expect(bool ok, const char *what, unsigned line) {
    if (ok) return;
    std::printf("probe.exe: line %u: %s (last error %lu)\n", line, what, GetLastError());
    g_failed = true;
}
#define EXPECT(x) expect((x), #x, __LINE__)

HANDLE open_probe(bool overlapped = false) {
    HANDLE h = CreateFileA("\\\\.\\NthostProbe", GENERIC_READ | GENERIC_WRITE, 0, nullptr, OPEN_EXISTING,
                           overlapped ? FILE_FLAG_OVERLAPPED : 0, nullptr);
    EXPECT(h != INVALID_HANDLE_VALUE);
    return h;
}

bool call(HANDLE h, probe_request &r) {
    DWORD n = 0;
    return DeviceIoControl(h, PROBE_IOCTL, &r, sizeof r, &r, sizeof r, &n, nullptr) && n == sizeof r;
}
probe_request request(unsigned op, unsigned long long a = 0, unsigned long long b = 0, unsigned long long c = 0) {
    probe_request r = {};
    r.op = op;
    r.a = a;
    r.b = b;
    r.c = c;
    return r;
}
unsigned long long address(const void *p) { return reinterpret_cast<unsigned long long>(p); }

HANDLE g_probe;
bool ask(probe_request &r) { return call(g_probe, r); }

// ---- programs
void check_exceptions() {
    int value = 5, out = 0;
    EXPECT(seh_read_code(&value, &out) == 0 && out == 5);
    EXPECT(seh_read_code(reinterpret_cast<int *>(16), &out) == EXCEPTION_ACCESS_VIOLATION);
    EXPECT(seh_read_code(reinterpret_cast<int *>(0x8000000000000000), &out) == EXCEPTION_ACCESS_VIOLATION);
    EXPECT(seh_order() == 835124);
    bool caught = false;
    try {
        throw std::runtime_error("x");
    } catch (const std::exception &e) {
        caught = std::strcmp(e.what(), "x") == 0;
    }
    EXPECT(caught);
    void *page = VirtualAlloc(nullptr, 8192, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    DWORD old;
    EXPECT(VirtualProtect(page, 4096, PAGE_NOACCESS, &old) && old == PAGE_READWRITE);
    EXPECT(seh_read_code(static_cast<int *>(page), &out) == EXCEPTION_ACCESS_VIOLATION);
    EXPECT(seh_read_code(static_cast<int *>(page) + 1024, &out) == 0);
}

DWORD WINAPI add_one(void *p) {
    InterlockedIncrement(static_cast<LONG *>(p));
    return 42;
}
DWORD WINAPI spin_for_ever(void *p) {
    auto *go = static_cast<volatile LONG *>(p);
    for (;;) *go = 1;
}
DWORD WINAPI wait_for_ever(void *) {
    return WaitForSingleObject(CreateEventA(nullptr, TRUE, FALSE, nullptr), INFINITE);
}

void check_threads() {
    LONG n = 0;
    HANDLE t[8];
    for (HANDLE &h : t) h = CreateThread(nullptr, 0, add_one, &n, 0, nullptr);
    EXPECT(WaitForMultipleObjects(8, t, TRUE, 5000) == WAIT_OBJECT_0);
    DWORD code = 0;
    EXPECT(n == 8 && GetExitCodeThread(t[3], &code) && code == 42);
    LONG spinning = 0;
    HANDLE s = CreateThread(nullptr, 0, spin_for_ever, &spinning, 0, nullptr),
           w = CreateThread(nullptr, 0, wait_for_ever, nullptr, 0, nullptr);
    while (!*static_cast<volatile LONG *>(&spinning)) Sleep(1);
    EXPECT(TerminateThread(s, 7) && WaitForSingleObject(s, 5000) == WAIT_OBJECT_0 && GetExitCodeThread(s, &code) &&
           code == 7);
    EXPECT(TerminateThread(w, 8) && WaitForSingleObject(w, 5000) == WAIT_OBJECT_0);
    HANDLE suspended = CreateThread(nullptr, 0, add_one, &n, CREATE_SUSPENDED, nullptr);
    EXPECT(WaitForSingleObject(suspended, 20) == WAIT_TIMEOUT);
    EXPECT(ResumeThread(suspended) == 1 && WaitForSingleObject(suspended, 5000) == WAIT_OBJECT_0 && n == 9);
    DWORD slot = TlsAlloc();
    EXPECT(TlsSetValue(slot, &n) && TlsGetValue(slot) == &n && TlsFree(slot));
}

void check_waits() {
    HANDLE e = CreateEventA(nullptr, FALSE, TRUE, "probe-event"),
           again = CreateEventA(nullptr, FALSE, FALSE, "probe-event");
    EXPECT(GetLastError() == ERROR_ALREADY_EXISTS);
    EXPECT(WaitForSingleObject(again, 0) == WAIT_OBJECT_0 && WaitForSingleObject(e, 0) == WAIT_TIMEOUT);
    DWORD before = GetTickCount();
    EXPECT(WaitForSingleObject(e, 50) == WAIT_TIMEOUT && GetTickCount() - before >= 45);
    HANDLE m = CreateMutexA(nullptr, TRUE, nullptr);
    EXPECT(WaitForSingleObject(m, 0) == WAIT_OBJECT_0 && ReleaseMutex(m) && ReleaseMutex(m) && !ReleaseMutex(m));
    EXPECT(GetLastError() == ERROR_NOT_OWNER);
    HANDLE s = CreateSemaphoreA(nullptr, 0, 1, nullptr);
    EXPECT(ReleaseSemaphore(s, 1, nullptr) && !ReleaseSemaphore(s, 1, nullptr) &&
           GetLastError() == ERROR_TOO_MANY_POSTS);
    EXPECT(WaitForSingleObject(reinterpret_cast<HANDLE>(0x4444), 0) == WAIT_FAILED &&
           GetLastError() == ERROR_INVALID_HANDLE);
    EXPECT(CloseHandle(e) && !CloseHandle(e));
    HANDLE t = CreateWaitableTimerA(nullptr, TRUE, nullptr);
    LARGE_INTEGER due;
    due.QuadPart = -100000;
    EXPECT(SetWaitableTimer(t, &due, 0, nullptr, nullptr, FALSE) && WaitForSingleObject(t, 5000) == WAIT_OBJECT_0);
}

void check_memory() {
    auto *p = static_cast<char *>(VirtualAlloc(nullptr, 0x20000, MEM_RESERVE, PAGE_NOACCESS));
    EXPECT(p && VirtualAlloc(p + 0x1000, 0x2000, MEM_COMMIT, PAGE_READWRITE) == p + 0x1000);
    p[0x1000] = 1;
    MEMORY_BASIC_INFORMATION i;
    EXPECT(VirtualQuery(p + 0x1000, &i, sizeof i) && i.State == MEM_COMMIT && i.RegionSize == 0x2000 &&
           i.AllocationBase == p);
    EXPECT(!VirtualFree(p + 0x1000, 0, MEM_RELEASE));
    EXPECT(VirtualFree(p + 0x1000, 0x1000, MEM_DECOMMIT) && VirtualFree(p, 0, MEM_RELEASE));
    EXPECT(!VirtualFree(p, 0, MEM_RELEASE));
    auto *at = reinterpret_cast<char *>(0x2100000000);
    EXPECT(VirtualAlloc(at, 4096, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE) == at);
    EXPECT(!VirtualAlloc(at, 4096, MEM_RESERVE, PAGE_READWRITE));
    auto *q = static_cast<char *>(HeapAlloc(GetProcessHeap(), HEAP_ZERO_MEMORY, 100));
    EXPECT(q && q[99] == 0 && HeapSize(GetProcessHeap(), 0, q) == 100);
    q = static_cast<char *>(HeapReAlloc(GetProcessHeap(), 0, q, 1000000));
    EXPECT(q && HeapFree(GetProcessHeap(), 0, q));
    for (int n = 1; n < 3000; n += 7) {
        auto *m = static_cast<char *>(std::malloc(n));
        std::memset(m, n, n);
        EXPECT((reinterpret_cast<unsigned long long>(m) & 15) == 0);
        if (n % 3) std::free(m);
    }
}

void check_files() {
    const char *name = "probe-file.tmp";
    std::FILE *f = std::fopen(name, "w");
    EXPECT(f && std::fprintf(f, "%d %s %.1f\n", 7, "seven", 7.5) == 12 && std::fclose(f) == 0);
    f = std::fopen(name, "r");
    char line[64];
    EXPECT(f && std::fgets(line, sizeof line, f) && std::strcmp(line, "7 seven 7.5\n") == 0);
    std::fclose(f);
    HANDLE h = CreateFileA(name, GENERIC_READ, 0, nullptr, OPEN_EXISTING, 0, nullptr);
    DWORD n = 0;
    EXPECT(h != INVALID_HANDLE_VALUE && GetFileSize(h, nullptr) == 12 && ReadFile(h, line, 5, &n, nullptr) && n == 5);
    EXPECT(CloseHandle(h) && DeleteFileA(name));
    EXPECT(CreateFileA(name, GENERIC_READ, 0, nullptr, OPEN_EXISTING, 0, nullptr) == INVALID_HANDLE_VALUE &&
           GetLastError() == ERROR_FILE_NOT_FOUND);
    EXPECT(CreateFileA("\\\\.\\NoSuchDevice", 0, 0, nullptr, OPEN_EXISTING, 0, nullptr) == INVALID_HANDLE_VALUE &&
           GetLastError() == ERROR_FILE_NOT_FOUND);
}

// ---- with probe.sys
void check_ioctl() {
    probe_request r = request(PROBE_ECHO, 0xff00, 0x0ff0);
    EXPECT(ask(r) && r.result[0] == 0xf0f0);
    DWORD n = 99;
    EXPECT(!DeviceIoControl(g_probe, PROBE_IOCTL, &r, 4, &r, sizeof r, &n, nullptr) &&
           GetLastError() == ERROR_INSUFFICIENT_BUFFER);
    EXPECT(!DeviceIoControl(g_probe, 0x12345678, nullptr, 0, nullptr, 0, &n, nullptr) &&
           GetLastError() == ERROR_INVALID_FUNCTION);
    EXPECT(!DeviceIoControl(g_probe, PROBE_IOCTL, reinterpret_cast<void *>(8), sizeof r, &r, sizeof r, &n, nullptr) &&
           GetLastError() == ERROR_NOACCESS);
    char in = 0x5a, out[5000] = {};
    EXPECT(DeviceIoControl(g_probe, PROBE_IOCTL_OUT_DIRECT, &in, 1, out, sizeof out, &n, nullptr) && n == sizeof out &&
           out[4999] == 0x5a);
    char copy[16] = {};
    EXPECT(DeviceIoControl(g_probe, PROBE_IOCTL_NEITHER, const_cast<char *>("neither"), 8, copy, 8, &n, nullptr) &&
           std::strcmp(copy, "neither") == 0);
    EXPECT(!DeviceIoControl(g_probe, PROBE_IOCTL_NEITHER, &r, 8, reinterpret_cast<void *>(0x7000), 8, &n, nullptr));
    r = request(PROBE_STRINGS);
    EXPECT(ask(r) && r.result[0] == 1);
}

// 16 MiB through METHOD_NEITHER: a driver's memcpy between two user buffers must not trap for every instruction.
void check_neither() {
    constexpr DWORD size = 16 << 20;
    auto *from = static_cast<char *>(VirtualAlloc(nullptr, 2 * size, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
    for (DWORD i = 0; i < size; i += 64) from[i] = static_cast<char>(i >> 6);
    DWORD n = 0, before = GetTickCount();
    EXPECT(DeviceIoControl(g_probe, PROBE_IOCTL_NEITHER, from, size, from + size, size, &n, nullptr) && n == size);
    EXPECT(std::memcmp(from, from + size, size) == 0);
    EXPECT(GetTickCount() - before < 2000);
    // The copy that runs into a hole: the caller's exception, and the driver still closed to user memory afterwards.
    DWORD old;
    EXPECT(VirtualProtect(from + size + 8192, 4096, PAGE_NOACCESS, &old));
    EXPECT(!DeviceIoControl(g_probe, PROBE_IOCTL_NEITHER, from, size, from + size, size, &n, nullptr));
    EXPECT(VirtualProtect(from + 8192, 4096, PAGE_NOACCESS, &old) &&
           VirtualProtect(from + size + 8192, 4096, PAGE_READWRITE, &old));
    EXPECT(!DeviceIoControl(g_probe, PROBE_IOCTL_NEITHER, from, size, from + size, size, &n, nullptr) &&
           GetLastError() == ERROR_NOACCESS);
}

void check_driver_exceptions() {
    unsigned long long value = 0x123456789abcdef0;
    probe_request r = request(PROBE_READ, address(&value));
    EXPECT(ask(r) && r.result[0] == value && r.result[1] == 0);
    r = request(PROBE_ACCESSOR, address(&value));
    EXPECT(ask(r) && r.result[0] == value && r.result[1] == 0);
    r = request(PROBE_READ, 0x4000);
    EXPECT(ask(r) && r.result[1] == 0xc0000005);
    r = request(PROBE_ACCESSOR, 0x8000000000000000);
    EXPECT(ask(r) && r.result[1] == 0xc0000005);
    r = request(PROBE_WRITE, address(&value), 77);
    EXPECT(ask(r) && value == 77 && r.result[1] == 0);
    r = request(PROBE_WRITE, address("read-only"), 1);
    EXPECT(ask(r) && r.result[1] == 0xc0000005);
    r = request(PROBE_WRITE, 0x7fffffff0000, 1);  // beyond user memory
    EXPECT(ask(r) && r.result[1] == 0xc0000005);
    r = request(PROBE_SEH_ORDER);
    EXPECT(ask(r) && r.result[0] == 1234567);
    r = request(PROBE_SEH_FILTER);
    EXPECT(ask(r) && r.result[0] == 1234);
    r = request(PROBE_IRQL);
    EXPECT(ask(r) && r.result[0] == 20);
}

void check_time() {
    FILETIME t;
    GetSystemTimeAsFileTime(&t);
    probe_request r = request(PROBE_TIME);
    EXPECT(ask(r));
    unsigned long long now = static_cast<unsigned long long>(t.dwHighDateTime) << 32 | t.dwLowDateTime,
                       tick = GetTickCount();
    EXPECT(r.result[0] - now < 10000000);
    for (int i : {1, 2})
        EXPECT(static_cast<long long>(r.result[i] / 10000 - tick) < 100 &&
               static_cast<long long>(tick - r.result[i] / 10000) < 1000);
    EXPECT(r.result[3] - tick < 1000 || tick - r.result[3] < 1000);
}

void check_pending() {
    HANDLE h = open_probe(true);
    OVERLAPPED o[2] = {};
    probe_request r[2] = {request(PROBE_PEND), request(PROBE_PEND)};
    DWORD n = 0;
    for (int i = 0; i < 2; ++i) {
        o[i].hEvent = CreateEventA(nullptr, TRUE, FALSE, nullptr);
        EXPECT(!DeviceIoControl(h, PROBE_IOCTL, &r[i], sizeof r[i], &r[i], sizeof r[i], nullptr, &o[i]) &&
               GetLastError() == ERROR_IO_PENDING);
    }
    EXPECT(!GetOverlappedResult(h, &o[0], &n, FALSE) && GetLastError() == ERROR_IO_INCOMPLETE);
    probe_request release = request(PROBE_RELEASE);
    EXPECT(ask(release) && release.result[0] == 2);
    EXPECT(WaitForSingleObject(o[1].hEvent, 5000) == WAIT_OBJECT_0);
    EXPECT(GetOverlappedResult(h, &o[0], &n, TRUE) && n == sizeof(probe_request) && r[0].result[0] != 0);
    r[0] = request(PROBE_PEND);
    DeviceIoControl(h, PROBE_IOCTL, &r[0], sizeof r[0], &r[0], sizeof r[0], nullptr, &o[0]);
    EXPECT(CancelIo(h) && !GetOverlappedResult(h, &o[0], &n, TRUE) && GetLastError() == ERROR_OPERATION_ABORTED);
    r[0] = request(PROBE_DELAY, 20);
    DWORD before = GetTickCount();
    DeviceIoControl(h, PROBE_IOCTL, &r[0], sizeof r[0], &r[0], sizeof r[0], nullptr, &o[0]);
    EXPECT(GetOverlappedResult(h, &o[0], &n, TRUE) && GetTickCount() - before >= 15 && r[0].result[0] == 2);
    r[1] = request(PROBE_WORK);
    EXPECT(ask(r[1]) && r[1].result[0] == 77);
    r[1] = request(PROBE_THREAD);
    EXPECT(ask(r[1]) && r[1].result[0] == 1);
    HANDLE e = CreateEventA(nullptr, TRUE, FALSE, nullptr);
    r[1] = request(PROBE_SET_EVENT, address(e));
    EXPECT(ask(r[1]) && WaitForSingleObject(e, 0) == WAIT_OBJECT_0);
    HANDLE s = CreateSemaphoreA(nullptr, 0, 1, nullptr);
    r[1] = request(PROBE_SET_EVENT, address(s));
    EXPECT(!ask(r[1]) && GetLastError() == ERROR_INVALID_HANDLE);
    EXPECT(CloseHandle(h));
}

void check_locking() {
    auto *p = static_cast<char *>(VirtualAlloc(nullptr, 3 * 4096, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
    std::memcpy(p + 4090, "crossing", 8);
    probe_request r = request(PROBE_LOCK, address(p) + 4000, 5000, 1);
    EXPECT(ask(r) && r.result[1] == 0);
    r = request(PROBE_PEEK, 90);
    EXPECT(ask(r) && std::memcmp(r.result, "crossing", 8) == 0);
    r = request(PROBE_POKE, 90, 0x4141414141414141);
    EXPECT(ask(r) && std::memcmp(p + 4090, "AAAAAAAA", 8) == 0);
    EXPECT(VirtualFree(p, 0, MEM_RELEASE));  // locked pages do not hold the address
    r = request(PROBE_PEEK, 90);
    EXPECT(ask(r) && r.result[0] == 0x4141414141414141);
    r = request(PROBE_UNLOCK);
    EXPECT(ask(r));
    r = request(PROBE_LOCK, address(p), 4096, 0);
    EXPECT(ask(r) && r.result[1] == 0xc0000005);
    char on_stack[64] = "stack pages can be locked";
    r = request(PROBE_LOCK, address(on_stack), sizeof on_stack, 1);
    EXPECT(ask(r) && r.result[1] == 0);
    r = request(PROBE_UNLOCK);
    EXPECT(ask(r));
    static char in_data[64] = "and data of the image";
    r = request(PROBE_LOCK, address(in_data), sizeof in_data, 1);
    EXPECT(ask(r) && r.result[1] == 0);
    r = request(PROBE_UNLOCK);
    EXPECT(ask(r));
    r = request(PROBE_MAP);
    EXPECT(ask(r) && r.result[0] != 0);
    auto *view = reinterpret_cast<unsigned long long *>(r.result[0]);
    EXPECT(*view == 0x1122334455667788);
    EXPECT(!VirtualFree(view, 0, MEM_RELEASE));
    r = request(PROBE_UNMAP);
    int value;
    EXPECT(ask(r) && seh_read_code(reinterpret_cast<int *>(view), &value) == EXCEPTION_ACCESS_VIOLATION);
}

unsigned long long g_secure;
int g_flushes;
char *g_flushed;
BOOLEAN NTAPI on_flush(void *p, SIZE_T n) {
    ++g_flushes;
    g_flushed = static_cast<char *>(p);
    if (!g_secure || n == 0) return FALSE;
    probe_request r = request(PROBE_UNSECURE, g_secure);
    g_secure = 0;
    return ask(r);
}

void check_securing() {
    using Add = BOOL(WINAPI *)(void *);
    auto add = reinterpret_cast<Add>(
        reinterpret_cast<void *>(GetProcAddress(GetModuleHandleA("kernel32"), "AddSecureMemoryCacheCallback")));
    EXPECT(add != nullptr && add(reinterpret_cast<void *>(on_flush)));
    auto *p = static_cast<char *>(VirtualAlloc(nullptr, 4 * 4096, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
    auto secure = [&](char *at, unsigned long long size) {
        probe_request r = request(PROBE_SECURE, address(at), size, 1);
        EXPECT(ask(r) && r.result[0] != 0);
        g_secure = r.result[0];
    };
    secure(p + 5000, 10);
    DWORD old;
    EXPECT(VirtualProtect(p, 4096, PAGE_READONLY, &old) && g_flushes == 0);
    EXPECT(VirtualProtect(p + 4096, 4096, PAGE_READONLY, &old) && g_flushes == 1 && g_flushed == p + 4096 && !g_secure);
    EXPECT(VirtualProtect(p, 8192, PAGE_READWRITE, &old));
    secure(p, 4096);
    EXPECT(VirtualFree(p, 4096, MEM_DECOMMIT) && g_flushes == 2);
    secure(p + 4096, 4096);
    EXPECT(VirtualFree(p, 0, MEM_RELEASE) && g_flushes == 3);
    auto *heap = static_cast<char *>(std::malloc(1 << 20));  // large blocks give their pages back
    secure(heap, 4096);
    std::free(heap);
    EXPECT(g_flushes == 4);
    p = static_cast<char *>(VirtualAlloc(nullptr, 4096, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
    secure(p, 4096);
    unsigned long long handle = g_secure;
    g_secure = 0;  // the callback will say that it is none of its own
    EXPECT(!VirtualFree(p, 0, MEM_RELEASE) && GetLastError() == ERROR_INVALID_PARAMETER && g_flushes == 5);
    g_secure = handle;
    EXPECT(VirtualFree(p, 0, MEM_RELEASE));
    probe_request r = request(PROBE_SECURE, 0x4000, 4096, 1);
    EXPECT(ask(r) && r.result[0] == 0);
}

// ---- processes
std::string self() {
    char path[MAX_PATH];
    GetModuleFileNameA(nullptr, path, sizeof path);
    return path;
}
HANDLE start(const char *arguments, DWORD *id = nullptr) {
    std::string line = "\"" + self() + "\" " + arguments;
    STARTUPINFOA s = {};
    s.cb = sizeof s;
    PROCESS_INFORMATION p = {};
    EXPECT(CreateProcessA(nullptr, line.data(), nullptr, nullptr, FALSE, 0, nullptr, nullptr, &s, &p));
    CloseHandle(p.hThread);
    if (id) *id = p.dwProcessId;
    return p.hProcess;
}

void check_processes() {
    DWORD id = 0, code = 0;
    HANDLE child = start("child-exit", &id);
    EXPECT(id != GetCurrentProcessId() && WaitForSingleObject(child, 10000) == WAIT_OBJECT_0 &&
           GetExitCodeProcess(child, &code) && code == 123);
    // A child that is killed while it holds a locked range, a view and a pending request: the driver's clean-up gives
    // all back.
    HANDLE ready = CreateEventA(nullptr, TRUE, FALSE, "probe-ready");
    probe_request before = request(PROBE_PROCESS), after = before;
    EXPECT(ask(before));
    child = start("child-hang", &id);
    EXPECT(WaitForSingleObject(ready, 10000) == WAIT_OBJECT_0);
    EXPECT(TerminateProcess(child, 9) && WaitForSingleObject(child, 10000) == WAIT_OBJECT_0 &&
           GetExitCodeProcess(child, &code) && code == 9);
    EXPECT(ask(after) && after.result[1] == before.result[1] + 1 && after.result[2] == before.result[2] + 1);
    EXPECT(after.result[0] == GetCurrentProcessId());
    // Attaching to a process makes its memory lockable, and nobody else's.
    ResetEvent(ready);
    child = start("child-memory", &id);
    EXPECT(WaitForSingleObject(ready, 10000) == WAIT_OBJECT_0);
    HANDLE stop = CreateEventA(nullptr, TRUE, FALSE, "probe-stop");
    probe_request r = request(PROBE_ATTACH, id, 0x2200000000, 4096);
    EXPECT(ask(r) && r.result[1] == 0 && r.result[0] == 0xfeedfacecafebeef);
    r = request(PROBE_ATTACH, GetCurrentProcessId(), 0x2200000000, 4096);
    EXPECT(ask(r) && r.result[1] == 0xc0000005);
    SetEvent(stop);
    EXPECT(WaitForSingleObject(child, 10000) == WAIT_OBJECT_0 && GetExitCodeProcess(child, &code) && code == 0);
    HANDLE crash = start("child-crash");
    EXPECT(WaitForSingleObject(crash, 10000) == WAIT_OBJECT_0 && GetExitCodeProcess(crash, &code) &&
           code == EXCEPTION_ACCESS_VIOLATION);
}

int child_hang() {
    HANDLE h = open_probe(true);
    probe_request r = request(PROBE_LOCK,
                              address(VirtualAlloc(nullptr, 65536, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE)), 65536,
                              1),
                  m = request(PROBE_MAP), pend = request(PROBE_PEND);
    OVERLAPPED o = {};
    DWORD n;
    o.hEvent = CreateEventA(nullptr, TRUE, FALSE, nullptr);
    for (probe_request *x : {&r, &m}) {
        DeviceIoControl(h, PROBE_IOCTL, x, sizeof *x, x, sizeof *x, &n, &o);
        GetOverlappedResult(h, &o, &n, TRUE);
    }
    DeviceIoControl(h, PROBE_IOCTL, &pend, sizeof pend, &pend, sizeof pend, nullptr, &o);
    CreateThread(nullptr, 0, spin_for_ever, &n, 0, nullptr);
    SetEvent(OpenEventA(EVENT_MODIFY_STATE, FALSE, "probe-ready"));
    Sleep(INFINITE);
    return 1;
}
int child_memory() {
    auto *p = static_cast<unsigned long long *>(
        VirtualAlloc(reinterpret_cast<void *>(0x2200000000), 4096, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
    *p = 0xfeedfacecafebeef;
    HANDLE stop = CreateEventA(nullptr, TRUE, FALSE, "probe-stop");
    SetEvent(OpenEventA(EVENT_MODIFY_STATE, FALSE, "probe-ready"));
    return WaitForSingleObject(stop, 10000) == WAIT_OBJECT_0 ? 0 : 1;
}

// The program ends while other threads are inside requests: nothing of theirs may stay behind (the verifier looks at
// unload).
DWORD WINAPI hammer(void *) {
    for (;;) {
        HANDLE h = open_probe();
        for (int i = 0; i < 20; ++i) {
            probe_request r = request(i % 4 ? PROBE_ECHO : PROBE_WORK, 1, 2);
            call(h, r);
        }
        CloseHandle(h);
    }
}
int exit_while_busy() {
    for (int i = 0; i < 4; ++i) CreateThread(nullptr, 0, hammer, nullptr, 0, nullptr);
    Sleep(30);
    return 0;
}

// An operation by number, with a buffer of ours as its range: for the mistakes, and for injected failures.
int operation(int argc, char **argv) {
    unsigned op = static_cast<unsigned>(std::atoi(argv[2]));
    auto *p = static_cast<char *>(VirtualAlloc(nullptr, 8192, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
    std::memset(p, 1, 8192);
    int times = argc > 3 ? std::atoi(argv[3]) : 1, good = 0;
    bool pending = op == PROBE_BAD_NO_CANCEL;
    HANDLE h = pending ? open_probe(true) : g_probe;
    OVERLAPPED o = {};
    for (int i = 0; i < times; ++i) {
        probe_request r = request(op, address(p), 4096, 1);
        if (op == PROBE_POOL) r.a = 100;
        DWORD n;
        bool ok =
            DeviceIoControl(h, PROBE_IOCTL, &r, sizeof r, &r, sizeof r, &n, pending ? &o : nullptr) && r.result[1] == 0;
        if (op == PROBE_POOL || op == PROBE_SECURE) ok = ok && r.result[0] != 0;
        good += ok;
        if (op == PROBE_LOCK) {
            r = request(PROBE_UNLOCK);
            ask(r);
        }
        if (op == PROBE_SECURE && r.result[0]) {
            r = request(PROBE_UNSECURE, r.result[0]);
            ask(r);
        }
    }
    std::printf("%d of %d\n", good, times);
    return 0;
}

struct Check {
    const char *name;
    void (*run)();
    bool driver;
};
constexpr Check checks[] = {
    {"exceptions", check_exceptions, false},
    {"threads", check_threads, false},
    {"waits", check_waits, false},
    {"memory", check_memory, false},
    {"files", check_files, false},
    {"ioctl", check_ioctl, true},
    {"neither", check_neither, true},
    {"driver-exceptions", check_driver_exceptions, true},
    {"time", check_time, true},
    {"pending", check_pending, true},
    {"locking", check_locking, true},
    {"securing", check_securing, true},
    {"processes", check_processes, true},
};

}  // namespace

int main(int argc, char **argv) {
    std::string what = argc > 1 ? argv[1] : "";
    if (what == "child-exit") return 123;
    if (what == "child-hang") return child_hang();
    if (what == "busy") return exit_while_busy();
    if (what == "child-memory") return child_memory();
    if (what == "child-crash") {
        volatile int *volatile nowhere = reinterpret_cast<int *>(8);
        return *nowhere;
    }
    if (what == "arguments") {
        for (int i = 2; i < argc; ++i) std::printf("[%s]", argv[i]);
        std::printf("\n");
        return argc;
    }
    for (const Check &c : checks) {
        if (what != c.name) continue;
        if (c.driver) g_probe = open_probe();
        c.run();
        return g_failed;
    }
    if (what == "op" && argc > 2) {
        g_probe = open_probe();
        return operation(argc, argv);
    }
    std::printf("probe.exe: unknown check '%s'\n", what.c_str());
    return 2;
}
