// SPDX-License-Identifier: GPL-2.0-or-later
//
// events.cc: from the NIC's event queue to the process that waits. Events are not queued but noted on their object (bits,
// with the latest reason), so nothing here allocates and nothing can overflow, however slowly a process listens.
#include "context.h"

namespace sanproxy {

namespace {

// Under the device's lock. Fills the reply with what is ready; false if nothing is.
bool collect(Context &context, sanproxy_wait_events &reply) {
    uint32_t n = 0;
    if (context.own_events) {
        reply.events[n++] = {0, context.own_events, 0, 0, 0};
        context.own_events = 0;
    }
    while (n < SANPROXY_MAX_EVENTS && !IsListEmpty(&context.ready)) {
        Object *object = CONTAINING_RECORD(RemoveHeadList(&context.ready), Object, ready_link);
        reply.events[n++] = {object->id, object->events, object->cookie, object->reason, object->status};
        object->events = 0;
    }
    reply.count = n;
    return n != 0;
}

// Under the device's lock. The pended wait if it can be completed now, filled in; the caller completes it without the lock.
PIRP ready_wait(Context &context) {
    PIRP irp = context.wait;
    if (!irp || (!context.own_events && IsListEmpty(&context.ready))) return nullptr;
    if (!IoSetCancelRoutine(irp, nullptr)) return nullptr; // being cancelled: the cancel routine completes it
    context.wait = nullptr;
    auto *reply = static_cast<sanproxy_wait_events *>(irp->AssociatedIrp.SystemBuffer);
    collect(context, *reply);
    reply->header.result = SANPROXY_OK;
    return irp;
}

void complete_wait(PIRP irp) {
    if (!irp) return;
    irp->IoStatus.Status = STATUS_SUCCESS;
    irp->IoStatus.Information = sizeof(sanproxy_wait_events);
    IoCompleteRequest(irp, IO_NETWORK_INCREMENT);
}

void NTAPI wait_cancelled(PDEVICE_OBJECT fdo, PIRP irp) {
    IoReleaseCancelSpinLock(irp->CancelIrql);
    auto &context = *static_cast<Context *>(IoGetCurrentIrpStackLocation(irp)->FileObject->FsContext);
    {
        SpinGuard guard(device_of(fdo).lock);
        if (context.wait == irp) context.wait = nullptr;
    }
    irp->IoStatus.Status = STATUS_CANCELLED;
    irp->IoStatus.Information = 0;
    IoCompleteRequest(irp, IO_NO_INCREMENT);
}

// Notes events on an object; returns the wait that they complete.
PIRP note(Object *object, uint32_t events, uint32_t reason, uint32_t status) {
    if (object->events == 0) InsertTailList(&object->context->ready, &object->ready_link);
    object->events |= events;
    if (reason) object->reason = reason;
    if (status) object->status = status;
    return ready_wait(*object->context);
}

void queue_request(Listener &listener, const snic_eqe &event) {
    if (listener.count == listener.capacity) return; // the NIC keeps to the backlog
    listener.requests[listener.count++] = {event.request, event.private_len, event.peer_ip, event.local_ip,
                                           event.peer_port, event.local_port, false};
}

PIRP handle_object_event(Device &dev, const snic_eqe &event) {
    Object *object = event.cookie <= UINT32_MAX ? dev.table.find(static_cast<uint32_t>(event.cookie)) : nullptr;
    if (!object) return nullptr; // closed meanwhile
    switch (event.type) {
    case SNIC_EV_CQ:
        return object->kind == Kind::cq ? note(object, SANPROXY_EVENT_CQ, 0, 0) : nullptr;
    case SNIC_EV_CQ_ERROR:
        return object->kind == Kind::cq ? note(object, SANPROXY_EVENT_CQ_ERROR, 0, 0) : nullptr;
    case SNIC_EV_CONN_REQUEST:
        if (object->kind != Kind::listener) return nullptr;
        queue_request(*static_cast<Listener *>(object), event);
        return note(object, SANPROXY_EVENT_REQUEST, 0, 0);
    case SNIC_EV_REQUEST_GONE:
        if (object->kind == Kind::listener) static_cast<Listener *>(object)->forget(event.request);
        return nullptr;
    default:
        break;
    }
    if (object->kind != Kind::qp) return nullptr;
    switch (event.type) {
    case SNIC_EV_QP_FATAL:
        return note(object, SANPROXY_EVENT_QP_FATAL, 0, event.status);
    case SNIC_EV_CONN_ESTABLISHED:
        return note(object, SANPROXY_EVENT_CONNECTED, 0, 0);
    case SNIC_EV_CONN_FAILED:
        return note(object, SANPROXY_EVENT_CONNECT_FAILED, event.reason, 0);
    case SNIC_EV_DISCONNECTED:
        return note(object, SANPROXY_EVENT_DISCONNECTED, event.reason, event.status);
    default:
        return nullptr; // QP_DRAINED: nobody waits for it
    }
}

void handle_event(Device &dev, const snic_eqe &event) {
    if (event.type == SNIC_EV_LINK) return post_to_all(dev, SANPROXY_EVENT_LINK);
    PIRP irp;
    {
        SpinGuard guard(dev.lock);
        irp = handle_object_event(dev, event);
    }
    complete_wait(irp);
}

} // namespace

// DPC. Looks at no more events than the ring holds: further ones bring their own interrupt.
void drain_events(Device &dev) {
    const snic_eqe *ring = dev.eq_ring.as<snic_eqe>();
    auto *record = dev.eq_record.as<volatile snic_eq_record>();
    for (uint32_t n = 0; n < Device::eq_entries; ++n) {
        const snic_eqe *slot = &ring[dev.eq_ci % Device::eq_entries];
        if (*const_cast<const volatile uint32_t *>(&slot->phase) != dev.eq_ci / Device::eq_entries + 1) return;
        memory_barrier();
        snic_eqe event;
        memcpy(&event, slot, sizeof event);
        record->ci = ++dev.eq_ci;
        handle_event(dev, event);
    }
    KeInsertQueueDpc(&dev.dpc, nullptr, nullptr);
}

// Completes the request itself when it does not return STATUS_SUCCESS.
NTSTATUS wait_events(Context &context, PIRP irp) {
    auto *reply = static_cast<sanproxy_wait_events *>(irp->AssociatedIrp.SystemBuffer);
    {
        SpinGuard guard(context.device->lock);
        if (collect(context, *reply)) {
            reply->header.result = SANPROXY_OK;
            return STATUS_SUCCESS;
        }
        if (context.wait || context.users.closed()) {
            reply->header.result = SANPROXY_BAD_STATE;
            return STATUS_SUCCESS;
        }
        IoMarkIrpPending(irp);
        context.wait = irp;
        IoSetCancelRoutine(irp, wait_cancelled);
        if (!irp->Cancel || !IoSetCancelRoutine(irp, nullptr)) return STATUS_PENDING;
        context.wait = nullptr; // cancelled before the routine was in place
    }
    irp->IoStatus.Status = STATUS_CANCELLED;
    irp->IoStatus.Information = 0;
    IoCompleteRequest(irp, IO_NO_INCREMENT);
    return STATUS_PENDING;
}

void cancel_wait(Context &context) {
    PIRP irp;
    {
        SpinGuard guard(context.device->lock);
        irp = context.wait;
        if (!irp || !IoSetCancelRoutine(irp, nullptr)) return;
        context.wait = nullptr;
    }
    irp->IoStatus.Status = STATUS_CANCELLED;
    irp->IoStatus.Information = 0;
    IoCompleteRequest(irp, IO_NO_INCREMENT);
}

void post_own_event(Context &context, uint32_t events) {
    PIRP irp;
    {
        SpinGuard guard(context.device->lock);
        context.own_events |= events;
        irp = ready_wait(context);
    }
    complete_wait(irp);
}

void post_to_all(Device &dev, uint32_t events) {
    bool first = true;
    for (;;) { // one at a time: a wait is completed without the lock
        PIRP irp = nullptr;
        {
            SpinGuard guard(dev.lock);
            for (LIST_ENTRY *e = dev.contexts.Flink; e != &dev.contexts; e = e->Flink) {
                auto *context = CONTAINING_RECORD(e, Context, link);
                if (first) context->own_events |= events;
                if (!irp) irp = ready_wait(*context);
            }
            first = false;
        }
        if (!irp) return;
        complete_wait(irp);
    }
}

bool object_move(Object *object, Context &to, uint64_t cookie) {
    PIRP irp = nullptr;
    {
        SpinGuard guard(to.device->lock);
        if (to.device->table.find(object->id) != object) return false;
        RemoveEntryList(&object->context_link);
        if (object->events) RemoveEntryList(&object->ready_link);
        object->context = &to;
        object->cookie = cookie;
        InsertTailList(&to.objects, &object->context_link);
        if (object->events) InsertTailList(&to.ready, &object->ready_link);
        if (object->kind == Kind::listener) {
            // What was taken but not answered is for the new owner to take.
            auto &listener = *static_cast<Listener *>(object);
            for (uint32_t i = 0; i < listener.count; ++i) listener.requests[i].taken = false;
            if (listener.count) irp = note(object, SANPROXY_EVENT_REQUEST, 0, 0);
        }
        if (!irp) irp = ready_wait(to);
    }
    complete_wait(irp);
    return true;
}

void object_drop_events(Object *object) {
    if (object->events == 0) return;
    RemoveEntryList(&object->ready_link);
    object->events = 0;
}

} // namespace sanproxy
