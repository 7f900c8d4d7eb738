// SPDX-License-Identifier: GPL-2.0-or-later
//
// sockets.cc: the beginning and the end of a socket: WSPSocket, WSPBind, WSPCloseSocket.
#include "provider.h"

namespace sanprov {

Socket *socket_create(int *error) {
    auto *s = heap_new<Socket>();
    if (!s || !table_publish(s)) {
        heap_delete(s);
        *error = s ? WSAEMFILE : WSAENOBUFS;
        return nullptr;
    }
    // Any context will do; ours is the handle.
    int upcall_error = WSAENOBUFS;
    s->switch_handle = process->upcalls.lpWPUCreateSocketHandle(0, s->handle, &upcall_error);
    if (s->switch_handle == INVALID_SOCKET) {
        *error = upcall_error;
        table_close(s->handle);
        socket_release(*s);
        return nullptr;
    }
    return s;
}

void socket_destroy(Socket *s) {
    queues_destroy(*s);
    release_all_registrations(*s); // none is left unless creation failed half way
    free_registrations(*s);
    if (s->switch_handle != INVALID_SOCKET) {
        int ignored;
        process->upcalls.lpWPUCloseSocketHandle(s->switch_handle, &ignored); // the last up-call for this socket
    }
    heap_delete(s);
}

SOCKET WSPAPI san_socket(int af, int type, int protocol, LPWSAPROTOCOL_INFOW info, GROUP group, DWORD flags,
                         LPINT error) {
    int problem = 0;
    if (process->starts == 0) {
        problem = WSANOTINITIALISED;
    } else if (af != AF_INET) {
        problem = WSAEAFNOSUPPORT;
    } else if (type != SOCK_STREAM) {
        problem = WSAESOCKTNOSUPPORT;
    } else if (protocol != IPPROTO_TCP && protocol != 0) {
        problem = WSAEPROTONOSUPPORT;
    } else if (group != 0 || flags != WSA_FLAG_OVERLAPPED) {
        problem = WSAEINVAL;
    }
    if (!problem && info && info->dwProviderReserved != 0) {
        const SOCKET taken = take_over(info->dwProviderReserved, &problem);
        if (problem) fail(error, problem);
        return taken;
    }
    Socket *s = problem ? nullptr : socket_create(&problem);
    if (s) return s->handle;
    fail(error, problem);
    return INVALID_SOCKET;
}

int WSPAPI san_bind(SOCKET handle, const sockaddr *name, int length, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!name || length < static_cast<int>(sizeof(sockaddr_in)) || name->sa_family != AF_INET)
        return fail(error, WSAEFAULT);
    sockaddr_in address;
    memcpy(&address, name, sizeof address);
    if (address.sin_addr.s_addr != INADDR_ANY) {
        sanproxy_query query = {};
        if (process->nic.query(query) != SANPROXY_OK) return fail(error, WSAENETDOWN);
        bool ours = false;
        for (uint32_t i = 0; i < query.address_count && i < SANPROXY_MAX_ADDRESSES; ++i)
            ours |= swap32(query.addresses[i].ip) == address.sin_addr.s_addr;
        if (!ours) return fail(error, WSAEADDRNOTAVAIL);
    }
    Guard guard(s->lock);
    if (s->state != State::created) return fail(error, WSAEINVAL);
    s->local = address;
    s->state = State::bound;
    return 0;
}

namespace {

// Steps in the order of the contract: the NIC stops, memory is released, then completions are signalled.
void close(Socket &s) {
    State before;
    {
        Guard guard(s.lock);
        before = s.state;
        s.state = State::closed;
        s.event = nullptr;
        s.event_mask = 0;
        if (!s.error) s.error = WSA_OPERATION_ABORTED;
    }
    if (before == State::suspended) return; // it is another process's now
    if (s.listener_id) process->nic.close_object(s.listener_id); // refuses what is queued or deferred
    if (s.qp_id) {
        release_remote_registrations(s);
        sanproxy_object object = {};
        object.id = s.qp_id;
        process->nic.request(SANPROXY_IOCTL_STOP_QP, object);
        harvest(s); // what had completed, has completed
        Queue<Operation> sends, receives;
        {
            Guard guard(s.lock);
            take_all(s, sends, receives);
        }
        release_all_registrations(s);
        process->cache->flush(&s.owner);
        // The reset code if it was the peer who ended the connection.
        signal_all(s, receives, before == State::disconnected ? s.error : WSA_OPERATION_ABORTED);
        signal_all(s, sends, WSA_OPERATION_ABORTED);
    }
}

} // namespace

int WSPAPI san_close_socket(SOCKET handle, LPINT error) {
    SocketRef s(handle);
    if (!s || !table_close(handle)) return fail(error, WSAENOTSOCK);
    close(*s);
    socket_release(*s); // the switch's reference
    return 0;
}

void socket_abort_all() {
    for (;;) {
        const SOCKET handle = table_first_open();
        if (handle == INVALID_SOCKET) return;
        int ignored;
        san_close_socket(handle, &ignored);
    }
}

} // namespace sanprov
