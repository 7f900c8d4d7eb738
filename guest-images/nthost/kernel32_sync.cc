// SPDX-License-Identifier: GPL-2.0-or-later
//
// kernel32.dll: threads, waits, events, mutexes, semaphores, waitable timers, processes.
#include <sched.h>
#include <unistd.h>

#include <cstring>

#include "exception.h"
#include "imports.h"
#include "unwind.h"
#include "user.h"
#include "verifier.h"

namespace nth {

using namespace nt;

DISPATCHER_HEADER *waitable(void *body) {
    switch (object_kind(body)) {
        case ObjectKind::Event:
        case ObjectKind::Semaphore:
        case ObjectKind::Mutant:
        case ObjectKind::Timer:
        case ObjectKind::Thread:
        case ObjectKind::Process: return static_cast<DISPATCHER_HEADER *>(body);
        case ObjectKind::File: return &static_cast<FILE_OBJECT *>(body)->Event.Header;
        default: return nullptr;
    }
}

std::string narrow_z(const WCHAR *text) {
    size_t n = 0;
    while (text[n] != 0) n++;
    return narrow(text, n);
}

namespace {

uint64_t deadline_ms(DWORD ms) {
    return ms == 0xffffffff ? ~uint64_t{0} : ms == 0 ? 0 : monotonic_ns() + uint64_t{ms} * 1000000;
}

DWORD finish_wait(NTSTATUS s) {
    if (s == STATUS_ALERTED) check_termination();
    return static_cast<DWORD>(s);
}

DWORD NTAPI WaitForMultipleObjects(DWORD count, const uint64_t *handles, BOOL all, DWORD ms) {
    if (count == 0 || count > MAX_WAIT_OBJECTS) return fail(ERROR_INVALID_PARAMETER), 0xffffffff;
    std::unique_ptr<void, ObjectRelease<void>> objects[MAX_WAIT_OBJECTS];
    DISPATCHER_HEADER *headers[MAX_WAIT_OBJECTS];
    for (DWORD i = 0; i < count; i++) {
        objects[i] = user_object<void>(handles[i], handles[i] == CURRENT_PROCESS  ? ObjectKind::Process
                                                   : handles[i] == CURRENT_THREAD ? ObjectKind::Thread
                                                                                  : ObjectKind::Any);
        if (objects[i] == nullptr) return 0xffffffff;
        headers[i] = waitable(objects[i].get());
        if (headers[i] == nullptr) return fail(ERROR_INVALID_HANDLE), 0xffffffff;
    }
    NTSTATUS s = wait_for(std::span(headers, count), all != 0, true, deadline_ms(ms));
    for (DWORD i = 0; i < count; i++) objects[i].reset();  // before a thread ends here
    return finish_wait(s);
}
DWORD NTAPI WaitForSingleObject(uint64_t handle, DWORD ms) {
    return WaitForMultipleObjects(1, &handle, 0, ms);
}
DWORD NTAPI WaitForSingleObjectEx(uint64_t handle, DWORD ms, BOOL) {
    return WaitForSingleObject(handle, ms);
}
DWORD NTAPI WaitForMultipleObjectsEx(DWORD count, const uint64_t *handles, BOOL all, DWORD ms, BOOL) {
    return WaitForMultipleObjects(count, handles, all, ms);
}
DWORD NTAPI SignalObjectAndWait(uint64_t signal, uint64_t wait, DWORD ms, BOOL) {
    if (auto e = user_object<KEVENT>(signal, ObjectKind::Event)) set_event(e.get());
    else return 0xffffffff;
    return WaitForSingleObject(wait, ms);
}

void NTAPI Sleep(DWORD ms) {
    if (ms == 0) {
        sched_yield();
        return;
    }
    KEVENT never;
    init_event(&never, false, false);
    finish_wait(wait_for_one(&never.Header, deadline_ms(ms), true));
}
DWORD NTAPI SleepEx(DWORD ms, BOOL) {
    Sleep(ms);
    return 0;
}
BOOL NTAPI SwitchToThread() {
    sched_yield();
    return 1;
}

// ---- named and unnamed objects
std::u16string object_name(const std::string &name) {
    return u"\\basenamedobjects\\" + widen(name);
}

template <class T, class Init>
uint64_t create_object(ObjectKind kind, const char *name, Init init) {
    T *o = nullptr;
    DWORD error = ERROR_SUCCESS;
    if (name != nullptr) {
        if (void *found = name_space().lookup(object_name(name))) {
            if (object_kind(found) != kind) {
                object_release(found);
                fail(ERROR_INVALID_HANDLE);
                return 0;
            }
            o = static_cast<T *>(found);
            error = ERROR_ALREADY_EXISTS;
        }
    }
    if (o == nullptr) {
        o = object_create<T>(kind);
        if (o == nullptr) {
            fail(ERROR_NOT_ENOUGH_MEMORY);
            return 0;
        }
        init(o);
        if (name != nullptr) name_space().insert(object_name(name), o);
    }
    uint64_t h = current()->process->handles.insert(o);
    object_release(o);
    fail(error);
    return h;
}

uint64_t NTAPI CreateEventA(void *, BOOL manual, BOOL initial, const char *name) {
    if (should_fail_in_library(Fail::Event)) return fail(ERROR_NOT_ENOUGH_MEMORY), 0;
    return create_object<KEVENT>(ObjectKind::Event, name, [&](KEVENT *e) { init_event(e, !manual, initial != 0); });
}
uint64_t NTAPI CreateEventW(void *, BOOL manual, BOOL initial, const WCHAR *name) {
    return CreateEventA(nullptr, manual, initial, name != nullptr ? narrow_z(name).c_str() : nullptr);
}
uint64_t NTAPI OpenEventA(DWORD, BOOL, const char *name) {
    void *found = name_space().lookup(object_name(name));
    if (found == nullptr) return fail(ERROR_FILE_NOT_FOUND), 0;
    uint64_t h = current()->process->handles.insert(found);
    object_release(found);
    return h;
}
BOOL NTAPI SetEvent(uint64_t h) {
    auto e = user_object<KEVENT>(h, ObjectKind::Event);
    if (!e) return 0;
    set_event(e.get());
    return 1;
}
BOOL NTAPI ResetEvent(uint64_t h) {
    auto e = user_object<KEVENT>(h, ObjectKind::Event);
    if (!e) return 0;
    reset_event(e.get());
    return 1;
}
BOOL NTAPI PulseEvent(uint64_t h) {
    auto e = user_object<KEVENT>(h, ObjectKind::Event);
    if (!e) return 0;
    pulse_event(e.get());
    return 1;
}
uint64_t NTAPI CreateSemaphoreA(void *, LONG initial, LONG maximum, const char *name) {
    if (maximum <= 0 || initial < 0 || initial > maximum) return fail(ERROR_INVALID_PARAMETER), 0;
    return create_object<KSEMAPHORE>(ObjectKind::Semaphore, name,
                                     [&](KSEMAPHORE *s) { init_semaphore(s, initial, maximum); });
}
uint64_t NTAPI CreateSemaphoreW(void *a, LONG initial, LONG maximum, const WCHAR *name) {
    return CreateSemaphoreA(a, initial, maximum, name != nullptr ? narrow_z(name).c_str() : nullptr);
}
BOOL NTAPI ReleaseSemaphore(uint64_t h, LONG count, LONG *previous) {
    auto s = user_object<KSEMAPHORE>(h, ObjectKind::Semaphore);
    if (!s) return 0;
    if (count <= 0) return fail(ERROR_INVALID_PARAMETER);
    if (!release_semaphore(s.get(), count, previous)) return fail(ERROR_TOO_MANY_POSTS);
    return 1;
}
uint64_t NTAPI CreateMutexA(void *, BOOL owned, const char *name) {
    return create_object<KMUTEX>(ObjectKind::Mutant, name,
                                 [&](KMUTEX *m) { init_mutex(m, owned ? current() : nullptr); });
}
uint64_t NTAPI CreateMutexW(void *a, BOOL owned, const WCHAR *name) {
    return CreateMutexA(a, owned, name != nullptr ? narrow_z(name).c_str() : nullptr);
}
BOOL NTAPI ReleaseMutex(uint64_t h) {
    auto m = user_object<KMUTEX>(h, ObjectKind::Mutant);
    if (!m) return 0;
    NTSTATUS s = release_mutex(m.get(), nullptr);
    return nt_success(s) ? 1 : fail_status(s);
}
uint64_t NTAPI CreateWaitableTimerA(void *, BOOL manual, const char *name) {
    return create_object<KTIMER>(ObjectKind::Timer, name, [&](KTIMER *t) { init_timer(t, !manual); });
}
BOOL NTAPI SetWaitableTimer(uint64_t h, const int64_t *due, LONG period, void *, void *, BOOL) {
    auto t = user_object<KTIMER>(h, ObjectKind::Timer);
    if (!t) return 0;
    set_timer(t.get(), *due, period, nullptr);
    return 1;
}
BOOL NTAPI CancelWaitableTimer(uint64_t h) {
    auto t = user_object<KTIMER>(h, ObjectKind::Timer);
    if (!t) return 0;
    cancel_timer(t.get());
    return 1;
}

// ---- handles
BOOL NTAPI CloseHandle(uint64_t h) {
    if (h == CURRENT_PROCESS || h == CURRENT_THREAD) return 1;
    if (h >= INVALID_HANDLE - 16) return 1;  // console
    NTSTATUS s = current()->process->handles.close(h, current()->process);
    return nt_success(s) ? 1 : fail_status(s);
}
BOOL NTAPI DuplicateHandle(uint64_t from, uint64_t h, uint64_t to, uint64_t *out, DWORD, BOOL, DWORD options) {
    auto source = user_object<Process>(from, ObjectKind::Process);
    auto target = source ? user_object<Process>(to, ObjectKind::Process) : nullptr;
    if (!target) return 0;
    void *body;
    NTSTATUS s = STATUS_SUCCESS;
    if (h == CURRENT_THREAD || h == CURRENT_PROCESS) {
        body = h == CURRENT_THREAD ? static_cast<void *>(current()) : current()->process;
        object_reference(body);
    } else {
        body = source->handles.reference(h, ObjectKind::Any, &s);
        if (body == nullptr) return fail_status(s);
    }
    if (target->exiting) {
        object_release(body);
        return fail(ERROR_ACCESS_DENIED);
    }
    if (out != nullptr) *out = target->handles.insert(body);
    object_release(body);
    if (options & 1) source->handles.close(h, source.get());
    return 1;
}
BOOL NTAPI GetHandleInformation(uint64_t h, DWORD *flags) {
    auto o = user_object<void>(h, ObjectKind::Any);
    *flags = 0;
    return o != nullptr;
}
BOOL NTAPI SetHandleInformation(uint64_t h, DWORD, DWORD) {
    return user_object<void>(h, ObjectKind::Any) != nullptr;
}

// ---- threads
uint64_t NTAPI CreateThread(void *, uint64_t stack, uint64_t start, uint64_t argument, DWORD flags, DWORD *id) {
    if (should_fail_in_library(Fail::Thread)) return fail(ERROR_NOT_ENOUGH_MEMORY), 0;
    Thread *t = create_thread(current()->process, start, argument, stack != 0 ? stack : 1 << 20, false);
    if (t == nullptr) return fail(ERROR_NOT_ENOUGH_MEMORY), 0;
    if (id != nullptr) *id = t->id;
    if (flags & 4) t->suspend_count = 1;
    uint64_t h = current()->process->handles.insert(t);
    start_thread(t);
    object_release(t);
    return h;
}
void NTAPI ExitThread(DWORD code) {
    notify_thread(current()->process, 3);
    exit_current_thread(code);
}
BOOL NTAPI TerminateThread(uint64_t h, DWORD code) {
    auto t = user_object<Thread>(h, ObjectKind::Thread);
    if (!t) return 0;
    terminate_thread(t.get(), code);
    if (t.get() == current()) {
        Thread *self = t.release();
        object_release(self);
        check_termination();
    }
    return 1;
}
DWORD NTAPI ResumeThread(uint64_t h) {
    auto t = user_object<Thread>(h, ObjectKind::Thread);
    if (!t) return 0xffffffff;
    int old = t->suspend_count;
    if (old > 0 && --t->suspend_count == 0) {
        t->resume_word.store(1);
        futex_wake(&t->resume_word, 1);
    }
    return static_cast<DWORD>(old);
}
DWORD NTAPI SuspendThread(uint64_t h) {
    auto t = user_object<Thread>(h, ObjectKind::Thread);
    if (!t) return 0xffffffff;
    t->resume_word.store(0);
    int old = t->suspend_count++;
    terminate_nudge(t.get());
    return static_cast<DWORD>(old);
}
DWORD NTAPI GetCurrentThreadId() {
    return current()->id;
}
DWORD NTAPI GetCurrentProcessId() {
    return current()->process->id;
}
uint64_t NTAPI GetCurrentThread() {
    return CURRENT_THREAD;
}
uint64_t NTAPI GetCurrentProcess() {
    return CURRENT_PROCESS;
}
DWORD NTAPI GetThreadId(uint64_t h) {
    auto t = user_object<Thread>(h, ObjectKind::Thread);
    return t ? t->id : 0;
}
DWORD NTAPI GetProcessId(uint64_t h) {
    auto p = user_object<Process>(h, ObjectKind::Process);
    return p ? p->id : 0;
}
BOOL NTAPI GetExitCodeThread(uint64_t h, DWORD *code) {
    auto t = user_object<Thread>(h, ObjectKind::Thread);
    if (!t) return 0;
    *code = t->header.SignalState != 0 ? t->exit_code : 259;
    return 1;
}
BOOL NTAPI GetExitCodeProcess(uint64_t h, DWORD *code) {
    auto p = user_object<Process>(h, ObjectKind::Process);
    if (!p) return 0;
    *code = p->header.SignalState != 0 ? p->exit_code : 259;
    return 1;
}
BOOL NTAPI SetThreadPriority(uint64_t h, int priority) {
    auto t = user_object<Thread>(h, ObjectKind::Thread);
    if (t) t->priority = priority;
    return t != nullptr;
}
int NTAPI GetThreadPriority(uint64_t h) {
    auto t = user_object<Thread>(h, ObjectKind::Thread);
    return t ? t->priority : 0x7fffffff;
}
uint64_t NTAPI SetThreadAffinityMask(uint64_t, uint64_t) {
    return 1;
}
BOOL NTAPI SetPriorityClass(uint64_t, DWORD) {
    return 1;
}
BOOL NTAPI GetThreadContext(uint64_t, CONTEXT *) {
    return fail(ERROR_NOT_SUPPORTED);
}
BOOL NTAPI SetThreadContext(uint64_t, const CONTEXT *) {
    return fail(ERROR_NOT_SUPPORTED);
}

uint64_t NTAPI OpenProcess(DWORD, BOOL, DWORD id) {
    Process *p = process_by_id(id);
    if (p == nullptr) return fail(ERROR_INVALID_PARAMETER), 0;
    uint64_t h = current()->process->handles.insert(p);
    object_release(p);
    return h;
}
BOOL NTAPI TerminateProcess(uint64_t h, DWORD code) {
    auto p = user_object<Process>(h, ObjectKind::Process);
    if (!p) return 0;
    Process *raw = p.get();
    if (raw == current()->process) p.reset();
    terminate_process(raw, code);
    return 1;
}
struct ProcessInformation {
    uint64_t process, thread;
    DWORD process_id, thread_id;
};
BOOL create_process_from(const std::string &application, const std::string &line, DWORD flags,
                         ProcessInformation *out) {
    std::string path = application;
    if (path.empty()) {
        size_t begin = line.empty() || line[0] != '"' ? 0 : 1;
        path = line.substr(begin, line.find(begin == 1 ? '"' : ' ', begin) - begin);
    }
    for (char &c : path)
        if (c == '\\') c = '/';
    if (access(path.c_str(), R_OK) != 0 && access((path + ".exe").c_str(), R_OK) == 0) path += ".exe";
    ProgramMissing missing;
    Thread *t = nullptr;
    Process *p = create_process(path, line.empty() ? path : line, &missing, &t);
    if (p == nullptr) {
        if (!missing.imports.empty()) report_missing_imports(path, missing.imports);
        return fail(access(path.c_str(), R_OK) != 0 ? ERROR_FILE_NOT_FOUND : DWORD{193});
    }
    out->process = current()->process->handles.insert(p);
    out->thread = current()->process->handles.insert(t);
    out->process_id = p->id;
    out->thread_id = t->id;
    if (flags & 4) t->suspend_count = 1;
    start_thread(t);
    object_release(t);
    object_release(p);
    return 1;
}
BOOL NTAPI CreateProcessA(const char *application, char *line, void *, void *, BOOL, DWORD flags, void *, const char *,
                          void *, ProcessInformation *out) {
    return create_process_from(application != nullptr ? application : "", line != nullptr ? line : "", flags, out);
}
BOOL NTAPI CreateProcessW(const WCHAR *application, WCHAR *line, void *, void *, BOOL, DWORD flags, void *,
                          const WCHAR *, void *, ProcessInformation *out) {
    return create_process_from(application != nullptr ? narrow_z(application) : "",
                               line != nullptr ? narrow_z(line) : "", flags, out);
}

const Import imports[] = {
    FN(WaitForSingleObject),
    FN(WaitForSingleObjectEx),
    FN(WaitForMultipleObjects),
    FN(WaitForMultipleObjectsEx),
    FN(SignalObjectAndWait),
    FN(Sleep),
    FN(SleepEx),
    FN(SwitchToThread),
    FN(CreateEventA),
    FN(CreateEventW),
    FN(OpenEventA),
    FN(SetEvent),
    FN(ResetEvent),
    FN(PulseEvent),
    FN(CreateSemaphoreA),
    FN(CreateSemaphoreW),
    FN(ReleaseSemaphore),
    FN(CreateMutexA),
    FN(CreateMutexW),
    FN(ReleaseMutex),
    FN(CreateWaitableTimerA),
    FN(SetWaitableTimer),
    FN(CancelWaitableTimer),
    FN(CloseHandle),
    FN(DuplicateHandle),
    FN(GetHandleInformation),
    FN(SetHandleInformation),
    FN(CreateThread),
    FN(ExitThread),
    FN(TerminateThread),
    FN(ResumeThread),
    FN(SuspendThread),
    LEAF(GetCurrentThreadId),
    LEAF(GetCurrentProcessId),
    LEAF(GetCurrentThread),
    LEAF(GetCurrentProcess),
    FN(GetThreadId),
    FN(GetProcessId),
    FN(GetExitCodeThread),
    FN(GetExitCodeProcess),
    FN(SetThreadPriority),
    FN(GetThreadPriority),
    FN(SetThreadAffinityMask),
    FN(SetPriorityClass),
    FN(GetThreadContext),
    FN(SetThreadContext),
    FN(OpenProcess),
    FN(TerminateProcess),
    FN(CreateProcessA),
    FN(CreateProcessW),
};
const ImportTable registered("kernel32.dll", imports);

}  // namespace

}  // namespace nth
