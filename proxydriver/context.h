// SPDX-License-Identifier: GPL-2.0-or-later
//
// context.h: one open handle: the process that it serves, its doorbell page and protection domain, its objects, and the
// wait for events. Torn down in the process: when its last handle is closed (IRP_MJ_CLEANUP), or when the process ends
// although somebody else still holds a handle.
#pragma once

#include "device.h"
#include <sanlab/sanproxy_ioctl.h>

namespace sanproxy {

struct Context {
    Device *device = nullptr;
    PEPROCESS process = nullptr; // referenced
    HANDLE process_id = nullptr;
    Rundown users;               // requests inside
    WriterSet writers;
    volatile LONG references = 1; // the file object's, and that of whoever looks at it from outside
    volatile LONG torn_down = 0;
    KEVENT teardown_done;

    Mutex mutex; // open state below
    bool opened = false;
    uint32_t doorbell_page = 0;
    uint32_t pd = 0;
    MDL *doorbell_mdl = nullptr;
    void *doorbell_va = nullptr;

    // Under the device's lock:
    LIST_ENTRY link;    // in Device::contexts
    LIST_ENTRY objects; // Object::context_link
    LIST_ENTRY ready;   // Object::ready_link, those with events
    uint32_t own_events = 0; // SANPROXY_EVENT_LINK, _WAKE, _FAILED
    PIRP wait = nullptr;     // the pended WAIT_EVENTS
};

// A request: the structure in the system buffer. Returns enum sanproxy_result; nic_status in the header if a command failed.
using Handler = uint32_t (*)(Context &context, void *request);

NTSTATUS dispatch_create(PDEVICE_OBJECT fdo, PIRP irp);
NTSTATUS dispatch_cleanup(PDEVICE_OBJECT fdo, PIRP irp);
NTSTATUS dispatch_close(PDEVICE_OBJECT fdo, PIRP irp);
NTSTATUS dispatch_control(PDEVICE_OBJECT fdo, PIRP irp); // ioctl.cc
void process_ended(HANDLE process_id);                   // driver.cc calls it in the ending process
void context_teardown(Context &context); // idempotent; returns when it is done, by whomever
void context_release(Context *context);
void context_unmap(Context &context); // doorbell page and PD

// Runs a command; on failure notes its status in the request's header and translates it.
uint32_t run(Context &context, Command &command, sanproxy_header &header);

// Takes a new object into the table and the context; it owns the reference from then on. False: no room.
bool object_publish(Context &context, Object *object);
// Takes it out; true for exactly one caller, who then closes it and releases the table's reference.
bool object_withdraw(Context &context, Object *object);

template <typename T> struct KindOf;
template <> struct KindOf<CompletionQueue> { static constexpr Kind value = Kind::cq; };
template <> struct KindOf<QueuePair> { static constexpr Kind value = Kind::qp; };
template <> struct KindOf<Region> { static constexpr Kind value = Kind::region; };
template <> struct KindOf<Listener> { static constexpr Kind value = Kind::listener; };

// A counted reference to an object of a known kind.
template <typename T> class Ref {
  public:
    Ref(Context &context, uint32_t id) {
        Object *object = object_lookup(*context.device, &context, id);
        if (object && object->kind != KindOf<T>::value) {
            object_release(object);
            object = nullptr;
        }
        object_ = static_cast<T *>(object);
    }
    ~Ref() {
        if (object_) object_release(object_);
    }
    Ref(const Ref &) = delete;
    Ref &operator=(const Ref &) = delete;
    explicit operator bool() const { return object_ != nullptr; }
    T *operator->() const { return object_; }
    T *get() const { return object_; }

  private:
    T *object_;
};

// queues.cc
// Rings of a QP as the NIC needs to know them; `pages` gets their memory. False: no memory. The lists must live until the
// command that names `params` has completed.
struct Rings {
    uint32_t pd = 0, send_cqn = 0, recv_cqn = 0, doorbell_page = 0;
    uint32_t sq_entries = 0, rq_entries = 0, sq_stride = 0, rq_stride = 0;
    uint32_t access = 0;
    uint64_t cookie = 0;
};
struct RingLists {
    PageList sq, rq;
    DmaBuffer params;
};
bool build_rings(Device &dev, const Rings &rings, SharedPages &pages, RingLists &lists);
// Checks and rounds what a process asks for. False: out of range.
bool check_rings(Context &context, sanproxy_create_qp &r);
void describe_rings(const Rings &rings, const SharedPages &pages, sanproxy_create_qp &r);
bool use_cq(Context &context, CompletionQueue *cq);
void unuse_cq(CompletionQueue *&cq);
uint32_t do_create_cq(Context &context, void *request);
uint32_t do_create_qp(Context &context, void *request);
uint32_t do_stop_qp(Context &context, void *request);
void close_cq(CompletionQueue &cq);
void close_qp(QueuePair &qp);
void stop_qp(QueuePair &qp);
// regions.cc
uint32_t do_register(Context &context, void *request);
uint32_t do_expose(Context &context, void *request);
uint32_t do_revoke(Context &context, void *request);
void close_region(Region &region);
// connections.cc
uint32_t do_listen(Context &context, void *request);
uint32_t do_get_request(Context &context, void *request);
uint32_t do_accept(Context &context, void *request);
uint32_t do_reject(Context &context, void *request);
uint32_t do_connect(Context &context, void *request);
uint32_t do_disconnect(Context &context, void *request);
void close_listener(Listener &listener);
// handover.cc
uint32_t do_offer(Context &context, void *request);
uint32_t do_look(Context &context, void *request);
uint32_t do_claim(Context &context, void *request);
// events.cc
// Gives an object to another context, with the events that it has. With its mutex held. False: withdrawn meanwhile.
bool object_move(Object *object, Context &to, uint64_t cookie);
NTSTATUS wait_events(Context &context, PIRP irp);
void cancel_wait(Context &context);
void post_own_event(Context &context, uint32_t events);
void object_drop_events(Object *object); // under the device's lock
// object_ops.cc
void object_close(Object *object); // withdrawn before; in the process

} // namespace sanproxy
