// SPDX-License-Identifier: GPL-2.0-or-later
//
// nt_status.h: the NTSTATUS values and Win32 error codes that nthost itself returns, and the mapping between them.
#pragma once

#include "nt_types.h"

namespace nt {

#define NT_STATUS_LIST(X)                                      \
    X(STATUS_SUCCESS, 0x00000000, 0)                           \
    X(STATUS_ABANDONED_WAIT_0, 0x00000080, 735)                \
    X(STATUS_USER_APC, 0x000000C0, 0)                          \
    X(STATUS_ALERTED, 0x00000101, 0)                           \
    X(STATUS_TIMEOUT, 0x00000102, 258)                         \
    X(STATUS_PENDING, 0x00000103, 997)                         \
    X(STATUS_GUARD_PAGE_VIOLATION, 0x80000001, 0x80000001)     \
    X(STATUS_BREAKPOINT, 0x80000003, 0x80000003)               \
    X(STATUS_SINGLE_STEP, 0x80000004, 0x80000004)              \
    X(STATUS_BUFFER_OVERFLOW, 0x80000005, 234)                 \
    X(STATUS_NO_MORE_ENTRIES, 0x8000001A, 259)                 \
    X(STATUS_UNSUCCESSFUL, 0xC0000001, 31)                     \
    X(STATUS_NOT_IMPLEMENTED, 0xC0000002, 1)                   \
    X(STATUS_INFO_LENGTH_MISMATCH, 0xC0000004, 24)             \
    X(STATUS_ACCESS_VIOLATION, 0xC0000005, 998)                \
    X(STATUS_INVALID_HANDLE, 0xC0000008, 6)                    \
    X(STATUS_INVALID_CID, 0xC000000B, 87)                      \
    X(STATUS_INVALID_PARAMETER, 0xC000000D, 87)                \
    X(STATUS_NO_SUCH_DEVICE, 0xC000000E, 2)                    \
    X(STATUS_INVALID_DEVICE_REQUEST, 0xC0000010, 1)            \
    X(STATUS_MORE_PROCESSING_REQUIRED, 0xC0000016, 234)        \
    X(STATUS_NO_MEMORY, 0xC0000017, 8)                         \
    X(STATUS_CONFLICTING_ADDRESSES, 0xC0000018, 487)           \
    X(STATUS_UNABLE_TO_FREE_VM, 0xC000001A, 87)                \
    X(STATUS_ILLEGAL_INSTRUCTION, 0xC000001D, 0xC000001D)      \
    X(STATUS_ACCESS_DENIED, 0xC0000022, 5)                     \
    X(STATUS_BUFFER_TOO_SMALL, 0xC0000023, 122)                \
    X(STATUS_OBJECT_TYPE_MISMATCH, 0xC0000024, 6)              \
    X(STATUS_NONCONTINUABLE_EXCEPTION, 0xC0000025, 0xC0000025) \
    X(STATUS_UNWIND, 0xC0000027, 0)                            \
    X(STATUS_NOT_LOCKED, 0xC000002A, 158)                      \
    X(STATUS_NOT_COMMITTED, 0xC000002D, 487)                   \
    X(STATUS_OBJECT_NAME_INVALID, 0xC0000033, 123)             \
    X(STATUS_OBJECT_NAME_NOT_FOUND, 0xC0000034, 2)             \
    X(STATUS_OBJECT_NAME_COLLISION, 0xC0000035, 183)           \
    X(STATUS_INVALID_PAGE_PROTECTION, 0xC0000045, 87)          \
    X(STATUS_MUTANT_NOT_OWNED, 0xC0000046, 288)                \
    X(STATUS_SEMAPHORE_LIMIT_EXCEEDED, 0xC0000047, 298)        \
    X(STATUS_SECTION_PROTECTION, 0xC000004E, 87)               \
    X(STATUS_DELETE_PENDING, 0xC0000056, 5)                    \
    X(STATUS_IN_PAGE_ERROR, 0xC0000006, 999)                   \
    X(STATUS_INTEGER_DIVIDE_BY_ZERO, 0xC0000094, 0xC0000094)   \
    X(STATUS_PRIVILEGED_INSTRUCTION, 0xC0000096, 0xC0000096)   \
    X(STATUS_INSUFFICIENT_RESOURCES, 0xC000009A, 1450)         \
    X(STATUS_MEMORY_NOT_ALLOCATED, 0xC00000A0, 487)            \
    X(STATUS_DEVICE_NOT_READY, 0xC00000A3, 21)                 \
    X(STATUS_NOT_SUPPORTED, 0xC00000BB, 50)                    \
    X(STATUS_CANCELLED, 0xC0000120, 995)                       \
    X(STATUS_DATATYPE_MISALIGNMENT, 0x80000002, 998)           \
    X(STATUS_FREE_VM_NOT_AT_BASE, 0xC000009F, 487)             \
    X(STATUS_DLL_NOT_FOUND, 0xC0000135, 126)                   \
    X(STATUS_ENTRYPOINT_NOT_FOUND, 0xC0000139, 127)            \
    X(STATUS_DLL_INIT_FAILED, 0xC0000142, 1114)                \
    X(STATUS_WORKING_SET_QUOTA, 0xC00000A1, 1453)              \
    X(STATUS_PROCESS_IS_TERMINATING, 0xC000010A, 5)            \
    X(STATUS_INVALID_USER_BUFFER, 0xC00000E8, 1784)            \
    X(STATUS_NOT_FOUND, 0xC0000225, 1168)                      \
    X(STATUS_INVALID_IMAGE_FORMAT, 0xC000007B, 193)            \
    X(STATUS_DEVICE_REMOVED, 0xC00002B6, 1617)

#define X(name, value, error) inline constexpr NTSTATUS name = static_cast<NTSTATUS>(value);
NT_STATUS_LIST(X)
#undef X

inline constexpr bool nt_success(NTSTATUS s) {
    return s >= 0;
}

// Name of a status, or nullptr.
const char *status_name(NTSTATUS status);
// RtlNtStatusToDosError for the statuses above, and for what drivers commonly return; otherwise 317.
DWORD status_to_win32(NTSTATUS status);

enum Win32Error : DWORD {
    ERROR_SUCCESS = 0,
    ERROR_INVALID_FUNCTION = 1,
    ERROR_FILE_NOT_FOUND = 2,
    ERROR_PATH_NOT_FOUND = 3,
    ERROR_ACCESS_DENIED = 5,
    ERROR_INVALID_HANDLE = 6,
    ERROR_NOT_ENOUGH_MEMORY = 8,
    ERROR_NOT_SUPPORTED = 50,
    ERROR_FILE_EXISTS = 80,
    ERROR_INVALID_PARAMETER = 87,
    ERROR_CALL_NOT_IMPLEMENTED = 120,
    ERROR_INSUFFICIENT_BUFFER = 122,
    ERROR_MOD_NOT_FOUND = 126,
    ERROR_PROC_NOT_FOUND = 127,
    ERROR_ALREADY_EXISTS = 183,
    ERROR_ENVVAR_NOT_FOUND = 203,
    ERROR_MORE_DATA = 234,
    ERROR_NOT_OWNER = 288,
    ERROR_TOO_MANY_POSTS = 298,
    ERROR_INVALID_ADDRESS = 487,
    ERROR_IO_INCOMPLETE = 996,
    ERROR_IO_PENDING = 997,
    ERROR_NOT_FOUND = 1168,
};

}  // namespace nt
