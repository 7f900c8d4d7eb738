// SPDX-License-Identifier: GPL-2.0-or-later
//
// base.h: what every part of nthost uses: locks that are one futex word, the ways to give up (host_bug, bugcheck), and
// the address map of the one address space in which kernel and processes live.
//
// Address map (Linux gives user space 47 bits, so NT's upper half is folded into the top of it):
//   below USER_LIMIT        user memory of all NT processes, and nthost itself
//   KERNEL_LINEAR           the physical page pool, page n at KERNEL_LINEAR + n * 4096
//   KERNEL_IMAGES           drivers
//   KERNEL_MMIO             MmMapIoSpace
//   KERNEL_PTES             system mappings of MDLs
//   KERNEL_STACKS           kernel stacks of threads
#pragma once

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <string>

namespace nth {

inline constexpr uint64_t USER_FIRST = 0x10000;
inline constexpr uint64_t USER_LIMIT = 0x5fffffff0000;  // MmUserProbeAddress
inline constexpr uint64_t USER_ALLOC_BASE = 0x002000000000;
inline constexpr uint64_t KERNEL_BASE = 0x600000000000;
inline constexpr uint64_t KERNEL_LINEAR = 0x600000000000;
inline constexpr uint64_t KERNEL_IMAGES = 0x680000000000;
inline constexpr uint64_t KERNEL_MMIO = 0x6a0000000000;
inline constexpr uint64_t KERNEL_PTES = 0x6c0000000000;
inline constexpr uint64_t KERNEL_STACKS = 0x6e0000000000;
inline constexpr uint64_t KERNEL_LIMIT = 0x700000000000;

inline bool is_user_address(uint64_t a) {
    return a < USER_LIMIT;
}
inline bool is_kernel_address(uint64_t a) {
    return a >= KERNEL_BASE && a < KERNEL_LIMIT;
}

inline constexpr uint64_t page_down(uint64_t a) {
    return a & ~uint64_t{4095};
}
inline constexpr uint64_t page_up(uint64_t a) {
    return (a + 4095) & ~uint64_t{4095};
}

void futex_wait(std::atomic<uint32_t> *word, uint32_t expected);
// Absolute CLOCK_MONOTONIC deadline in nanoseconds; returns false on time-out.
bool futex_wait_until(std::atomic<uint32_t> *word, uint32_t expected, uint64_t deadline_ns);
void futex_wake(std::atomic<uint32_t> *word, int count);

void usleep_host(unsigned microseconds);
uint64_t monotonic_ns();
// 100 ns units since 1601.
uint64_t system_time();

// A mutex in one 32-bit word: 0 free, 1 held, 2 held and somebody sleeps. Zero-initialised memory is a free lock.
class FutexLock {
  public:
    void lock() {
        uint32_t free = 0;
        if (!word_.compare_exchange_strong(free, 1, std::memory_order_acquire)) lock_slow();
    }
    bool try_lock() {
        uint32_t free = 0;
        return word_.compare_exchange_strong(free, 1, std::memory_order_acquire);
    }
    void unlock() {
        if (word_.exchange(0, std::memory_order_release) == 2) futex_wake(&word_, 1);
    }
    // For locks that user code holds: stop() is asked whenever the sleep is disturbed; true gives up (false is
    // returned).
    bool lock_unless(bool (*stop)());
    bool held() const { return word_.load(std::memory_order_relaxed) != 0; }

  private:
    void lock_slow();
    std::atomic<uint32_t> word_{0};
};

class Locked {
  public:
    explicit Locked(FutexLock &l) : lock_(l) { lock_.lock(); }
    ~Locked() { lock_.unlock(); }
    Locked(const Locked &) = delete;
    Locked &operator=(const Locked &) = delete;

  private:
    FutexLock &lock_;
};

// A mistake in nthost itself, or something it does not do: message, stack, exit status 98.
[[noreturn]] void host_bug(const char *format, ...) __attribute__((format(printf, 1, 2)));
// The machine stops: "nthost: bugcheck 0x000000C9 NAME: text", stack of PE frames, exit status 99.
[[noreturn]] void bugcheck(uint32_t code, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// The user's mistake: one line, exit status 2.
[[noreturn]] void usage_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
// One line on stderr, "nthost: ...".
void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

// Whether a debugger traces nthost (asked once, at the first call).
bool under_debugger();

// Ends the Linux process at once, with buffered output flushed.
[[noreturn]] void exit_host(int status);

inline constexpr int EXIT_HOST_BUG = 98, EXIT_BUGCHECK = 99, EXIT_IMPORTS = 3, EXIT_USAGE = 2, EXIT_TIMEOUT = 97;

std::string narrow(const char16_t *text, size_t length);
std::u16string widen(const std::string &text);
std::string lower(std::string text);
std::u16string lower(std::u16string text);

}  // namespace nth
