// SPDX-License-Identifier: GPL-2.0-or-later
//
// connect.cc: WSPConnect: always asynchronous, its outcome is FD_CONNECT.
#include "provider.h"

namespace sanprov {

namespace {

// The switch falls back to TCP when a SAN connect fails, and the application waits for both: keep ours short.
constexpr uint32_t connect_timeout_ms = 5000;

bool is_own(uint32_t ip) {
    const sanproxy_query &limits = process->nic.limits();
    for (uint32_t i = 0; i < limits.address_count && i < SANPROXY_MAX_ADDRESSES; ++i)
        if (limits.addresses[i].ip == ip) return true;
    return (ip >> 24) == 127;
}

// For debugging on one machine: connect to the NIC's own address instead of leaving it to TCP.
bool loopback_allowed() { return GetEnvironmentVariableA("SANPROV_LOOPBACK", nullptr, 0) != 0; }

// Under s.lock.
int check_state(const Socket &s) {
    switch (s.state) {
    case State::bound: return s.setting_up ? WSAEALREADY : 0;
    case State::connecting: return WSAEALREADY;
    case State::connected:
    case State::disconnected: return WSAEISCONN;
    default: return WSAEINVAL;
    }
}

} // namespace

void connection_lost(Socket &s, int error) {
    if (s.state != State::connecting && s.state != State::connected) return;
    s.state = State::disconnected;
    if (!s.error) s.error = error;
    flush_late(s);
}

int WSPAPI san_connect(SOCKET handle, const sockaddr *name, int length, LPWSABUF caller_data, LPWSABUF callee_data, LPQOS,
                       LPQOS, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!name || length < static_cast<int>(sizeof(sockaddr_in))) return fail(error, WSAEFAULT);
    if (name->sa_family != AF_INET) return fail(error, WSAEAFNOSUPPORT);
    if (caller_data && caller_data->len) return fail(error, WSAEINVAL);
    if (callee_data) callee_data->len = 0;
    sockaddr_in peer;
    memcpy(&peer, name, sizeof peer);
    sanproxy_connect connect = {};
    connect.dst_ip = swap32(peer.sin_addr.s_addr);
    connect.dst_port = swap16(peer.sin_port);
    connect.timeout_ms = connect_timeout_ms;
    if (connect.dst_ip == 0 || connect.dst_port == 0) return fail(error, WSAEADDRNOTAVAIL);
    // Local traffic is TCP's; this error sends the switch there.
    if (is_own(connect.dst_ip) && !loopback_allowed()) return fail(error, WSAEADDRNOTAVAIL);

    bool have_queues;
    {
        Guard guard(s->lock);
        const int problem = check_state(*s);
        if (problem) return fail(error, problem);
        s->setting_up = true;
        have_queues = s->qp_id != 0; // of an attempt that failed
    }
    int problem = have_queues ? 0 : queues_create(*s);
    {
        Guard guard(s->lock);
        s->setting_up = false;
        if (s->state != State::bound) problem = WSAENOTSOCK; // closed meanwhile
        if (problem) return fail(error, problem);
        s->state = State::connecting;
        s->peer = peer;
        connect.qp = s->qp_id;
        connect.src_ip = swap32(s->local.sin_addr.s_addr);
        connect.src_port = swap16(s->local.sin_port);
    }
    if (connect.src_ip == 0 && process->nic.limits().address_count) connect.src_ip = process->nic.limits().addresses[0].ip;
    const uint32_t result = process->nic.request(SANPROXY_IOCTL_CONNECT, connect);
    if (result != SANPROXY_OK) {
        Guard guard(s->lock);
        if (s->state == State::connecting) s->state = State::bound;
        return fail(error, result == SANPROXY_LINK_DOWN ? WSAENETDOWN : winsock_error(result));
    }
    return fail(error, WSAEWOULDBLOCK);
}

} // namespace sanprov
