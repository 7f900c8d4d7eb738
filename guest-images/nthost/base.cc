// SPDX-License-Identifier: GPL-2.0-or-later
#include "base.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "nt_status.h"
#include "stack_trace.h"

namespace nth {

void futex_wait(std::atomic<uint32_t> *word, uint32_t expected) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

bool futex_wait_until(std::atomic<uint32_t> *word, uint32_t expected, uint64_t deadline_ns) {
    timespec ts{static_cast<time_t>(deadline_ns / 1000000000), static_cast<long>(deadline_ns % 1000000000)};
    long r = syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, expected, &ts, nullptr, FUTEX_BITSET_MATCH_ANY);
    return r == 0 || errno != ETIMEDOUT;
}

void futex_wake(std::atomic<uint32_t> *word, int count) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

void usleep_host(unsigned microseconds) {
    usleep(microseconds);
}

uint64_t monotonic_ns() {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return uint64_t(ts.tv_sec) * 1000000000 + ts.tv_nsec;
}

uint64_t system_time() {
    timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t(ts.tv_sec) + 11644473600ull) * 10000000 + ts.tv_nsec / 100;
}

void FutexLock::lock_slow() {
    for (int i = 0; i < 64; i++) {
        __builtin_ia32_pause();
        if (try_lock()) return;
    }
    while (word_.exchange(2, std::memory_order_acquire) != 0) futex_wait(&word_, 2);
}

bool FutexLock::lock_unless(bool (*stop)()) {
    if (try_lock()) return true;
    while (word_.exchange(2, std::memory_order_acquire) != 0) {
        if (stop()) return false;
        futex_wait(&word_, 2);
    }
    return true;
}

static void say(const char *format, va_list args) {
    char line[2048];
    vsnprintf(line, sizeof line, format, args);
    fflush(stdout);
    fprintf(stderr, "nthost: %s\n", line);
}

void note(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

bool under_debugger() {
    static const bool yes = [] {
        std::ifstream status("/proc/self/status");
        for (std::string line; std::getline(status, line);)
            if (line.rfind("TracerPid:", 0) == 0) return std::stoi(line.substr(10)) != 0;
        return false;
    }();
    return yes;
}

void exit_host(int status) {
    fflush(stdout);
    fflush(stderr);
    _exit(status);
}

void usage_error(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    exit_host(EXIT_USAGE);
}

// Only the first thread that gives up gets to say why.
static void claim_death() {
    static std::atomic<bool> dying{false};
    if (dying.exchange(true)) {
        for (;;) pause();
    }
}

void host_bug(const char *format, ...) {
    claim_death();
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    note("host error: %s", text);
    print_current_stack();
    exit_host(EXIT_HOST_BUG);
}

void bugcheck(uint32_t code, const char *name, const char *format, ...) {
    claim_death();
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    note("bugcheck 0x%08X %s: %s", code, name, text);
    print_current_stack();
    exit_host(EXIT_BUGCHECK);
}

std::string narrow(const char16_t *text, size_t length) {
    std::string out;
    for (size_t i = 0; i < length; i++) {
        uint32_t c = text[i];
        if (c >= 0xd800 && c < 0xdc00 && i + 1 < length && text[i + 1] >= 0xdc00 && text[i + 1] < 0xe000)
            c = 0x10000 + ((c - 0xd800) << 10) + (text[++i] - 0xdc00);
        if (c < 0x80) {
            out += char(c);
        } else if (c < 0x800) {
            out += char(0xc0 | c >> 6);
            out += char(0x80 | (c & 63));
        } else if (c < 0x10000) {
            out += char(0xe0 | c >> 12);
            out += char(0x80 | (c >> 6 & 63));
            out += char(0x80 | (c & 63));
        } else {
            out += char(0xf0 | c >> 18);
            out += char(0x80 | (c >> 12 & 63));
            out += char(0x80 | (c >> 6 & 63));
            out += char(0x80 | (c & 63));
        }
    }
    return out;
}

std::u16string widen(const std::string &text) {
    std::u16string out;
    for (size_t i = 0; i < text.size();) {
        uint8_t b = text[i];
        int more = b < 0x80 ? 0 : b >= 0xf0 ? 3 : b >= 0xe0 ? 2 : b >= 0xc0 ? 1 : 0;
        uint32_t c = more == 0 ? b : b & (0x3f >> more);
        for (i++; more > 0 && i < text.size(); i++, more--) c = c << 6 | (uint8_t(text[i]) & 63);
        if (c >= 0x10000) {
            out += char16_t(0xd800 + ((c - 0x10000) >> 10));
            out += char16_t(0xdc00 + (c & 0x3ff));
        } else {
            out += char16_t(c);
        }
    }
    return out;
}

std::string lower(std::string text) {
    for (char &c : text)
        if (c >= 'A' && c <= 'Z') c += 32;
    return text;
}

std::u16string lower(std::u16string text) {
    for (char16_t &c : text)
        if (c >= 'A' && c <= 'Z') c += 32;
    return text;
}

}  // namespace nth

namespace nt {

const char *status_name(NTSTATUS status) {
    switch (uint32_t(status)) {
#define X(name, value, error) \
    case value: return #name;
        NT_STATUS_LIST(X)
#undef X
        default: return nullptr;
    }
}

DWORD status_to_win32(NTSTATUS status) {
    switch (uint32_t(status)) {
#define X(name, value, error) \
    case value: return error;
        NT_STATUS_LIST(X)
#undef X
        default: break;
    }
    // NTSTATUS made from a Win32 error (facility 7).
    if ((uint32_t(status) >> 16 & 0xfff) == 7) return uint32_t(status) & 0xffff;
    switch (uint32_t(status)) {
        case 0xC000013A: return 0xC000013A;  // control-C exit
        case 0xC0000121: return 5;           // cannot delete
        case 0xC0000142: return 1114;        // DLL init failed
        case 0xC0000194: return 1131;        // possible deadlock
        case 0xC0000207: return 1232;        // invalid address component
        case 0xC000023D: return 1232;        // host unreachable
        case 0xC0000236: return 1225;        // connection refused
        case 0xC000020D: return 64;          // connection reset
        case 0xC0000241: return 1236;        // connection aborted
        case 0xC000023A: return 1229;        // connection invalid
        case 0xC000020A: return 1227;        // address already exists
        case 0xC000023C: return 1231;        // network unreachable
        case 0xC00000B5: return 121;         // I/O timeout
        case 0xC0000184: return 22;          // invalid device state
        case 0xC0000059: return 1306;        // revision mismatch
        case 0xC0000080: return 170;         // device already attached
        case 0x8000001E: return 1066;
        case 0x80000011: return 170;   // device busy
        case 0xC0000011: return 38;    // end of file
        case 0xC0000206: return 1784;  // invalid buffer size
        case 0xC00000B8: return 24;
        case 0xC0000043: return 32;  // sharing violation
        case 0xC00000F0: return 87;
        default: return 317;
    }
}

}  // namespace nt
