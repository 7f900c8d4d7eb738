// SPDX-License-Identifier: GPL-2.0-or-later
//
// object_ops.cc: publication, look-up and end of objects, whatever their kind.
#include "context.h"

namespace sanproxy {

bool object_publish(Context &context, Object *object) {
    Device &dev = *context.device;
    SpinGuard guard(dev.lock);
    object->context = &context;
    if (!dev.table.insert(object)) return false;
    InsertTailList(&context.objects, &object->context_link);
    return true;
}

bool object_withdraw(Context &context, Object *object) {
    Device &dev = *context.device;
    SpinGuard guard(dev.lock);
    if (dev.table.find(object->id) != object) return false;
    if (object->kind == Kind::cq && static_cast<CompletionQueue *>(object)->users) return false;
    dev.table.remove(object);
    RemoveEntryList(&object->context_link);
    object_drop_events(object);
    return true;
}

Object *object_lookup(Device &dev, Context *context, uint32_t id) {
    SpinGuard guard(dev.lock);
    Object *object = dev.table.find(id);
    if (!object || (context && object->context != context)) return nullptr;
    InterlockedIncrement(&object->references);
    return object;
}

void object_release(Object *object) {
    if (InterlockedDecrement(&object->references) != 0) return;
    switch (object->kind) {
    case Kind::cq: pool_delete(static_cast<CompletionQueue *>(object)); break;
    case Kind::qp: pool_delete(static_cast<QueuePair *>(object)); break;
    case Kind::region: pool_delete(static_cast<Region *>(object)); break;
    case Kind::listener: pool_delete(static_cast<Listener *>(object)); break;
    }
}

void object_close(Object *object) {
    MutexGuard guard(object->mutex);
    switch (object->kind) {
    case Kind::cq: close_cq(*static_cast<CompletionQueue *>(object)); break;
    case Kind::qp: close_qp(*static_cast<QueuePair *>(object)); break;
    case Kind::region: close_region(*static_cast<Region *>(object)); break;
    case Kind::listener: close_listener(*static_cast<Listener *>(object)); break;
    }
    object->dead = true;
}

} // namespace sanproxy
