// SPDX-License-Identifier: GPL-2.0-or-later
//
// user.h: helpers of the user-mode imports: last error, handles of the current process, narrow strings.
#pragma once

#include <string>
#include <vector>

#include "nt_status.h"
#include "process.h"

namespace nth {

// Sets the last error; returns 0, so that BOOL functions can return it.
inline nt::BOOL fail(nt::DWORD error) {
    current()->set_last_error(error);
    return 0;
}
inline nt::BOOL fail_status(nt::NTSTATUS s) {
    return fail(nt::status_to_win32(s));
}

std::string narrow_z(const nt::WCHAR *text);

inline constexpr uint64_t CURRENT_PROCESS = ~uint64_t{0}, CURRENT_THREAD = ~uint64_t{1};
inline constexpr uint64_t INVALID_HANDLE = ~uint64_t{0};

// Referenced object of a handle (with the pseudo handles), or null with the last error set.
template <class T>
std::unique_ptr<T, ObjectRelease<T>> user_object(uint64_t handle, ObjectKind kind) {
    void *body = nullptr;
    if (handle == CURRENT_PROCESS && kind == ObjectKind::Process) {
        body = current()->process;
        object_reference(body);
    } else if (handle == CURRENT_THREAD && kind == ObjectKind::Thread) {
        body = current();
        object_reference(body);
    } else {
        nt::NTSTATUS s;
        body = current()->process->handles.reference(handle, kind, &s);
        if (body == nullptr) fail_status(s);
    }
    return std::unique_ptr<T, ObjectRelease<T>>(static_cast<T *>(body));
}

// Waitable part of any object, or null.
nt::DISPATCHER_HEADER *waitable(void *body);

// An event object; initial reference is the caller's.
struct EventObject {
    nt::KEVENT event;
};

[[noreturn]] void report_missing_imports(const std::string &what, std::vector<std::string> imports);

}  // namespace nth
