// SPDX-License-Identifier: GPL-2.0-or-later
//
// ntoskrnl.exe: Ob, Ps, Se and Zw: objects and handles, processes, system threads, the driver's registry key.
#include <cstring>
#include <map>
#include <variant>

#include "cpu.h"
#include "exception.h"
#include "imports.h"
#include "pe_image.h"
#include "process.h"
#include "registry.h"
#include "user_access.h"
#include "verifier.h"

namespace nth {

using namespace nt;

namespace {

// Object types: only their addresses and identity matter.
struct ObjectType {
    ObjectKind kind;
};
ObjectType g_event{ObjectKind::Event}, g_semaphore{ObjectKind::Semaphore}, g_file{ObjectKind::File},
    g_thread{ObjectKind::Thread}, g_process{ObjectKind::Process}, g_mutant{ObjectKind::Mutant},
    g_device{ObjectKind::Device}, g_driver{ObjectKind::Driver};
ObjectType *ExEventObjectType = &g_event, *ExSemaphoreObjectType = &g_semaphore, *IoFileObjectType = &g_file,
           *PsThreadType = &g_thread, *PsProcessType = &g_process, *ExMutantObjectType = &g_mutant,
           *IoDeviceObjectType = &g_device, *IoDriverObjectType = &g_driver;
Process *PsInitialSystemProcess_;

constexpr uint64_t KERNEL_HANDLE = 0x80000000;  // as in NT: kernel handles have the top bits set
HandleTable &table_of(uint64_t *handle) {
    if (static_cast<int64_t>(*handle) < 0) {
        *handle &= ~(uint64_t{0xffffffff} << 32 | KERNEL_HANDLE);
        return system_process()->handles;
    }
    return current_process()->handles;
}
uint64_t insert_handle(void *body, ULONG attributes) {
    if (attributes & 0x200) return system_process()->handles.insert(body) | uint64_t{0xffffffff} << 32 | KERNEL_HANDLE;
    return current_process()->handles.insert(body);
}

NTSTATUS NTAPI ObReferenceObjectByHandle(uint64_t handle, ULONG, ObjectType *type, CCHAR mode, void **out, void *) {
    require_irql(PASSIVE_LEVEL, "ObReferenceObjectByHandle");
    if (should_fail(Fail::Event) && type == &g_event) return STATUS_INSUFFICIENT_RESOURCES;
    *out = nullptr;
    void *body = nullptr;
    if (handle == ~uint64_t{0} || handle == ~uint64_t{1}) {
        body = handle == ~uint64_t{0} ? static_cast<void *>(current_process()) : current();
        if (type != nullptr && type->kind != object_kind(body)) return STATUS_OBJECT_TYPE_MISMATCH;
        object_reference(body);
    } else {
        if (mode == UserMode && static_cast<int64_t>(handle) < 0) return STATUS_INVALID_HANDLE;
        NTSTATUS s;
        body = table_of(&handle).reference(handle, type != nullptr ? type->kind : ObjectKind::Any, &s);
        if (body == nullptr) return s;
    }
    *out = body;
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI ObReferenceObjectByPointer(void *body, ULONG, ObjectType *type, CCHAR) {
    if (type != nullptr && type->kind != object_kind(body)) return STATUS_OBJECT_TYPE_MISMATCH;
    object_reference(body);
    return STATUS_SUCCESS;
}
LONG_PTR NTAPI ObfReferenceObject(void *body) {
    require_irql(DISPATCH_LEVEL, "ObReferenceObject");
    object_reference(body);
    return 1;
}
LONG_PTR NTAPI ObfDereferenceObject(void *body) {
    require_irql(DISPATCH_LEVEL, "ObDereferenceObject");
    object_release(body);
    return 1;
}
NTSTATUS NTAPI ObOpenObjectByPointer(void *body, ULONG attributes, void *, ULONG, ObjectType *type, CCHAR,
                                     uint64_t *out) {
    if (type != nullptr && type->kind != object_kind(body)) return STATUS_OBJECT_TYPE_MISMATCH;
    *out = insert_handle(body, attributes);
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI ZwClose(uint64_t handle) {
    require_irql(PASSIVE_LEVEL, "ZwClose");
    uint64_t h = handle;
    HandleTable &t = table_of(&h);
    return t.close(h, current_process());
}

// ---- processes and threads
Process *NTAPI IoGetCurrentProcess() {
    return current_process();
}
uint64_t NTAPI PsGetCurrentProcessId() {
    return current()->process->id;
}
uint64_t NTAPI PsGetCurrentThreadId() {
    return current()->id;
}
uint64_t NTAPI PsGetProcessId(Process *p) {
    return p->id;
}
uint64_t NTAPI PsGetThreadId(Thread *t) {
    return t->id;
}
Process *NTAPI IoThreadToProcess(Thread *t) {
    return t->process;
}
NTSTATUS NTAPI PsLookupProcessByProcessId(uint64_t id, Process **out) {
    *out = process_by_id(static_cast<uint32_t>(id));
    return *out != nullptr ? STATUS_SUCCESS : STATUS_INVALID_CID;
}
NTSTATUS NTAPI PsSetCreateProcessNotifyRoutine(ProcessNotify *routine, BOOLEAN remove) {
    require_irql(PASSIVE_LEVEL, "PsSetCreateProcessNotifyRoutine");
    bool ok = remove ? remove_process_notify(routine) : add_process_notify(routine);
    return ok ? STATUS_SUCCESS : STATUS_INVALID_PARAMETER;
}
NTSTATUS NTAPI PsCreateSystemThread(uint64_t *handle, ULONG, OBJECT_ATTRIBUTES *, uint64_t, void *, uint64_t start,
                                    uint64_t context) {
    require_irql(PASSIVE_LEVEL, "PsCreateSystemThread");
    if (should_fail(Fail::Thread)) return STATUS_INSUFFICIENT_RESOURCES;
    Thread *t = create_thread(system_process(), start, context, 0, true);
    if (t == nullptr) return STATUS_INSUFFICIENT_RESOURCES;
    *handle = insert_handle(t, 0x200);
    start_thread(t);
    object_release(t);
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI PsTerminateSystemThread(NTSTATUS status) {
    Thread *t = current();
    if (!t->is_system || t->start == 0) return STATUS_INVALID_PARAMETER;
    if (t->irql != PASSIVE_LEVEL)
        bugcheck(0x0a, "IRQL_NOT_LESS_OR_EQUAL", "PsTerminateSystemThread at IRQL %u", t->irql);
    exit_current_thread(static_cast<uint32_t>(status));
}
CCHAR NTAPI ExGetPreviousMode() {
    return current()->is_system ? KernelMode : UserMode;
}
BOOLEAN NTAPI SeSinglePrivilegeCheck(uint64_t, CCHAR) {
    return 1;
}
BOOLEAN NTAPI PsGetVersion(ULONG *major, ULONG *minor, ULONG *build, UNICODE_STRING *) {
    if (major != nullptr) *major = 5;
    if (minor != nullptr) *minor = 2;
    if (build != nullptr) *build = 3790;
    return 0;
}
NTSTATUS NTAPI RtlGetVersion(ULONG *v) {  // RTL_OSVERSIONINFOW
    v[1] = 5;
    v[2] = 2;
    v[3] = 3790;
    v[4] = 2;
    return STATUS_SUCCESS;
}

// ---- events by name and handle
NTSTATUS NTAPI ZwCreateEvent(uint64_t *handle, ULONG, OBJECT_ATTRIBUTES *a, int type, BOOLEAN state) {
    auto *e = object_create<KEVENT>(ObjectKind::Event);
    if (e == nullptr) return STATUS_INSUFFICIENT_RESOURCES;
    init_event(e, type == 1, state != 0);
    *handle = insert_handle(e, a != nullptr ? a->Attributes : 0);
    object_release(e);
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI ZwSetEvent(uint64_t handle, LONG *previous) {
    NTSTATUS s;
    auto *e = static_cast<KEVENT *>(table_of(&handle).reference(handle, ObjectKind::Event, &s));
    if (e == nullptr) return s;
    LONG old = set_event(e);
    if (previous != nullptr) *previous = old;
    object_release(e);
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI ZwWaitForSingleObject(uint64_t handle, BOOLEAN alertable, const int64_t *timeout) {
    NTSTATUS s;
    void *body = table_of(&handle).reference(handle, ObjectKind::Any, &s);
    if (body == nullptr) return s;
    s = wait_for_one(static_cast<DISPATCHER_HEADER *>(body), deadline_of(timeout), alertable);
    object_release(body);
    return s;
}

// ---- registry
struct KeyObject {
    std::string path;
};
std::string key_path(const OBJECT_ATTRIBUTES *a) {
    std::string path = a->ObjectName != nullptr ? narrow(a->ObjectName->Buffer, a->ObjectName->Length / 2) : "";
    if (a->RootDirectory == nullptr) return path;
    uint64_t h = reinterpret_cast<uint64_t>(a->RootDirectory);
    NTSTATUS s;
    auto *root = static_cast<KeyObject *>(table_of(&h).reference(h, ObjectKind::Key, &s));
    if (root == nullptr) return path;
    std::string full = root->path + (path.empty() ? "" : "\\" + path);
    object_release(root);
    return full;
}
uint64_t open_key(const std::string &path) {
    auto *k = object_create<KeyObject>(ObjectKind::Key);
    if (k == nullptr) return 0;
    k->path = path;
    uint64_t h = insert_handle(k, 0x200);
    object_release(k);
    return h;
}
NTSTATUS NTAPI ZwOpenKey(uint64_t *handle, ULONG, const OBJECT_ATTRIBUTES *a) {
    std::string path = key_path(a);
    if (!registry().has_key(path)) return STATUS_OBJECT_NAME_NOT_FOUND;
    *handle = open_key(path);
    return *handle != 0 ? STATUS_SUCCESS : STATUS_INSUFFICIENT_RESOURCES;
}
NTSTATUS NTAPI ZwCreateKey(uint64_t *handle, ULONG, const OBJECT_ATTRIBUTES *a, ULONG, UNICODE_STRING *, ULONG,
                           ULONG *disposition) {
    std::string path = key_path(a);
    if (disposition != nullptr) *disposition = registry().has_key(path) ? 2 : 1;
    registry().create_key(path);
    *handle = open_key(path);
    return *handle != 0 ? STATUS_SUCCESS : STATUS_INSUFFICIENT_RESOURCES;
}
NTSTATUS NTAPI IoOpenDeviceRegistryKey(DEVICE_OBJECT *, ULONG type, ULONG, uint64_t *handle) {
    require_irql(PASSIVE_LEVEL, "IoOpenDeviceRegistryKey");
    *handle = open_key(type == 1 ? DEVICE_KEY : DRIVER_KEY);
    return *handle != 0 ? STATUS_SUCCESS : STATUS_INSUFFICIENT_RESOURCES;
}
KeyObject *reference_key(uint64_t handle, NTSTATUS *s) {
    return static_cast<KeyObject *>(table_of(&handle).reference(handle, ObjectKind::Key, s));
}
NTSTATUS NTAPI ZwQueryValueKey(uint64_t handle, const UNICODE_STRING *name, int information, uint8_t *out, ULONG size,
                               ULONG *needed) {
    NTSTATUS s;
    KeyObject *k = reference_key(handle, &s);
    if (k == nullptr) return s;
    RegistryValue v;
    bool found = registry().query(k->path, narrow(name->Buffer, name->Length / 2), &v);
    object_release(k);
    if (!found) return STATUS_OBJECT_NAME_NOT_FOUND;
    // 1: full (with name), 2: partial, 0: basic
    ULONG head = information == 2 ? 12 : information == 1 ? 20 + name->Length : 12 + name->Length;
    if (information == 1) head = (head + 7) & ~7u;
    auto total = static_cast<ULONG>(head + (information == 0 ? 0 : v.data.size()));
    *needed = total;
    if (size < (information == 1 ? 20u : 12u)) return STATUS_BUFFER_TOO_SMALL;
    ULONG fields[5] = {0, v.type, 0, 0, 0};
    if (information == 2) {
        fields[2] = static_cast<ULONG>(v.data.size());
        memcpy(out, fields, 12);
    } else if (information == 1) {
        fields[2] = head;
        fields[3] = static_cast<ULONG>(v.data.size());
        fields[4] = name->Length;
        memcpy(out, fields, 20);
        if (size >= 20u + name->Length) memcpy(out + 20, name->Buffer, name->Length);
    } else {
        fields[2] = name->Length;
        memcpy(out, fields, 12);
        if (size >= total) memcpy(out + 12, name->Buffer, name->Length);
    }
    if (size < total) return STATUS_BUFFER_OVERFLOW;
    if (information != 0) memcpy(out + head, v.data.data(), v.data.size());
    return STATUS_SUCCESS;
}
NTSTATUS NTAPI ZwSetValueKey(uint64_t handle, const UNICODE_STRING *name, ULONG, ULONG type, const uint8_t *data,
                             ULONG size) {
    NTSTATUS s;
    KeyObject *k = reference_key(handle, &s);
    if (k == nullptr) return s;
    registry().set(k->path, narrow(name->Buffer, name->Length / 2), {type, std::vector<uint8_t>(data, data + size)});
    object_release(k);
    return STATUS_SUCCESS;
}

const Import imports[] = {
    DATA(ExEventObjectType),
    DATA(ExSemaphoreObjectType),
    DATA(IoFileObjectType),
    DATA(PsThreadType),
    DATA(PsProcessType),
    DATA(ExMutantObjectType),
    DATA(IoDeviceObjectType),
    DATA(IoDriverObjectType),
    DATA_AS("PsInitialSystemProcess", PsInitialSystemProcess_),
    FN(ObReferenceObjectByHandle),
    FN(ObReferenceObjectByPointer),
    FN(ObfReferenceObject),
    FN(ObfDereferenceObject),
    FN_AS("ObDereferenceObject", ObfDereferenceObject),
    FN(ObOpenObjectByPointer),
    FN(ZwClose),
    FN(IoGetCurrentProcess),
    FN_AS("PsGetCurrentProcess", IoGetCurrentProcess),
    FN(PsGetCurrentProcessId),
    FN(PsGetCurrentThreadId),
    FN(PsGetProcessId),
    FN(PsGetThreadId),
    FN(IoThreadToProcess),
    FN_AS("PsGetThreadProcess", IoThreadToProcess),
    FN(PsLookupProcessByProcessId),
    FN(PsSetCreateProcessNotifyRoutine),
    FN(PsCreateSystemThread),
    FN(PsTerminateSystemThread),
    FN(ExGetPreviousMode),
    FN(SeSinglePrivilegeCheck),
    FN(PsGetVersion),
    FN(RtlGetVersion),
    FN(ZwCreateEvent),
    FN(ZwSetEvent),
    FN(ZwWaitForSingleObject),
    FN(ZwOpenKey),
    FN(ZwCreateKey),
    FN(IoOpenDeviceRegistryKey),
    FN(ZwQueryValueKey),
    FN(ZwSetValueKey),
};
const ImportTable registered("ntoskrnl.exe", imports);

}  // namespace

void set_initial_system_process() {
    PsInitialSystemProcess_ = system_process();
}

}  // namespace nth
