// SPDX-License-Identifier: GPL-2.0-or-later
//
// events.cc: the thread that waits for the driver's events, and network events (FD_CONNECT, FD_ACCEPT) for the switch.
#include "provider.h"

namespace sanprov {

namespace {

HANDLE event_thread;
DWORD event_thread_id;
volatile LONG stopping;

int connect_error(uint32_t reason) {
    switch (reason) {
    // With these three the switch does not try TCP, which would fail as well: somebody there said no.
    case SNIC_REASON_BACKLOG:
    case SNIC_REASON_REJECTED: return WSAECONNREFUSED;
    // A NIC answered that nobody listens there. A TCP-only listener may, so TCP gets its chance.
    case SNIC_REASON_NO_LISTENER: return WSAETIMEDOUT;
    case SNIC_REASON_UNREACHABLE: return WSAENETUNREACH;
    case SNIC_REASON_PEER_CLOSED: return WSAECONNABORTED;
    case SNIC_REASON_LINK_DOWN: return WSAENETDOWN;
    default: return WSAETIMEDOUT;
    }
}

int disconnect_error(uint32_t reason) { return reason == SNIC_REASON_PEER_CLOSED ? WSAECONNRESET : WSAECONNABORTED; }

void handle(const sanproxy_event &event) {
    SocketRef s(static_cast<SOCKET>(event.cookie));
    if (!s) return;
    {
        Guard guard(s->lock);
        if (event.events & SANPROXY_EVENT_CONNECTED && s->state == State::connecting) {
            s->state = State::connected;
            record_event(*s, FD_CONNECT, 0);
        }
        if (event.events & SANPROXY_EVENT_CONNECT_FAILED && s->state == State::connecting) {
            s->state = State::bound;
            record_event(*s, FD_CONNECT, connect_error(event.reason));
        }
        if (event.events & SANPROXY_EVENT_DISCONNECTED) {
            // Before it was established it is the outcome of the connect.
            if (s->state == State::connecting) record_event(*s, FD_CONNECT, connect_error(event.reason));
            connection_lost(*s, disconnect_error(event.reason));
        }
        if (event.events & (SANPROXY_EVENT_QP_FATAL | SANPROXY_EVENT_CQ_ERROR)) connection_lost(*s, WSAECONNABORTED);
        if (event.events & SANPROXY_EVENT_REQUEST) record_event(*s, FD_ACCEPT, 0);
        if (event.events & SANPROXY_EVENT_CQ) s->armed = false;
    }
    harvest(*s);
}

// The NIC uses no memory any more, and completes nothing: what is pending ends here.
void end_all_connections() {
    for (SOCKET at = table_first_open(); at != INVALID_SOCKET; at = table_next_open(at)) {
        SocketRef s(at);
        if (!s) continue;
        {
            Guard guard(s->lock);
            if (s->state == State::connecting) record_event(*s, FD_CONNECT, WSAENETDOWN);
            connection_lost(*s, WSAENETDOWN);
            if (s->state != State::disconnected) continue;
        }
        harvest(*s); // what had completed, has completed
        Queue<Operation> sends, receives;
        int error;
        {
            Guard guard(s->lock);
            take_all(*s, sends, receives);
            error = s->error;
        }
        signal_all(*s, receives, error);
        signal_all(*s, sends, error);
    }
}

DWORD WINAPI event_loop(LPVOID) {
    while (!stopping) {
        sanproxy_wait_events wait = {};
        if (process->nic.request(SANPROXY_IOCTL_WAIT_EVENTS, wait) != SANPROXY_OK) {
            if (!stopping) Sleep(10);
            continue;
        }
        for (uint32_t i = 0; i < wait.count && i < SANPROXY_MAX_EVENTS; ++i) {
            if (wait.events[i].id) handle(wait.events[i]);
            else if (wait.events[i].events & SANPROXY_EVENT_FAILED) end_all_connections();
        }
    }
    return 0;
}

} // namespace

bool events_start() {
    stopping = 0;
    event_thread = CreateThread(nullptr, 0, event_loop, nullptr, 0, &event_thread_id);
    return event_thread != nullptr;
}

void events_stop() {
    InterlockedExchange(&stopping, 1);
    sanproxy_header header = {};
    process->nic.request(SANPROXY_IOCTL_WAKE, header);
    // The last clean-up may come from an up-call that runs on this very thread: it ends by itself then.
    if (GetCurrentThreadId() != event_thread_id) WaitForSingleObject(event_thread, INFINITE);
    CloseHandle(event_thread);
    event_thread = nullptr;
}

void record_event(Socket &s, long event, int error) {
    s.recorded |= event;
    if (event == FD_CONNECT) s.connect_error = error;
    if (s.event_mask & event && s.event) SetEvent(s.event);
}

int WSPAPI san_event_select(SOCKET handle, WSAEVENT event, long events, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (events & ~(FD_ACCEPT | FD_CONNECT)) return fail(error, WSAEINVAL);
    Guard guard(s->lock);
    s->event = events ? event : nullptr;
    s->event_mask = event ? events : 0;
    if (s->recorded & s->event_mask && s->event) SetEvent(s->event); // it has happened already
    return 0;
}

int WSPAPI san_enum_network_events(SOCKET handle, WSAEVENT event, LPWSANETWORKEVENTS out, LPINT error) {
    SocketRef s(handle);
    if (!s) return fail(error, WSAENOTSOCK);
    if (!out) return fail(error, WSAEINVAL);
    if (event) ResetEvent(event); // first: an event recorded from here on sets it again
    Guard guard(s->lock);
    memset(out, 0, sizeof *out);
    out->lNetworkEvents = s->recorded;
    if (s->recorded & FD_CONNECT) out->iErrorCode[FD_CONNECT_BIT] = s->connect_error;
    s->recorded = 0;
    return 0;
}

} // namespace sanprov
