// SPDX-License-Identifier: GPL-2.0-or-later
#include "import_spy.h"

#include "switch/switch.h"

#include <cstdint>
#include <cstring>

namespace santest {

namespace {

enum Class { request, system_call, heap, classes };
DWORD watched_thread;
unsigned counts[classes];

void note(Class c) {
    if (GetCurrentThreadId() == watched_thread) ++counts[c];
}

// The counting stand-in for one import. `name` tells the instances apart.
template <size_t N> struct Name {
    char text[N];
    constexpr Name(const char (&t)[N]) {
        for (size_t i = 0; i < N; ++i) text[i] = t[i];
    }
};
template <Name name, Class c, typename R, typename... A> struct Spy {
    using Function = R(WINAPI *)(A...);
    static inline Function real;
    static R WINAPI call(A... a) {
        note(c);
        return real(a...);
    }
};

struct Watched {
    const char *name;
    void *stand_in;
    void **real;
    void **slot; // in the provider's import table
};
#define WATCH(name, c, ...)                                                                                             \
    {#name, reinterpret_cast<void *>(Spy<#name, c, __VA_ARGS__>::call),                                                 \
     reinterpret_cast<void **>(&Spy<#name, c, __VA_ARGS__>::real), nullptr}
Watched watched[] = {
    WATCH(DeviceIoControl, request, BOOL, HANDLE, DWORD, LPVOID, DWORD, LPVOID, DWORD, LPDWORD, LPOVERLAPPED),
    WATCH(GetOverlappedResult, system_call, BOOL, HANDLE, LPOVERLAPPED, LPDWORD, BOOL),
    WATCH(CloseHandle, system_call, BOOL, HANDLE),
    WATCH(CreateEventA, system_call, HANDLE, LPSECURITY_ATTRIBUTES, BOOL, BOOL, LPCSTR),
    WATCH(CreateFileA, system_call, HANDLE, LPCSTR, DWORD, DWORD, LPSECURITY_ATTRIBUTES, DWORD, DWORD, HANDLE),
    WATCH(CreateThread, system_call, HANDLE, LPSECURITY_ATTRIBUTES, SIZE_T, LPTHREAD_START_ROUTINE, LPVOID, DWORD, LPDWORD),
    WATCH(ResetEvent, system_call, BOOL, HANDLE),
    WATCH(SetEvent, system_call, BOOL, HANDLE),
    WATCH(Sleep, system_call, void, DWORD),
    WATCH(VirtualProtect, system_call, BOOL, LPVOID, SIZE_T, DWORD, PDWORD),
    WATCH(VirtualQuery, system_call, SIZE_T, LPCVOID, PMEMORY_BASIC_INFORMATION, SIZE_T),
    WATCH(WaitForSingleObject, system_call, DWORD, HANDLE, DWORD),
    WATCH(HeapAlloc, heap, LPVOID, HANDLE, DWORD, SIZE_T),
    WATCH(HeapFree, heap, BOOL, HANDLE, DWORD, LPVOID),
};
#undef WATCH
// These stay in user mode (critical sections that are free, the thread's own block), or are of the start and the end.
constexpr const char *harmless[] = {"DeleteCriticalSection", "DisableThreadLibraryCalls", "EnterCriticalSection", "GetCurrentThreadId",
                                    "GetEnvironmentVariableA", "GetLastError", "GetProcessHeap", "InitializeCriticalSection",
                                    "LeaveCriticalSection", "TlsGetValue"};

bool is_harmless(const char *name) {
    for (const char *h : harmless)
        if (strcmp(h, name) == 0) return true;
    return false;
}

bool write(void **slot, void *value) {
    DWORD old;
    if (!VirtualProtect(slot, sizeof *slot, PAGE_READWRITE, &old)) return false;
    *slot = value;
    return VirtualProtect(slot, sizeof *slot, old, &old);
}

} // namespace

ImportSpy::ImportSpy() {
    auto *base = reinterpret_cast<uint8_t *>(sanswitch::provider());
    auto *nt = reinterpret_cast<IMAGE_NT_HEADERS *>(base + reinterpret_cast<IMAGE_DOS_HEADER *>(base)->e_lfanew);
    auto *module = reinterpret_cast<IMAGE_IMPORT_DESCRIPTOR *>(
        base + nt->OptionalHeader.DataDirectory[IMAGE_DIRECTORY_ENTRY_IMPORT].VirtualAddress);
    watched_thread = GetCurrentThreadId();
    restart();
    for (; module->Name; ++module) {
        if (_stricmp(reinterpret_cast<char *>(base + module->Name), "kernel32.dll") != 0) continue; // msvcrt's are user mode's
        auto *names = reinterpret_cast<IMAGE_THUNK_DATA *>(base + module->OriginalFirstThunk);
        auto **slots = reinterpret_cast<void **>(base + module->FirstThunk);
        for (; names->u1.AddressOfData; ++names, ++slots) {
            auto *name = reinterpret_cast<char *>(reinterpret_cast<IMAGE_IMPORT_BY_NAME *>(base + names->u1.AddressOfData)->Name);
            Watched *found = nullptr;
            for (Watched &w : watched)
                if (strcmp(w.name, name) == 0) found = &w;
            if (!found) {
                if (!is_harmless(name)) problem_ = name;
                continue;
            }
            *found->real = *slots;
            found->slot = slots;
            if (!write(slots, found->stand_in)) {
                found->slot = nullptr;
                problem_ = name;
            }
        }
    }
}

ImportSpy::~ImportSpy() {
    for (Watched &w : watched) {
        if (w.slot) write(w.slot, *w.real);
        w.slot = nullptr;
    }
}

void ImportSpy::restart() { memset(counts, 0, sizeof counts); }
unsigned ImportSpy::requests() const { return counts[request]; }
unsigned ImportSpy::system_calls() const { return counts[request] + counts[system_call]; }
unsigned ImportSpy::heap_calls() const { return counts[heap]; }

} // namespace santest
