// SPDX-License-Identifier: GPL-2.0-or-later
//
// connections.cc: listening, accepting and connecting. The NIC manages connections; the driver sees to it that a process
// answers only requests that came to its own listeners, with its own QPs.
#include "context.h"

namespace sanproxy {

namespace {

constexpr uint32_t max_backlog = 1024;

// Room for `backlog` requests; keeps those that are there.
bool grow(Device &dev, Listener &listener, uint32_t backlog) {
    if (backlog <= listener.capacity) return true;
    auto *larger = static_cast<PendingRequest *>(pool_alloc(backlog * sizeof(PendingRequest)));
    if (!larger) return false;
    PendingRequest *old;
    {
        SpinGuard guard(dev.lock);
        old = listener.requests;
        for (uint32_t i = 0; i < listener.count; ++i) larger[i] = old[i];
        listener.requests = larger;
        listener.capacity = backlog;
    }
    pool_free(old);
    return true;
}

// With listener.mutex held.
uint32_t nic_listen(Listener &listener, sanproxy_listen &r) {
    Context &context = *listener.context;
    Device &dev = *context.device;
    if (!grow(dev, listener, r.backlog)) return SANPROXY_NO_RESOURCES;
    Command command(SNIC_CMD_LISTEN);
    auto &body = command.body<snic_cmd_listen>();
    body.ip = r.ip;
    body.port = r.port;
    body.backlog = r.backlog;
    body.eqn = dev.eqn;
    body.listener = listener.number;
    body.cookie = listener.id;
    const uint32_t result = run(context, command, r.header);
    if (result != SANPROXY_OK) return result;
    if (listener.number == 0) listener.number = static_cast<uint32_t>(command.cpl.result[0]);
    r.id = listener.id;
    return SANPROXY_OK;
}

bool owns_request(Device &dev, Listener &listener, uint32_t request) {
    SpinGuard guard(dev.lock);
    for (uint32_t i = 0; i < listener.count; ++i)
        if (listener.requests[i].request == request) return listener.requests[i].taken;
    return false;
}

void forget_request(Device &dev, Listener &listener, uint32_t request) {
    SpinGuard guard(dev.lock);
    listener.forget(request);
}

// ACCEPT and REJECT. qpn 0: reject.
uint32_t reply(Context &context, sanproxy_reply &r, uint32_t qpn) {
    Device &dev = *context.device;
    if (r.private_len > SANPROXY_MAX_PRIVATE_DATA) return SANPROXY_BAD_PARAMETER;
    Ref<Listener> listener(context, r.listener);
    if (!listener) return SANPROXY_NOT_FOUND;
    DmaBuffer data;
    if (r.private_len && !data.alloc(r.private_len)) return SANPROXY_NO_RESOURCES;
    if (r.private_len) memcpy(data.as<void>(), r.private_data, r.private_len);

    MutexGuard guard(listener->mutex);
    if (listener->dead || listener->context != &context || !owns_request(dev, *listener.get(), r.request)) return SANPROXY_GONE;
    Command command(qpn ? SNIC_CMD_ACCEPT : SNIC_CMD_REJECT);
    auto &body = command.body<snic_cmd_reply>();
    body.request = r.request;
    body.qpn = qpn;
    body.private_data = data ? data.bus() : 0;
    body.private_len = r.private_len;
    const uint32_t result = run(context, command, r.header);
    // A failed ACCEPT for want of something leaves the request to be rejected; otherwise it is answered or gone.
    if (result == SANPROXY_NO_RESOURCES || result == SANPROXY_BAD_PARAMETER) return result;
    forget_request(dev, *listener.get(), r.request);
    return result == SANPROXY_BAD_STATE ? SANPROXY_GONE : result;
}

} // namespace

uint32_t do_listen(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_listen *>(request);
    if (r.port == 0 || r.backlog == 0 || r.backlog > max_backlog) return SANPROXY_BAD_PARAMETER;
    if (r.id) {
        Ref<Listener> listener(context, r.id);
        if (!listener) return SANPROXY_NOT_FOUND;
        MutexGuard guard(listener->mutex);
        return listener->dead || listener->context != &context ? SANPROXY_GONE : nic_listen(*listener.get(), r);
    }
    auto *listener = pool_new<Listener>();
    if (!listener) return SANPROXY_NO_RESOURCES;
    listener->cookie = r.cookie;
    listener->mutex.acquire();
    InterlockedIncrement(&listener->references);
    if (!object_publish(context, listener)) {
        listener->mutex.release();
        pool_delete(listener);
        return SANPROXY_NO_RESOURCES;
    }
    const uint32_t result = nic_listen(*listener, r);
    listener->mutex.release();
    if (result != SANPROXY_OK && object_withdraw(context, listener)) {
        object_close(listener);
        object_release(listener);
    }
    object_release(listener);
    return result;
}

void close_listener(Listener &listener) {
    if (listener.dead || listener.number == 0) return;
    Command command(SNIC_CMD_UNLISTEN);
    command.body<snic_cmd_handle>().handle = listener.number;
    hardware_release(*listener.context->device, command);
}

uint32_t do_get_request(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_get_request *>(request);
    Device &dev = *context.device;
    Ref<Listener> listener(context, r.listener);
    if (!listener) return SANPROXY_NOT_FOUND;
    MutexGuard guard(listener->mutex);
    if (listener->context != &context) return SANPROXY_NOT_FOUND; // handed over meanwhile
    for (;;) {
        PendingRequest pending = {};
        bool found = false;
        {
            SpinGuard spin(dev.lock);
            for (uint32_t i = 0; i < listener->count && !found; ++i) {
                if (listener->requests[i].taken) continue;
                listener->requests[i].taken = found = true;
                pending = listener->requests[i];
            }
        }
        if (!found) return SANPROXY_NOT_FOUND;
        const uint32_t length = pending.private_len < SANPROXY_MAX_PRIVATE_DATA ? pending.private_len
                                                                                 : SANPROXY_MAX_PRIVATE_DATA;
        if (length) {
            DmaBuffer data;
            if (!data.alloc(length)) return SANPROXY_NO_RESOURCES;
            Command command(SNIC_CMD_GET_REQUEST);
            auto &body = command.body<snic_cmd_get_request>();
            body.request = pending.request;
            body.out_len = length;
            body.out = data.bus();
            if (run(context, command, r.header) != SANPROXY_OK) {
                forget_request(dev, *listener.get(), pending.request); // the connector gave up
                continue;
            }
            memcpy(r.private_data, data.as<void>(), length);
        }
        r.header.nic_status = 0;
        r.request = pending.request;
        r.peer_ip = pending.peer_ip;
        r.local_ip = pending.local_ip;
        r.peer_port = pending.peer_port;
        r.local_port = pending.local_port;
        r.private_len = length;
        return SANPROXY_OK;
    }
}

uint32_t do_accept(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_reply *>(request);
    Ref<QueuePair> qp(context, r.qp);
    if (!qp) return SANPROXY_NOT_FOUND;
    MutexGuard guard(qp->mutex);
    return qp->dead || qp->context != &context || qp->qpn == 0 ? SANPROXY_GONE : reply(context, r, qp->qpn);
}

uint32_t do_reject(Context &context, void *request) {
    return reply(context, *static_cast<sanproxy_reply *>(request), 0);
}

uint32_t do_connect(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_connect *>(request);
    if (r.private_len > SANPROXY_MAX_PRIVATE_DATA || r.dst_port == 0 || r.timeout_ms == 0 || r.timeout_ms > 60000)
        return SANPROXY_BAD_PARAMETER;
    Ref<QueuePair> qp(context, r.qp);
    if (!qp) return SANPROXY_NOT_FOUND;
    DmaBuffer data;
    if (r.private_len && !data.alloc(r.private_len)) return SANPROXY_NO_RESOURCES;
    if (r.private_len) memcpy(data.as<void>(), r.private_data, r.private_len);
    MutexGuard guard(qp->mutex);
    if (qp->dead || qp->context != &context) return SANPROXY_GONE;
    Command command(SNIC_CMD_CONNECT);
    auto &body = command.body<snic_cmd_connect>();
    body.qpn = qp->qpn;
    body.dst_ip = r.dst_ip;
    body.src_ip = r.src_ip;
    body.dst_port = r.dst_port;
    body.src_port = r.src_port;
    body.private_data = data ? data.bus() : 0;
    body.private_len = r.private_len;
    body.timeout_ms = r.timeout_ms;
    return run(context, command, r.header);
}

uint32_t do_disconnect(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_object *>(request);
    Ref<QueuePair> qp(context, r.id);
    if (!qp) return SANPROXY_NOT_FOUND;
    MutexGuard guard(qp->mutex);
    if (qp->dead || qp->context != &context) return SANPROXY_GONE;
    Command command(SNIC_CMD_DISCONNECT);
    command.body<snic_cmd_handle>().handle = qp->qpn;
    return run(context, command, r.header);
}

} // namespace sanproxy
