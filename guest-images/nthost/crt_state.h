// SPDX-License-Identifier: GPL-2.0-or-later
//
// crt_state.h: msvcrt's per-process state, shared by the crt_*.cc files.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

#include "base.h"
#include "crt.h"
#include "process.h"
#include "thread.h"

namespace nth {

// struct _iobuf; programs only pass its address around, with a stride of 48.
struct MsFile {
    char *ptr;
    int cnt;
    char *base;
    int flag, file, charbuf, bufsiz;
    FILE *host;  // _tmpfname in msvcrt
};
static_assert(sizeof(MsFile) == 48);

struct CrtState {
    Process *process = nullptr;
    MsFile iob[64] = {};
    std::vector<std::string> argument_storage;
    std::vector<char *> argv, environment;
    std::vector<char16_t *> wargv;
    std::vector<std::u16string> wide_storage;
    char *command_line = nullptr;
    std::vector<uint64_t> at_exit;  // _onexit functions, called last to first
    FutexLock lock;                 // guards iob allocation and at_exit
    FutexLock locks[64];            // _lock(n)
    Thread *lock_owner[64] = {};
    int lock_depth[64] = {};
    char *locale_name = nullptr;
};

inline CrtState &crt() {
    return *current()->process->crt;
}

int crt_set_errno(int host_errno);  // stores the msvcrt number; returns -1
void crt_run_at_exit();

}  // namespace nth
