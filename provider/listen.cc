// SPDX-License-Identifier: GPL-2.0-or-later
//
// listen.cc: WSPListen and WSPAccept. The NIC keeps the queue of requests and refuses what exceeds the backlog; at most one
// request waits here: one that was deferred, or the next one, which had to be looked at to know whether to signal again.
#include "provider.h"

namespace sanprov {

namespace {

constexpr uint32_t default_backlog = 128, max_backlog = 1024;

sockaddr_in address(uint32_t ip, uint16_t port) {
    sockaddr_in a = {};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = swap32(ip);
    a.sin_port = swap16(port);
    return a;
}

// The oldest request. 0 or a Winsock error.
int take_request(Socket &s, sanproxy_get_request &request) {
    {
        Guard guard(s.lock);
        if (s.deferred) {
            request = s.request;
            s.deferred = false;
            return 0;
        }
        request.listener = s.listener_id;
    }
    switch (process->nic.request(SANPROXY_IOCTL_GET_REQUEST, request)) {
    case SANPROXY_OK: return 0;
    case SANPROXY_NOT_FOUND: return WSAEWOULDBLOCK;
    default: return WSAENETDOWN;
    }
}

void defer(Socket &s, const sanproxy_get_request &request) {
    Guard guard(s.lock);
    s.request = request;
    s.deferred = true;
}

void reject(const sanproxy_get_request &request) {
    sanproxy_reply reply = {};
    reply.listener = request.listener;
    reply.request = request.request;
    process->nic.request(SANPROXY_IOCTL_REJECT, reply);
}

// Resets the event for the next request, and sets it again if there is one already.
void next_request(Socket &s) {
    {
        Guard guard(s.lock);
        if (s.event && s.event_mask & FD_ACCEPT) ResetEvent(s.event);
    }
    sanproxy_get_request request = {};
    if (take_request(s, request) != 0) return;
    defer(s, request);
    Guard guard(s.lock);
    record_event(s, FD_ACCEPT, 0);
}

int ask(LPCONDITIONPROC condition, DWORD_PTR data, const sockaddr_in &peer, const sockaddr_in &local) {
    if (!condition) return CF_ACCEPT;
    sockaddr_in caller_address = peer, callee_address = local;
    WSABUF caller = {sizeof caller_address, reinterpret_cast<char *>(&caller_address)};
    WSABUF callee = {sizeof callee_address, reinterpret_cast<char *>(&callee_address)};
    return condition(&caller, nullptr, nullptr, nullptr, &callee, nullptr, nullptr, data);
}

// A connected socket from an accepted request, or nullptr and a Winsock error.
Socket *make_accepted(Socket &listener, const sanproxy_get_request &request, int *error) {
    Socket *s = socket_create(error);
    if (!s) {
        reject(request);
        return nullptr;
    }
    s->local = address(request.local_ip, request.local_port);
    s->peer = address(request.peer_ip, request.peer_port);
    s->debug = listener.debug;
    s->accepted = true;
    int problem = queues_create(*s);
    if (problem) {
        reject(request);
    } else {
        s->state = State::connected; // its events may come before ACCEPT returns
        sanproxy_reply reply = {};
        reply.listener = request.listener;
        reply.request = request.request;
        reply.qp = s->qp_id;
        const uint32_t result = process->nic.request(SANPROXY_IOCTL_ACCEPT, reply);
        if (result == SANPROXY_OK) return s;
        if (result == SANPROXY_NO_RESOURCES) reject(request);
        problem = result == SANPROXY_GONE ? WSAECONNRESET : winsock_error(result);
    }
    int ignored;
    san_close_socket(s->handle, &ignored);
    *error = problem;
    return nullptr;
}

} // namespace

int WSPAPI san_listen(SOCKET handle, int backlog, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    sanproxy_listen listen = {};
    listen.backlog = backlog == SOMAXCONN ? default_backlog : backlog < 1 ? 1 : static_cast<uint32_t>(backlog);
    if (listen.backlog > max_backlog) listen.backlog = max_backlog;
    {
        Guard guard(s->lock);
        if (s->state == State::connected || s->state == State::connecting || s->state == State::disconnected)
            return fail(error, WSAEISCONN);
        if (s->state != State::bound && s->state != State::listening) return fail(error, WSAEINVAL);
        listen.id = s->listener_id;
        listen.ip = swap32(s->local.sin_addr.s_addr);
        listen.port = swap16(s->local.sin_port);
        listen.cookie = s->handle;
    }
    const uint32_t result = process->nic.request(SANPROXY_IOCTL_LISTEN, listen);
    if (result != SANPROXY_OK) return fail(error, winsock_error(result));
    bool closed;
    {
        Guard guard(s->lock);
        closed = s->state == State::closed;
        if (!closed) {
            s->listener_id = listen.id;
            s->backlog = listen.backlog;
            s->state = State::listening;
        }
    }
    if (!closed) return 0;
    process->nic.close_object(listen.id);
    return fail(error, WSAENOTSOCK);
}

SOCKET WSPAPI san_accept(SOCKET handle, sockaddr *addr, LPINT addr_length, LPCONDITIONPROC condition,
                         DWORD_PTR callback_data, LPINT error) {
    SocketRef s(handle);
    int problem = s ? 0 : WSAENOTSOCK;
    if (!problem) {
        Guard guard(s->lock);
        if (s->state != State::listening) problem = WSAEINVAL;
    }
    if (!problem && addr && addr_length && *addr_length < static_cast<int>(sizeof(sockaddr_in))) problem = WSAEFAULT;
    sanproxy_get_request request = {};
    if (!problem) problem = take_request(*s, request);
    if (problem) {
        fail(error, problem);
        return INVALID_SOCKET;
    }
    const sockaddr_in peer = address(request.peer_ip, request.peer_port);
    Socket *accepted = nullptr;
    // No lock is held here, and nothing has been said to the peer.
    switch (ask(condition, callback_data, peer, address(request.local_ip, request.local_port))) {
    case CF_ACCEPT: accepted = make_accepted(*s, request, &problem); break;
    case CF_REJECT:
        reject(request);
        problem = WSAECONNREFUSED;
        break;
    case CF_DEFER:
        defer(*s, request);
        fail(error, WSATRY_AGAIN);
        return INVALID_SOCKET;
    default:
        reject(request);
        problem = WSAEINVAL;
    }
    next_request(*s);
    if (!accepted) {
        fail(error, problem);
        return INVALID_SOCKET;
    }
    if (addr && addr_length) {
        memcpy(addr, &peer, sizeof peer);
        *addr_length = sizeof peer;
    }
    return accepted->handle;
}

} // namespace sanprov
