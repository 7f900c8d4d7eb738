// SPDX-License-Identifier: GPL-2.0-or-later
//
// user_access.h: the verifier's watch over user memory: while driver code runs, pages of user memory are closed to it
// by a protection key (where the CPU has them), as with SMAP. A touch outside __try is a bugcheck; inside, it is let
// through.
#pragma once

#include <cstdint>

extern "C" uint32_t nth_pkru_denied;

namespace nth {

extern bool g_user_access_watched;

// Finds out whether protection keys work and takes one; returns the key or -1.
int watch_user_access();

inline void write_pkru(uint32_t v) {
    asm volatile("wrpkru" ::"a"(v), "c"(0), "d"(0) : "memory");
}
inline uint32_t read_pkru() {
    uint32_t a, d;
    asm volatile("rdpkru" : "=a"(a), "=d"(d) : "c"(0));
    return a;
}

inline void allow_user_access() {
    if (g_user_access_watched) write_pkru(0);
}

// Around a call of PE code: closed for drivers, and as before afterwards.
class UserAccessState {
  public:
    explicit UserAccessState(bool close) {
        if (!g_user_access_watched || !close) return;
        old_ = read_pkru();
        closed_ = true;
        write_pkru(nth_pkru_denied);
    }
    ~UserAccessState() {
        if (closed_) write_pkru(old_);
    }
    UserAccessState(const UserAccessState &) = delete;
    UserAccessState &operator=(const UserAccessState &) = delete;

  private:
    uint32_t old_ = 0;
    bool closed_ = false;
};

// Opens user memory for nthost's own copying inside the kernel.
class UserAccess {
  public:
    UserAccess() {
        if (g_user_access_watched) {
            old_ = read_pkru();
            if (old_ != 0) write_pkru(0);
        }
    }
    ~UserAccess() {
        if (g_user_access_watched && old_ != 0) write_pkru(old_);
    }
    UserAccess(const UserAccess &) = delete;
    UserAccess &operator=(const UserAccess &) = delete;

  private:
    uint32_t old_ = 0;
};

// Copies that answer false instead of faulting.
bool copy_from_user(void *to, uint64_t from, uint64_t size);
bool copy_to_user(uint64_t to, const void *from, uint64_t size);

}  // namespace nth
