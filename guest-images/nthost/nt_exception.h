// SPDX-License-Identifier: GPL-2.0-or-later
//
// nt_exception.h: contexts, exception records, unwind data. Part of nt_types.h.
#pragma once

#include "nt_basic.h"

namespace nt {

struct alignas(16) M128 {
    uint64_t lo, hi;
};

struct alignas(16) CONTEXT {
    uint64_t PHome[6];
    ULONG ContextFlags, MxCsr;
    USHORT SegCs, SegDs, SegEs, SegFs, SegGs, SegSs;
    ULONG EFlags;
    uint64_t Dr[6];
    uint64_t Reg[16];  // rax rcx rdx rbx rsp rbp rsi rdi r8..r15
    uint64_t Rip;
    UCHAR FltHeader[32];
    M128 Legacy[8];
    M128 Xmm[16];
    UCHAR FltRest[96];
    M128 VectorRegister[26];
    uint64_t VectorControl, DebugControl, LastBranch[4];
};

enum Register { RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15 };

inline constexpr ULONG CONTEXT_FULL_FLAGS = 0x0010000b;

struct EXCEPTION_RECORD {
    NTSTATUS ExceptionCode;
    ULONG ExceptionFlags;
    EXCEPTION_RECORD *Nested;
    PVOID ExceptionAddress;
    ULONG NumberParameters;
    uint64_t ExceptionInformation[15];
};

struct EXCEPTION_POINTERS {
    EXCEPTION_RECORD *Record;
    CONTEXT *Context;
};

enum : ULONG {
    EXCEPTION_NONCONTINUABLE = 0x01,
    EXCEPTION_UNWINDING = 0x02,
    EXCEPTION_EXIT_UNWIND = 0x04,
    EXCEPTION_STACK_INVALID = 0x08,
    EXCEPTION_NESTED_CALL = 0x10,
    EXCEPTION_TARGET_UNWIND = 0x20,
    EXCEPTION_COLLIDED_UNWIND = 0x40,
};

struct RUNTIME_FUNCTION {
    ULONG Begin, End, UnwindInfo;
};

struct DISPATCHER_CONTEXT;
using EXCEPTION_ROUTINE = int NTAPI(EXCEPTION_RECORD *, uint64_t frame, CONTEXT *, DISPATCHER_CONTEXT *);

struct DISPATCHER_CONTEXT {
    uint64_t ControlPc, ImageBase;
    RUNTIME_FUNCTION *FunctionEntry;
    uint64_t EstablisherFrame, TargetIp;
    CONTEXT *ContextRecord;
    EXCEPTION_ROUTINE *LanguageHandler;
    PVOID HandlerData;
    PVOID HistoryTable;
    ULONG ScopeIndex, Fill0;
};

enum { ExceptionContinueExecution, ExceptionContinueSearch, ExceptionNestedException, ExceptionCollidedUnwind };

}  // namespace nt
