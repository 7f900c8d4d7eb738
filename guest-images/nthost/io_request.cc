// SPDX-License-Identifier: GPL-2.0-or-later
//
// IRPs: allocation, sending, completion, cancellation, and the requests of user programs.
#include <algorithm>
#include <cstring>

#include "cpu.h"
#include "io.h"
#include "mdl.h"
#include "process.h"
#include "stack_trace.h"
#include "user_access.h"
#include "verifier.h"

namespace nth {

using namespace nt;

uint64_t g_cancel_lock;

namespace {

constexpr uint32_t IRP_TAG = 0x20707249, BUFFER_TAG = 0x20425649;
std::atomic<int32_t> g_irps{0};

// What stands behind an IRP that the I/O manager made: found through Tail.Spare.
struct Request {
    static constexpr uint64_t MAGIC = 0x7465757165527249;
    uint64_t magic = MAGIC;
    std::atomic<int> references{2};
    IRP *irp = nullptr;
    Process *process = nullptr;   // referenced
    Thread *thread = nullptr;     // referenced; its list holds the IRP
    FILE_OBJECT *file = nullptr;  // referenced, or null for system requests
    ControlRequest call{};
    KEVENT *event = nullptr;  // referenced
    void *buffer = nullptr;   // system buffer
    bool copy_out = false;    // METHOD_BUFFERED: the buffer goes back to the caller
    MDL *mdl = nullptr;       // locked for direct methods
    KEVENT done;
    FutexLock lock;  // guards the four below
    bool completed = false, marked_pending = false, returned_pending = false, returned = false;
    NTSTATUS status = 0;
    uint64_t information = 0;
    NTSTATUS returned_status = 0;
    std::string what;
};

Request *request_of(const IRP *irp) {
    auto *r = static_cast<Request *>(irp->Tail.Spare);
    return r != nullptr && is_kernel_address(reinterpret_cast<uint64_t>(r)) && r->magic == Request::MAGIC ? r : nullptr;
}

void release_request(Request *r) {
    if (--r->references > 0) return;
    r->magic = 0;
    free_irp(r->irp);
    if (r->buffer != nullptr) pool_free(r->buffer, BUFFER_TAG, true);
    if (r->event != nullptr) object_release(r->event);
    if (r->file != nullptr) object_release(r->file);
    if (r->thread != nullptr) object_release(r->thread);
    object_release(r->process);
    r->~Request();
    pool_free(r, IRP_TAG, true);
}

Request *new_request(DEVICE_OBJECT *top, FILE_OBJECT *file) {
    IRP *irp = allocate_irp(top->StackSize, false);
    void *p = irp != nullptr ? pool_allocate(sizeof(Request), IRP_TAG, false) : nullptr;
    if (p == nullptr) {
        if (irp != nullptr) free_irp(irp);
        return nullptr;
    }
    auto *r = new (p) Request;
    r->irp = irp;
    irp->Tail.Spare = r;
    r->process = current()->process;
    object_reference(r->process);
    r->thread = current();
    object_reference(r->thread);
    if (file != nullptr) {
        r->file = file;
        object_reference(file);
        irp->Tail.OriginalFileObject = file;
    }
    irp->Tail.Thread = r->thread;
    init_event(&r->done, false, false);
    Locked l(r->thread->irp_lock);
    list_add_tail(&r->thread->irps, &irp->ThreadListEntry);
    return r;
}

[[noreturn]] void disagreement(Request *r, const char *text) {
    bugcheck(0xc9, "DRIVER_VERIFIER_IOMANAGER_VIOLATION", "%s: %s (status 0x%08X, IRP %p)", r->what.c_str(), text,
             uint32_t(r->returned_status), static_cast<void *>(r->irp));
}

// Called once both sides are known: what the dispatch routine returned, and how the IRP was completed.
void check_agreement(Request *r) {
    if (r->returned && r->returned_status == STATUS_PENDING && r->completed && !r->marked_pending)
        disagreement(r, "STATUS_PENDING was returned but the IRP was not marked pending");
    if (r->returned && r->returned_status != STATUS_PENDING && r->completed && r->marked_pending)
        disagreement(r, "the IRP was marked pending but STATUS_PENDING was not returned");
    if (r->returned && r->returned_status != STATUS_PENDING && !r->completed)
        disagreement(r, "the dispatch routine returned without completing the IRP or STATUS_PENDING");
}

// Results to user memory. Runs once, on the completing thread.
void deliver_results(Request *r, IRP *irp) {
    NTSTATUS status = irp->IoStatus.Status;
    uint64_t information = irp->IoStatus.Information;
    bool error = static_cast<uint32_t>(status) >> 30 == 3;
    if (status == STATUS_PENDING) disagreement(r, "the IRP was completed with STATUS_PENDING");
    const ControlRequest &c = r->call;
    if (!error && r->copy_out && c.output != 0 && information != 0) {
        if (information > c.output_length)
            bugcheck(0xc9, "DRIVER_VERIFIER_IOMANAGER_VIOLATION",
                     "%s: IoStatus.Information is %llu, the output buffer has %u bytes", r->what.c_str(),
                     (unsigned long long)information, c.output_length);
        if (!copy_to_user(c.output, r->buffer, information)) status = STATUS_ACCESS_VIOLATION;
    }
    if (r->mdl != nullptr) {
        unlock_mdl(r->mdl, "IoCompleteRequest");
        free_mdl(r->mdl);
        r->mdl = nullptr;
        irp->MdlAddress = nullptr;
    }
    r->status = status;
    r->information = information;
}

// The end of a request's IRP.
void finish_request(Request *r, IRP *irp) {
    deliver_results(r, irp);
    {
        Locked l(r->thread->irp_lock);
        list_remove(&irp->ThreadListEntry);
        list_init(&irp->ThreadListEntry);
    }
    {
        Locked l(r->lock);
        r->completed = true;
        r->marked_pending = irp->PendingReturned != 0;
        if (g_verifier) check_agreement(r);
    }
    // As in NT: an error that comes back at once is told by the return value alone.
    bool error = static_cast<uint32_t>(r->status) >> 30 == 3;
    if (r->call.iosb != 0 && (irp->PendingReturned || !error)) {
        uint64_t iosb[2] = {static_cast<uint64_t>(static_cast<uint32_t>(r->status)), r->information};
        copy_to_user(r->call.iosb, iosb, sizeof iosb);
    }
    if (r->file != nullptr && (irp->PendingReturned || !error)) {
        if (r->event != nullptr) set_event(r->event);
        else set_event(&r->file->Event);
    }
    set_event(&r->done);
    release_request(r);
}

// Sends the request and judges the answer. The caller still holds its reference.
NTSTATUS send_request(Request *r, DEVICE_OBJECT *top) {
    KIRQL before = current()->irql;
    NTSTATUS s = call_driver(top, r->irp);
    if (current()->irql != before)
        bugcheck(0xc9, "DRIVER_VERIFIER_IOMANAGER_VIOLATION",
                 "%s: the dispatch routine was called at IRQL %u and returned at %u", r->what.c_str(), before,
                 current()->irql);
    Locked l(r->lock);
    r->returned = true;
    r->returned_status = s;
    if (g_verifier) check_agreement(r);
    return s;
}

// Waits for the end of a request; breaks it off when the thread is asked to end.
NTSTATUS await_request(Request *r) {
    NTSTATUS s = wait_for_one(&r->done.Header, ~uint64_t{0}, !r->thread->exiting);
    if (s == STATUS_ALERTED) {
        cancel_irp(r->irp);
        if (wait_for_one(&r->done.Header, monotonic_ns() + 10'000'000'000ull) == STATUS_TIMEOUT)
            bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "%s: not completed within 10 s of its cancellation",
                     r->what.c_str());
    }
    return r->status;
}

std::string describe(const IO_STACK_LOCATION *sl) {
    char text[64];
    switch (sl->MajorFunction) {
        case IRP_MJ_CREATE: return "IRP_MJ_CREATE";
        case IRP_MJ_CLOSE: return "IRP_MJ_CLOSE";
        case IRP_MJ_CLEANUP: return "IRP_MJ_CLEANUP";
        case IRP_MJ_READ: return "IRP_MJ_READ";
        case IRP_MJ_WRITE: return "IRP_MJ_WRITE";
        case IRP_MJ_DEVICE_CONTROL:
            snprintf(text, sizeof text, "IRP_MJ_DEVICE_CONTROL 0x%08X", sl->Parameters.DeviceIoControl.IoControlCode);
            return text;
        case IRP_MJ_PNP: snprintf(text, sizeof text, "IRP_MJ_PNP minor %u", sl->MinorFunction); return text;
        case IRP_MJ_POWER: snprintf(text, sizeof text, "IRP_MJ_POWER minor %u", sl->MinorFunction); return text;
        default: snprintf(text, sizeof text, "IRP major 0x%02x", sl->MajorFunction); return text;
    }
}

}  // namespace

// ---- IRPs

IRP *allocate_irp(int stack_size, bool from_driver) {
    uint64_t bytes = sizeof(IRP) + uint64_t(stack_size) * sizeof(IO_STACK_LOCATION);
    void *p = pool_allocate(bytes, IRP_TAG, from_driver);
    if (p == nullptr) return nullptr;
    memset(p, 0, bytes);
    auto *irp = static_cast<IRP *>(p);
    irp->Type = 6;
    irp->Size = static_cast<USHORT>(bytes);
    irp->StackCount = static_cast<CCHAR>(stack_size);
    irp->CurrentLocation = static_cast<CCHAR>(stack_size + 1);
    irp->Tail.CurrentStackLocation = reinterpret_cast<IO_STACK_LOCATION *>(irp + 1) + stack_size;
    list_init(&irp->ThreadListEntry);
    g_irps++;
    return irp;
}

void free_irp(IRP *irp) {
    if (irp->Type != 6)
        bugcheck(0x44, "MULTIPLE_IRP_COMPLETE_REQUESTS", "IRP %p was freed twice, or is none", (void *)irp);
    irp->Type = 0;
    g_irps--;
    pool_free(irp, IRP_TAG, true);
}

unsigned outstanding_irps() {
    return static_cast<unsigned>(g_irps.load());
}

NTSTATUS call_driver(DEVICE_OBJECT *device, IRP *irp) {
    if (irp->Type != 6)
        bugcheck(0xc9, "DRIVER_VERIFIER_IOMANAGER_VIOLATION", "IoCallDriver with %p, which is no IRP", (void *)irp);
    if (--irp->CurrentLocation <= 0) bugcheck(0x35, "NO_MORE_IRP_STACK_LOCATIONS", "IRP %p", (void *)irp);
    IO_STACK_LOCATION *sl = --irp->Tail.CurrentStackLocation;
    sl->DeviceObject = device;
    unsigned major = std::min<unsigned>(sl->MajorFunction, IRP_MJ_MAXIMUM);
    return call_pe(device->DriverObject->MajorFunction[major], device, irp);
}

void complete_irp(IRP *irp) {
    if (irp->Type != 6 || irp->CurrentLocation > irp->StackCount + 1)
        bugcheck(0x44, "MULTIPLE_IRP_COMPLETE_REQUESTS", "IRP %p was completed twice", (void *)irp);
    if (current()->irql > DISPATCH_LEVEL)
        bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION", "IoCompleteRequest at IRQL %u", current()->irql);
    if (g_verifier && irp->CancelRoutine != nullptr && irp->CurrentLocation <= irp->StackCount)
        bugcheck(0xc9, "DRIVER_VERIFIER_IOMANAGER_VIOLATION", "IRP %p was completed with its cancel routine still set",
                 (void *)irp);
    while (irp->CurrentLocation <= irp->StackCount) {
        IO_STACK_LOCATION *sl = irp->Tail.CurrentStackLocation;
        irp->CurrentLocation++;
        irp->Tail.CurrentStackLocation++;
        irp->PendingReturned = (sl->Control & SL_PENDING_RETURNED) != 0;
        NTSTATUS status = irp->IoStatus.Status;
        bool wanted = (nt_success(status) && (sl->Control & SL_INVOKE_ON_SUCCESS)) ||
                      (!nt_success(status) && (sl->Control & SL_INVOKE_ON_ERROR)) ||
                      (irp->Cancel && (sl->Control & SL_INVOKE_ON_CANCEL));
        bool above = irp->CurrentLocation <= irp->StackCount;
        if (wanted && sl->CompletionRoutine != nullptr) {
            DEVICE_OBJECT *device = above ? current_location(irp)->DeviceObject : nullptr;
            NTSTATUS answer = call_pe(sl->CompletionRoutine, device, irp, sl->Context);
            if (answer == STATUS_MORE_PROCESSING_REQUIRED) return;
        } else if (irp->PendingReturned && above) {
            current_location(irp)->Control |= SL_PENDING_RETURNED;
        }
    }
    irp->CurrentLocation = static_cast<CCHAR>(irp->StackCount + 2);  // completed: a second time is noticed above
    if (Request *r = request_of(irp)) {
        finish_request(r, irp);
        return;
    }
    // Made by IoBuildDeviceIoControlRequest and its kin.
    if (irp->Flags & 0x10) {
        auto *user_buffer = static_cast<uint8_t *>(irp->UserBuffer);
        if ((irp->Flags & 0x40) && user_buffer != nullptr && nt_success(irp->IoStatus.Status))
            memcpy(user_buffer, irp->AssociatedIrp.SystemBuffer, irp->IoStatus.Information);
        pool_free(irp->AssociatedIrp.SystemBuffer, 0, false);
    }
    IO_STATUS_BLOCK *iosb = irp->UserIosb;
    KEVENT *event = irp->UserEvent;
    if (iosb == nullptr && event == nullptr)
        bugcheck(0xc9, "DRIVER_VERIFIER_IOMANAGER_VIOLATION",
                 "IRP %p, which a driver allocated, was completed without a completion routine that keeps it",
                 (void *)irp);
    if (iosb != nullptr) *iosb = irp->IoStatus;
    free_irp(irp);
    if (event != nullptr) set_event(event);
}

bool cancel_irp(IRP *irp) {
    KIRQL old = raise_irql(std::max(current()->irql, DISPATCH_LEVEL));
    acquire_spin_lock(&g_cancel_lock, "IoCancelIrp");
    irp->Cancel = 1;
    DRIVER_CANCEL *routine = __atomic_exchange_n(&irp->CancelRoutine, nullptr, __ATOMIC_ACQ_REL);
    if (routine == nullptr) {
        release_spin_lock(&g_cancel_lock, "IoCancelIrp");
        lower_irql(old);
        return false;
    }
    irp->CancelIrql = old;
    call_pe(routine, current_location(irp)->DeviceObject, irp);
    if (current()->irql != old)
        bugcheck(0xc9, "DRIVER_VERIFIER_IOMANAGER_VIOLATION",
                 "a cancel routine returned at IRQL %u: cancel spin lock not released?", current()->irql);
    return true;
}

// ---- the system's own IRPs

IRP *begin_system_irp(DEVICE_OBJECT *top, uint8_t major, uint8_t minor, NTSTATUS initial) {
    Request *r = new_request(top, nullptr);
    if (r == nullptr) return nullptr;
    IRP *irp = r->irp;
    irp->RequestorMode = KernelMode;
    irp->IoStatus.Status = initial;
    IO_STACK_LOCATION *sl = next_location(irp);
    sl->MajorFunction = major;
    sl->MinorFunction = minor;
    r->what = describe(sl);
    return irp;
}

NTSTATUS finish_system_irp(DEVICE_OBJECT *top, IRP *irp, uint64_t *information) {
    Request *r = request_of(irp);
    if (r->file == nullptr && next_location(irp)->FileObject != nullptr) {
        r->file = next_location(irp)->FileObject;
        object_reference(r->file);
    }
    NTSTATUS s = send_request(r, top);
    if (s == STATUS_PENDING) wait_for_one(&r->done.Header);
    s = r->status;
    if (information != nullptr) *information = r->information;
    release_request(r);
    return s;
}

// ---- requests of programs

static NTSTATUS prepare_buffers(Request *r, DEVICE_OBJECT *top) {
    const ControlRequest &c = r->call;
    IRP *irp = r->irp;
    unsigned method = c.major == IRP_MJ_DEVICE_CONTROL ? c.code & 3
                      : (top->Flags & DO_BUFFERED_IO)  ? 0
                      : (top->Flags & DO_DIRECT_IO)    ? 2
                                                       : 3;
    if (c.major == IRP_MJ_WRITE && method == 2) method = 1;
    irp->UserBuffer = reinterpret_cast<void *>(c.output);
    IO_STACK_LOCATION *sl = next_location(irp);
    if (method == 3) {
        if (c.major == IRP_MJ_DEVICE_CONTROL)
            sl->Parameters.DeviceIoControl.Type3InputBuffer = reinterpret_cast<void *>(c.input);
        else if (c.major == IRP_MJ_WRITE) irp->UserBuffer = reinterpret_cast<void *>(c.input);
        return STATUS_SUCCESS;
    }
    uint32_t input = method == 1 && c.major == IRP_MJ_WRITE ? 0 : c.input_length;
    uint32_t size = method == 0 ? std::max(input, c.output_length) : input;
    if (size != 0) {
        r->buffer = pool_allocate(size, BUFFER_TAG, false);
        if (r->buffer == nullptr) return STATUS_INSUFFICIENT_RESOURCES;
        if (g_verifier)
            memset(r->buffer, 0xcd, size);  // what the driver does not write must not reach the caller unnoticed
        if (input != 0 && !copy_from_user(r->buffer, c.input, input)) return STATUS_ACCESS_VIOLATION;
        irp->AssociatedIrp.SystemBuffer = r->buffer;
        r->copy_out = method == 0 && c.major != IRP_MJ_WRITE;
    }
    uint64_t address = c.major == IRP_MJ_WRITE ? c.input : c.output;
    uint32_t length = c.major == IRP_MJ_WRITE ? c.input_length : c.output_length;
    if (method != 0 && length != 0) {
        MDL *mdl = allocate_mdl(address, length);
        if (mdl == nullptr) return STATUS_INSUFFICIENT_RESOURCES;
        NTSTATUS s = lock_mdl(mdl, r->process, method == 2 ? LockOperation::Write : LockOperation::Read);
        if (!nt_success(s)) {
            free_mdl(mdl);
            return s;
        }
        r->mdl = irp->MdlAddress = mdl;
    }
    return STATUS_SUCCESS;
}

static void abandon_request(Request *r) {
    {
        Locked l(r->thread->irp_lock);
        list_remove(&r->irp->ThreadListEntry);
    }
    r->references = 1;
    release_request(r);
}

NTSTATUS io_control(const ControlRequest &c, uint64_t *information) {
    DEVICE_OBJECT *top = top_of_stack(c.file->DeviceObject);
    Request *r = new_request(top, c.file);
    if (r == nullptr) {
        object_release(top);
        return STATUS_INSUFFICIENT_RESOURCES;
    }
    IRP *irp = r->irp;
    r->call = c;
    irp->RequestorMode = UserMode;
    irp->UserIosb = reinterpret_cast<IO_STATUS_BLOCK *>(c.iosb);
    IO_STACK_LOCATION *sl = next_location(irp);
    sl->MajorFunction = c.major;
    sl->FileObject = c.file;
    if (c.major == IRP_MJ_DEVICE_CONTROL) {
        sl->Parameters.DeviceIoControl.OutputBufferLength = c.output_length;
        sl->Parameters.DeviceIoControl.InputBufferLength = c.input_length;
        sl->Parameters.DeviceIoControl.IoControlCode = c.code;
    } else {
        sl->Parameters.Read.Length = c.major == IRP_MJ_READ ? c.output_length : c.input_length;
        sl->Parameters.Read.ByteOffset = c.offset;
    }
    r->what = describe(sl);
    NTSTATUS s = prepare_buffers(r, top);
    if (!nt_success(s)) {
        abandon_request(r);
        object_release(top);
        return s;
    }
    if (c.event != nullptr) {
        object_reference(c.event);
        r->event = c.event;
        reset_event(c.event);
    } else {
        reset_event(&c.file->Event);
    }
    bool synchronous = (c.file->Flags & FO_SYNCHRONOUS_IO) != 0;
    if (synchronous) wait_for_one(&c.file->Lock.Header);
    s = send_request(r, top);
    if (s != STATUS_PENDING) {
        s = r->status;  // the copy to the caller may have failed
        if (information != nullptr) *information = r->information;
    } else if (synchronous) {
        s = await_request(r);
        if (information != nullptr) *information = r->information;
    }
    if (synchronous) set_event(&c.file->Lock);
    release_request(r);
    object_release(top);
    return s;
}

unsigned io_cancel(FILE_OBJECT *file, Thread *thread, uint64_t iosb) {
    std::vector<Request *> found;
    auto collect = [&](Thread *t) {
        Locked l(t->irp_lock);
        for (LIST_ENTRY *e = t->irps.Flink; e != &t->irps; e = e->Flink) {
            auto *irp = reinterpret_cast<IRP *>(reinterpret_cast<uint8_t *>(e) - offsetof(IRP, ThreadListEntry));
            Request *r = request_of(irp);
            if (r == nullptr || (file != nullptr && r->file != file) || (iosb != 0 && r->call.iosb != iosb)) continue;
            r->references++;
            found.push_back(r);
        }
    };
    if (thread != nullptr) {
        collect(thread);
    } else {
        std::vector<Thread *> all;
        {
            Locked l(current()->process->lock);
            all = current()->process->threads;
            for (Thread *t : all) object_reference(t);
        }
        for (Thread *t : all) {
            collect(t);
            object_release(t);
        }
    }
    for (Request *r : found) {
        cancel_irp(r->irp);
        release_request(r);
    }
    return static_cast<unsigned>(found.size());
}

void cancel_thread_irps(Thread *t) {
    uint64_t deadline = monotonic_ns() + 10'000'000'000ull;
    for (;;) {
        {
            Locked l(t->irp_lock);
            if (list_empty(&t->irps)) return;
        }
        io_cancel(nullptr, t, 0);
        Request *r = nullptr;
        {
            Locked l(t->irp_lock);
            if (list_empty(&t->irps)) return;
            r = request_of(
                reinterpret_cast<IRP *>(reinterpret_cast<uint8_t *>(t->irps.Flink) - offsetof(IRP, ThreadListEntry)));
            r->references++;
        }
        NTSTATUS s = wait_for_one(&r->done.Header, deadline);
        if (s == STATUS_TIMEOUT)
            bugcheck(0xc4, "DRIVER_VERIFIER_DETECTED_VIOLATION",
                     "thread %u ended, and %s was not completed within 10 s of its cancellation", t->id,
                     r->what.c_str());
        release_request(r);
    }
}

std::string describe_pending_irps(Thread *t) {
    Locked l(t->irp_lock);
    std::string out;
    for (LIST_ENTRY *e = t->irps.Flink; e != &t->irps; e = e->Flink) {
        Request *r =
            request_of(reinterpret_cast<IRP *>(reinterpret_cast<uint8_t *>(e) - offsetof(IRP, ThreadListEntry)));
        if (r != nullptr) out += (out.empty() ? "" : ", ") + r->what;
    }
    return out.empty() ? "no IRP is pending; is it in a wait inside the driver?" : "pending: " + out;
}

}  // namespace nth
