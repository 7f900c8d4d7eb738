// SPDX-License-Identifier: GPL-2.0-or-later
//
// handover.cc: sockets that move to another process: WSPDuplicateSocket gives one up, WSPSocket with the token takes it. The
// driver keeps the connection in between; the peer is not involved, and what it has posted stays posted.
//
// The descriptor that was given up stays reserved (State::suspended) until WSPCloseSocket. When the connection comes back,
// the same descriptor serves again, with the switch handle that it had.
#include "provider.h"

namespace sanprov {

namespace {

// What the other process must know; it travels in the driver.
struct HandOver {
    uint32_t version;
    uint32_t backlog;
    sockaddr_in local, peer;
    uint32_t accepted, debug;
};
static_assert(sizeof(HandOver) <= SANPROXY_HANDOVER_STATE);
constexpr uint32_t hand_over_version = 1;

int offer_error(uint32_t result) {
    switch (result) {
    case SANPROXY_NOT_FOUND: return WSAEINVAL; // no such process
    case SANPROXY_GONE: return WSAECONNRESET;
    default: return winsock_error(result);
    }
}

// A socket without queues: what they point to is gone, or about to go.
void detach_queues(Socket &s) {
    {
        Guard guard(s.lock);
        s.cq_ring = nullptr; // whoever polls finds nothing from here on
        s.cq_record = nullptr;
        s.qp_record = nullptr;
        s.qp_id = 0; // the driver has taken it
    }
    queues_destroy(s);
}

// The socket of this process that once had this connection; with a reference.
Socket *find_suspended(uint64_t connection) {
    for (SOCKET h = table_next_open(INVALID_SOCKET); h != INVALID_SOCKET; h = table_next_open(h)) {
        Socket *s = table_acquire(h);
        if (!s) continue;
        {
            Guard guard(s->lock);
            if (s->state == State::suspended && s->connection == connection) return s;
        }
        socket_release(*s);
    }
    return nullptr;
}

void give_up(uint32_t token) {
    sanproxy_claim claim = {};
    claim.token = token;
    process->nic.request(SANPROXY_IOCTL_CLAIM, claim);
}

int claim_listener(Socket &s, uint32_t token) {
    sanproxy_claim claim = {};
    claim.token = token;
    claim.queues.cookie = s.handle;
    const uint32_t result = process->nic.request(SANPROXY_IOCTL_CLAIM, claim);
    if (result != SANPROXY_OK) return winsock_error(result);
    s.listener_id = claim.id;
    return 0;
}

} // namespace

SOCKET take_over(uint32_t token, int *error) {
    sanproxy_offer look = {};
    look.token = token;
    const uint32_t result = process->nic.request(SANPROXY_IOCTL_LOOK, look);
    if (result != SANPROXY_OK) {
        *error = result == SANPROXY_NOT_FOUND ? WSAEINVAL : winsock_error(result);
        return INVALID_SOCKET;
    }
    HandOver state;
    memcpy(&state, look.state, sizeof state);
    if (state.version != hand_over_version) {
        give_up(token);
        *error = WSAEINVAL;
        return INVALID_SOCKET;
    }
    Socket *s = find_suspended(look.connection);
    const bool known = s != nullptr;
    if (!known) s = socket_create(error);
    if (!s) {
        give_up(token);
        return INVALID_SOCKET;
    }
    {
        Guard guard(s->lock);
        s->local = state.local;
        s->peer = state.peer;
        s->backlog = state.backlog;
        s->accepted = state.accepted != 0;
        s->debug = static_cast<BOOL>(state.debug);
        s->connection = look.connection;
        s->error = 0;
        s->event = nullptr;
        s->event_mask = s->recorded = 0;
        s->deferred = s->read_unfenced = false;
        // Its events may come before the claim has returned.
        s->state = look.kind == SANPROXY_KIND_LISTENER ? State::listening : State::connected;
    }
    const int problem = look.kind == SANPROXY_KIND_LISTENER ? claim_listener(*s, token) : queues_claim(*s, token);
    const SOCKET handle = s->handle;
    if (problem && !known) {
        int ignored;
        san_close_socket(handle, &ignored);
    } else if (problem) {
        Guard guard(s->lock);
        s->state = State::suspended;
    }
    if (known) socket_release(*s);
    *error = problem;
    return problem ? INVALID_SOCKET : handle;
}

int WSPAPI san_duplicate_socket(SOCKET handle, DWORD process_id, LPWSAPROTOCOL_INFOW info, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!info) return fail(error, WSAEINVAL);
    harvest(*s); // what has completed, has completed

    sanproxy_offer offer = {};
    State before;
    Queue<Operation> waiting;
    {
        Guard guard(s->lock);
        before = s->state;
        if (before != State::connected && before != State::listening) return fail(error, WSAEINVAL);
        if (before == State::connected && s->sq.pi != s->sq.retired) return fail(error, WSAEINVAL); // sends are outstanding
        s->state = State::suspended; // nothing is posted from here on
        hold_back(*s, waiting);
        offer.id = before == State::listening ? s->listener_id : s->qp_id;
        const HandOver state = {hand_over_version, s->backlog, s->local, s->peer, s->accepted, static_cast<uint32_t>(s->debug)};
        memcpy(offer.state, &state, sizeof state);
    }
    offer.process = process_id;
    const uint32_t result = process->nic.request(SANPROXY_IOCTL_OFFER, offer);
    if (result != SANPROXY_OK) {
        Guard guard(s->lock);
        s->rq.waiting = waiting;
        if (s->state == State::suspended) s->state = before;
        return fail(error, offer_error(result));
    }
    if (before == State::connected) {
        harvest(*s); // a message that came in time is one
        Queue<Operation> sends, receives;
        {
            Guard guard(s->lock);
            s->rq.waiting = waiting;
            take_all(*s, sends, receives);
        }
        // Their memory is released before they are signalled; nobody deregisters it.
        release_all_registrations(*s);
        process->cache->flush(&s->owner);
        signal_all(*s, receives, 0);
        detach_queues(*s);
    } else {
        Guard guard(s->lock);
        s->listener_id = 0;
        s->deferred = false; // moves with the others
    }
    {
        Guard guard(s->lock);
        s->connection = offer.connection;
    }
    info->dwProviderReserved = offer.token;
    return 0;
}

} // namespace sanprov
