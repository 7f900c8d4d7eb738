// SPDX-License-Identifier: GPL-2.0-or-later
//
// io.h: the I/O manager: drivers, devices, file objects, IRPs and their completion, cancellation.
//
// Contract of a user request: the issuing thread and the IRP each hold a reference on the Request; whoever lets go last
// frees the IRP. Completion copies results to user memory of the issuing process at once (the address space is shared),
// on whatever thread completes. What the driver's dispatch routine returns must agree with what it did to the IRP: else
// bugcheck 0xC9.
#pragma once

#include <string>

#include "nt_status.h"
#include "object.h"

namespace nth {

class Process;
class Thread;

enum : uint32_t { FO_SYNCHRONOUS_IO = 0x2, FO_CLEANUP_COMPLETE = 0x4000, FO_HANDLE_CREATED = 0x40000 };

void start_io_manager();

// ---- user side
// name: NT path (\??\Name...). options: FILE_SYNCHRONOUS_IO when the handle is not for overlapped use.
nt::NTSTATUS io_create_file(Process *p, const std::u16string &name, bool synchronous, uint32_t access,
                            uint64_t *handle);

struct ControlRequest {
    nt::FILE_OBJECT *file;
    uint8_t major;  // IRP_MJ_DEVICE_CONTROL, IRP_MJ_READ, IRP_MJ_WRITE
    uint32_t code;
    uint64_t input;
    uint32_t input_length;
    uint64_t output;
    uint32_t output_length;
    int64_t offset;
    uint64_t iosb;      // user address: OVERLAPPED, or 0
    nt::KEVENT *event;  // referenced by the caller for the call; or null
};
// information: valid unless STATUS_PENDING.
nt::NTSTATUS io_control(const ControlRequest &r, uint64_t *information);
// Cancels the thread's requests on that file (thread null: everybody's; iosb 0: all). Returns how many there were.
unsigned io_cancel(nt::FILE_OBJECT *file, Thread *thread, uint64_t iosb);

void cancel_thread_irps(Thread *t);  // at thread end: cancels and waits
std::string describe_pending_irps(Thread *t);

// ---- driver side
nt::NTSTATUS call_driver(nt::DEVICE_OBJECT *device, nt::IRP *irp);
void complete_irp(nt::IRP *irp);
bool cancel_irp(nt::IRP *irp);
nt::IRP *allocate_irp(int stack_size, bool from_driver);
void free_irp(nt::IRP *irp);
inline nt::IO_STACK_LOCATION *current_location(nt::IRP *irp) {
    return irp->Tail.CurrentStackLocation;
}
inline nt::IO_STACK_LOCATION *next_location(nt::IRP *irp) {
    return irp->Tail.CurrentStackLocation - 1;
}

nt::DRIVER_OBJECT *create_driver(const std::string &name, uint64_t image_base, uint64_t image_size);
nt::NTSTATUS create_device(nt::DRIVER_OBJECT *driver, uint32_t extension_size, const nt::UNICODE_STRING *name,
                           uint32_t type, uint32_t characteristics, bool exclusive, nt::DEVICE_OBJECT **out);
void delete_device(nt::DEVICE_OBJECT *device);
nt::DEVICE_OBJECT *attach_device(nt::DEVICE_OBJECT *source, nt::DEVICE_OBJECT *target);
void detach_device(nt::DEVICE_OBJECT *target);
nt::DEVICE_OBJECT *top_of_stack(nt::DEVICE_OBJECT *device);  // referenced
nt::DEVICE_OBJECT *lower_device(nt::DEVICE_OBJECT *device);  // not referenced, or null

// Sends an IRP of the system's own down a stack and waits for it. The stack location is filled by `fill`.
template <class Fill>
nt::NTSTATUS send_irp(nt::DEVICE_OBJECT *top, uint8_t major, uint8_t minor, nt::NTSTATUS initial, uint64_t *information,
                      Fill fill);
nt::IRP *begin_system_irp(nt::DEVICE_OBJECT *top, uint8_t major, uint8_t minor, nt::NTSTATUS initial);
nt::NTSTATUS finish_system_irp(nt::DEVICE_OBJECT *top, nt::IRP *irp, uint64_t *information);

template <class Fill>
nt::NTSTATUS send_irp(nt::DEVICE_OBJECT *top, uint8_t major, uint8_t minor, nt::NTSTATUS initial, uint64_t *information,
                      Fill fill) {
    nt::IRP *irp = begin_system_irp(top, major, minor, initial);
    if (irp == nullptr) return nt::STATUS_INSUFFICIENT_RESOURCES;
    fill(irp, next_location(irp));
    return finish_system_irp(top, irp, information);
}

unsigned outstanding_irps();  // allocated and not freed, by anybody
size_t driver_symlinks();

extern uint64_t g_cancel_lock;

// Runs a process's tear-down when it was terminated from outside.
void queue_reaper(Process *p, uint32_t code);

}  // namespace nth
