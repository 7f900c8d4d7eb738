// SPDX-License-Identifier: GPL-2.0-or-later
//
// Driver, device and file objects: creation, stacking, opening and closing.
#include <algorithm>
#include <cstring>

#include "cpu.h"
#include "io.h"
#include "process.h"
#include "verifier.h"

namespace nth {

using namespace nt;

namespace {

constexpr uint32_t NAME_TAG = 0x6d614e49;

// Behind DeviceObjectExtension.
struct DeviceExtra {
    DEVICE_OBJECT *attached_to = nullptr;
    std::atomic<int> open_files{0};
    bool deleted = false;
    std::u16string name;
};

DeviceExtra *extra(DEVICE_OBJECT *d) {
    return static_cast<DeviceExtra *>(d->DeviceObjectExtension);
}

FutexLock g_device_lock;  // guards device lists and attachments

NTSTATUS NTAPI refuse(DEVICE_OBJECT *, IRP *irp) {
    irp->IoStatus.Status = STATUS_INVALID_DEVICE_REQUEST;
    irp->IoStatus.Information = 0;
    complete_irp(irp);
    return STATUS_INVALID_DEVICE_REQUEST;
}

void destroy_device(void *body) {
    auto *d = static_cast<DEVICE_OBJECT *>(body);
    DRIVER_OBJECT *driver = d->DriverObject;
    delete extra(d);
    object_release(driver);
}

void destroy_driver(void *body) {
    auto *d = static_cast<DRIVER_OBJECT *>(body);
    pool_free(d->DriverExtension, NAME_TAG, true);
    pool_free(d->DriverName.Buffer, NAME_TAG, true);
}

// IRP_MJ_CLOSE when the last reference goes.
void destroy_file(void *body) {
    auto *f = static_cast<FILE_OBJECT *>(body);
    DEVICE_OBJECT *device = f->DeviceObject;
    if (f->Flags & FO_HANDLE_CREATED) {
        // The request must not reference the object again: it is sent without one in the Request.
        in_kernel([&] {
            DEVICE_OBJECT *top = top_of_stack(device);
            IRP *irp = begin_system_irp(top, IRP_MJ_CLOSE, 0, STATUS_SUCCESS);
            if (irp == nullptr) host_bug("no kernel memory to close a file");
            // Keep the count up while the driver sees it.
            object_header(f)->references = 1000;
            next_location(irp)->FileObject = f;
            irp->Tail.OriginalFileObject = f;
            finish_system_irp(top, irp, nullptr);
            if (object_header(f)->references != 1000)
                bugcheck(0x18, "REFERENCE_BY_POINTER",
                         "the driver kept a reference to file object %p beyond IRP_MJ_CLOSE", static_cast<void *>(f));
            object_header(f)->references = 0;
            object_release(top);
            return 0;
        });
    }
    extra(device)->open_files--;
    if (f->FileName.Buffer != nullptr) pool_free(f->FileName.Buffer, NAME_TAG, true);
    object_release(device);
}

// IRP_MJ_CLEANUP when the last handle goes, in the context of the process that closes it.
void on_last_handle(void *body, Process *) {
    auto *f = static_cast<FILE_OBJECT *>(body);
    if ((f->Flags & FO_HANDLE_CREATED) == 0) return;
    in_kernel([&] {
        // The thread's own requests on this file end first.
        DEVICE_OBJECT *top = top_of_stack(f->DeviceObject);
        IRP *irp = begin_system_irp(top, IRP_MJ_CLEANUP, 0, STATUS_SUCCESS);
        if (irp == nullptr) host_bug("no kernel memory to clean up a file");
        next_location(irp)->FileObject = f;
        irp->Tail.OriginalFileObject = f;
        finish_system_irp(top, irp, nullptr);
        f->Flags |= FO_CLEANUP_COMPLETE;
        object_release(top);
        return 0;
    });
}

WCHAR *copy_name(const std::u16string &s) {
    auto *p = static_cast<WCHAR *>(pool_allocate(s.size() * 2 + 2, NAME_TAG, false));
    if (p != nullptr) memcpy(p, s.c_str(), s.size() * 2 + 2);
    return p;
}

}  // namespace

void start_io_manager() {
    g_on_last_file_handle = on_last_handle;
}

DRIVER_OBJECT *create_driver(const std::string &name, uint64_t image_base, uint64_t image_size) {
    auto *d = static_cast<DRIVER_OBJECT *>(object_allocate(ObjectKind::Driver, sizeof(DRIVER_OBJECT), destroy_driver));
    auto *e = static_cast<DRIVER_EXTENSION *>(pool_allocate(sizeof(DRIVER_EXTENSION), NAME_TAG, false));
    if (d == nullptr || e == nullptr) host_bug("no kernel memory for a driver object");
    memset(e, 0, sizeof *e);
    d->Type = 4;
    d->Size = sizeof(DRIVER_OBJECT);
    d->DriverStart = reinterpret_cast<void *>(image_base);
    d->DriverSize = static_cast<ULONG>(image_size);
    d->DriverExtension = e;
    e->DriverObject = d;
    std::u16string full = u"\\Driver\\" + widen(name);
    d->DriverName.Buffer = copy_name(full);
    d->DriverName.Length = static_cast<USHORT>(full.size() * 2);
    d->DriverName.MaximumLength = static_cast<USHORT>(full.size() * 2 + 2);
    for (auto &m : d->MajorFunction) m = refuse;
    return d;
}

NTSTATUS create_device(DRIVER_OBJECT *driver, uint32_t extension_size, const UNICODE_STRING *name, uint32_t type,
                       uint32_t characteristics, bool exclusive, DEVICE_OBJECT **out) {
    // The extension starts where it does on Windows: behind the object, on a 16-byte boundary.
    uint64_t at = (sizeof(DEVICE_OBJECT) + 15) & ~uint64_t{15};
    std::u16string full;
    if (name != nullptr && name->Length != 0) full.assign(name->Buffer, name->Length / 2);
    void *body = object_allocate(ObjectKind::Device, at + extension_size, destroy_device);
    if (body == nullptr) return STATUS_INSUFFICIENT_RESOURCES;
    auto *d = static_cast<DEVICE_OBJECT *>(body);
    auto *x = new DeviceExtra;
    x->name = full;
    d->Type = 3;
    d->Size = static_cast<USHORT>(sizeof(DEVICE_OBJECT) + extension_size);
    d->DriverObject = driver;
    d->Flags = DO_DEVICE_INITIALIZING | (exclusive ? ULONG{DO_EXCLUSIVE} : 0);
    d->Characteristics = characteristics;
    d->DeviceType = type;
    d->StackSize = 1;
    d->DeviceExtension = extension_size != 0 ? static_cast<uint8_t *>(body) + at : nullptr;
    d->DeviceObjectExtension = x;
    init_event(&d->DeviceLock, true, true);
    object_reference(driver);
    if (!full.empty() && !name_space().insert(full, d)) {
        object_release(d);
        return STATUS_OBJECT_NAME_COLLISION;
    }
    Locked l(g_device_lock);
    d->NextDevice = driver->DeviceObject;
    driver->DeviceObject = d;
    *out = d;
    return STATUS_SUCCESS;
}

void delete_device(DEVICE_OBJECT *d) {
    if (object_kind(d) != ObjectKind::Device || extra(d)->deleted)
        bugcheck(0xc9, "DRIVER_VERIFIER_IOMANAGER_VIOLATION", "IoDeleteDevice: %p was deleted before, or is no device",
                 (void *)d);
    {
        Locked l(g_device_lock);
        if (d->AttachedDevice != nullptr)
            bugcheck(0xc9, "DRIVER_VERIFIER_IOMANAGER_VIOLATION",
                     "IoDeleteDevice: another device is still attached to %p", (void *)d);
        if (extra(d)->attached_to != nullptr)
            bugcheck(0xc9, "DRIVER_VERIFIER_IOMANAGER_VIOLATION",
                     "IoDeleteDevice: %p was not detached from the stack first", (void *)d);
        extra(d)->deleted = true;
        for (DEVICE_OBJECT **p = &d->DriverObject->DeviceObject; *p != nullptr; p = &(*p)->NextDevice)
            if (*p == d) {
                *p = d->NextDevice;
                break;
            }
    }
    if (!extra(d)->name.empty()) name_space().remove(extra(d)->name);
    object_release(d);
}

DEVICE_OBJECT *attach_device(DEVICE_OBJECT *source, DEVICE_OBJECT *target) {
    Locked l(g_device_lock);
    DEVICE_OBJECT *top = target;
    while (top->AttachedDevice != nullptr) top = top->AttachedDevice;
    top->AttachedDevice = source;
    extra(source)->attached_to = top;
    source->StackSize = static_cast<CCHAR>(top->StackSize + 1);
    source->AlignmentRequirement = top->AlignmentRequirement;
    return top;
}

void detach_device(DEVICE_OBJECT *target) {
    Locked l(g_device_lock);
    if (target->AttachedDevice == nullptr)
        bugcheck(0xc9, "DRIVER_VERIFIER_IOMANAGER_VIOLATION", "IoDetachDevice: nothing is attached to %p",
                 (void *)target);
    extra(target->AttachedDevice)->attached_to = nullptr;
    target->AttachedDevice = nullptr;
}

DEVICE_OBJECT *top_of_stack(DEVICE_OBJECT *d) {
    Locked l(g_device_lock);
    while (d->AttachedDevice != nullptr) d = d->AttachedDevice;
    object_reference(d);
    return d;
}

DEVICE_OBJECT *lower_device(DEVICE_OBJECT *d) {
    Locked l(g_device_lock);
    return extra(d)->attached_to;
}

NTSTATUS io_create_file(Process *p, const std::u16string &name, bool synchronous, uint32_t access, uint64_t *handle) {
    std::u16string rest;
    void *body = name_space().resolve(name, &rest);
    if (body == nullptr) return STATUS_OBJECT_NAME_NOT_FOUND;
    if (object_kind(body) != ObjectKind::Device) {
        object_release(body);
        return STATUS_OBJECT_TYPE_MISMATCH;
    }
    auto *device = static_cast<DEVICE_OBJECT *>(body);
    if (device->Flags & DO_DEVICE_INITIALIZING) {
        if (g_verifier) note("open of a device whose DO_DEVICE_INITIALIZING flag was never cleared: refused");
        object_release(device);
        return STATUS_NO_SUCH_DEVICE;
    }
    if (extra(device)->open_files++ > 0 && (device->Flags & DO_EXCLUSIVE)) {
        extra(device)->open_files--;
        object_release(device);
        return STATUS_ACCESS_DENIED;
    }
    auto *f = static_cast<FILE_OBJECT *>(object_allocate(ObjectKind::File, sizeof(FILE_OBJECT), destroy_file));
    if (f == nullptr) {
        extra(device)->open_files--;
        object_release(device);
        return STATUS_INSUFFICIENT_RESOURCES;
    }
    f->Type = 5;
    f->Size = sizeof(FILE_OBJECT);
    f->DeviceObject = device;  // with the reference of resolve()
    f->Flags = synchronous ? uint32_t{FO_SYNCHRONOUS_IO} : 0;
    f->ReadAccess = (access & 0x80000001) != 0;
    f->WriteAccess = (access & 0x40000002) != 0;
    init_event(&f->Event, false, false);
    init_event(&f->Lock, true, true);
    list_init(&f->IrpList);
    if (!rest.empty()) {
        f->FileName.Buffer = copy_name(rest);
        f->FileName.Length = static_cast<USHORT>(rest.size() * 2);
        f->FileName.MaximumLength = static_cast<USHORT>(rest.size() * 2 + 2);
    }
    DEVICE_OBJECT *top = top_of_stack(device);
    struct SecurityContext {
        void *qos, *access_state;
        uint32_t desired, options;
    } security{nullptr, nullptr, access, 0};
    NTSTATUS s = send_irp(top, IRP_MJ_CREATE, 0, STATUS_SUCCESS, nullptr, [&](IRP *irp, IO_STACK_LOCATION *sl) {
        irp->RequestorMode = UserMode;
        sl->FileObject = f;
        irp->Tail.OriginalFileObject = f;
        sl->Parameters.Create.SecurityContext = &security;
        sl->Parameters.Create.Options = (1u << 24) | (synchronous ? 0x20 : 0);  // FILE_OPEN
        sl->Parameters.Create.ShareAccess = 3;
    });
    object_release(top);
    if (nt_success(s)) {
        f->Flags |= FO_HANDLE_CREATED;
        *handle = p->handles.insert(f);
    }
    object_release(f);
    return s;
}

}  // namespace nth
