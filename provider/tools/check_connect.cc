// SPDX-License-Identifier: GPL-2.0-or-later
//
// Rules of connecting, listening, accepting and closing; two machines.
#include "conformance.h"

#include <cstring>

using namespace santest;
using sanswitch::procs;

namespace {

struct Seen {
    DWORD thread;
    int calls, answer;
    uint32_t caller_ip, callee_ip;
    uint16_t callee_port;
};

int CALLBACK condition(LPWSABUF caller, LPWSABUF, LPQOS, LPQOS, LPWSABUF callee, LPWSABUF, GROUP *, DWORD_PTR data) {
    auto &seen = *reinterpret_cast<Seen *>(data);
    seen.thread = GetCurrentThreadId();
    ++seen.calls;
    seen.caller_ip = __builtin_bswap32(reinterpret_cast<sockaddr_in *>(caller->buf)->sin_addr.s_addr);
    seen.callee_ip = __builtin_bswap32(reinterpret_cast<sockaddr_in *>(callee->buf)->sin_addr.s_addr);
    seen.callee_port = __builtin_bswap16(reinterpret_cast<sockaddr_in *>(callee->buf)->sin_port);
    return seen.answer;
}

// WSPAccept once there is something to accept; INVALID_SOCKET and the error otherwise.
SOCKET accept_with(Socket &l, Seen &seen, int &error) {
    const uint64_t end = sanswitch::now_ms() + patience_ms;
    for (;;) {
        sockaddr_in peer;
        int length = sizeof peer;
        error = 0;
        SOCKET s = procs().lpWSPAccept(l.handle(), reinterpret_cast<sockaddr *>(&peer), &length, condition,
                                       reinterpret_cast<DWORD_PTR>(&seen), &error);
        if (s != INVALID_SOCKET || error != WSAEWOULDBLOCK || sanswitch::now_ms() > end) return s;
        Sleep(1);
    }
}

int connect_to(Context &t, Socket &s) {
    int error = s.open();
    if (!error) error = s.bind(t.own_ip, santools::any_port());
    return error ? error : s.connect(t.peer_ip, t.port, patience_ms);
}

void close_raw(SOCKET s) {
    int ignored;
    procs().lpWSPCloseSocket(s, &ignored);
}

} // namespace

PAIR(71, "WSPConnect is asynchronous: WSAEWOULDBLOCK, then FD_CONNECT") {
    Socket listener, s;
    if (!t.listener(listener, 1)) return;
    EXPECT_EQ(0, s.open());
    EXPECT_EQ(0, s.bind(t.own_ip, santools::any_port()));
    HANDLE event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
    int error = 0;
    EXPECT_EQ(0, procs().lpWSPEventSelect(s.handle(), event, FD_CONNECT, &error));
    sockaddr_in a = {};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = __builtin_bswap32(t.peer_ip);
    a.sin_port = __builtin_bswap16(t.port);
    EXPECT_EQ(SOCKET_ERROR, procs().lpWSPConnect(s.handle(), reinterpret_cast<sockaddr *>(&a), sizeof a, nullptr, nullptr,
                                                 nullptr, nullptr, &error));
    EXPECT_EQ(WSAEWOULDBLOCK, error);
    EXPECT_EQ(WAIT_OBJECT_0, WaitForSingleObject(event, patience_ms));
    WSANETWORKEVENTS events;
    EXPECT_EQ(0, procs().lpWSPEnumNetworkEvents(s.handle(), event, &events, &error));
    EXPECT_EQ(FD_CONNECT, events.lNetworkEvents);
    EXPECT_EQ(0, events.iErrorCode[FD_CONNECT_BIT]);
    // Fetched is cleared.
    EXPECT_EQ(WAIT_TIMEOUT, WaitForSingleObject(event, 0));
    EXPECT_EQ(0, procs().lpWSPEnumNetworkEvents(s.handle(), event, &events, &error));
    EXPECT_EQ(0, events.lNetworkEvents);
    t.sync();
    CloseHandle(event);
}
PARTNER(71) {
    Socket listener, s;
    if (!t.listener(listener, 1)) return;
    EXPECT_EQ(0, listener.accept(s, patience_ms));
    t.sync();
}

PAIR(77, "Backlog full: refused at once with WSAECONNREFUSED") {
    Socket listener, first, second;
    if (!t.listener(listener, 1)) return;
    HANDLE event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
    int error = 0;
    // The first stays in the queue, unanswered.
    EXPECT_EQ(0, first.open());
    EXPECT_EQ(0, first.bind(t.own_ip, santools::any_port()));
    EXPECT_EQ(0, procs().lpWSPEventSelect(first.handle(), event, FD_CONNECT, &error));
    sockaddr_in a = {};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = __builtin_bswap32(t.peer_ip);
    a.sin_port = __builtin_bswap16(t.port);
    procs().lpWSPConnect(first.handle(), reinterpret_cast<sockaddr *>(&a), sizeof a, nullptr, nullptr, nullptr, nullptr,
                         &error);
    EXPECT_EQ(WSAEWOULDBLOCK, error);
    t.sync(); // the partner has seen it
    const uint64_t begin = sanswitch::now_ms();
    EXPECT_EQ(WSAECONNREFUSED, connect_to(t, second));
    EXPECT(sanswitch::now_ms() - begin < 2000);
    t.sync();
    CloseHandle(event);
}
PARTNER(77) {
    Socket l;
    if (!t.listener(l, 1)) return;
    Seen seen = {0, 0, CF_DEFER, 0, 0, 0};
    int error;
    accept_with(l, seen, error); // it has arrived, and stays
    EXPECT_EQ(WSATRY_AGAIN, error);
    t.sync();
    t.sync();
}

PAIR(80, "The condition function runs in the caller's thread, before anything is said to the peer; CF_REJECT refuses") {
    Socket listener, s;
    if (!t.listener(listener, 4)) return;
    EXPECT_EQ(WSAECONNREFUSED, connect_to(t, s));
    EXPECT_EQ(0, connect_to(t, s));
    t.sync();
}
PARTNER(80) {
    Socket l;
    if (!t.listener(l, 4)) return;
    Seen seen = {0, 0, CF_REJECT, 0, 0, 0};
    int error;
    EXPECT_EQ(INVALID_SOCKET, accept_with(l, seen, error));
    EXPECT_EQ(WSAECONNREFUSED, error);
    EXPECT_EQ(GetCurrentThreadId(), seen.thread);
    EXPECT_EQ(1, seen.calls);
    EXPECT_EQ(t.peer_ip, seen.caller_ip);
    EXPECT_EQ(t.own_ip, seen.callee_ip);
    EXPECT_EQ(t.port, seen.callee_port);
    seen.answer = CF_ACCEPT;
    const LONG created = sanswitch::counters().handles_created;
    SOCKET accepted = accept_with(l, seen, error);
    EXPECT(accepted != INVALID_SOCKET);
    EXPECT_EQ(created + 1, sanswitch::counters().handles_created);
    t.sync();
    close_raw(accepted);
}

PAIR(86, "More requests in the queue: the listener's event is set again") {
    Socket l, a, b;
    if (!t.listener(l, 4)) return;
    EXPECT_EQ(0, connect_to(t, a)); // accepted with the deferred one
    t.sync();
    EXPECT_EQ(0, connect_to(t, b));
    t.sync();
}
PARTNER(86) {
    Socket l, first, second;
    if (!t.listener(l, 4)) return;
    Seen seen = {0, 0, CF_DEFER, 0, 0, 0};
    int error;
    accept_with(l, seen, error);
    EXPECT_EQ(WSATRY_AGAIN, error);
    EXPECT_EQ(0, l.accept(first, patience_ms)); // the deferred one is still the first
    t.sync();
    EXPECT_EQ(0, l.accept(second, patience_ms)); // sleeps on the event
    t.sync();
}

PAIR(88, "An early message is kept until a receive is posted") {
    CONNECTED_WITH(4096);
    memset(m.data(), 0x5a, 256);
    Operation op;
    op.prepare(false);
    const Piece piece = m.piece(0, 256);
    EXPECT_EQ(0, s.send(op, &piece, 1));
    DWORD bytes;
    t.sync();
    EXPECT_EQ(WSA_IO_INCOMPLETE, s.poll(op, bytes)); // not there yet (WSD-149)
    EXPECT_EQ(0, s.wait(op, bytes, patience_ms));
    EXPECT_EQ(256, bytes);
    t.sync();
}
PARTNER(88) {
    CONNECTED();
    t.sync(); // it has been sent
    Sleep(500);
    Memory m;
    EXPECT_EQ(0, m.make(s, 4096));
    DWORD bytes = 0;
    EXPECT_EQ(0, recv_now(s, m.piece(0, 4096), bytes));
    EXPECT_EQ(256, bytes);
    for (int i = 0; i < 256; ++i) EXPECT_EQ(0x5a, m.data()[i]);
    t.sync();
}

// Where early messages wait is the NIC's business (here: at the sender). What the rule asks for is that they come one to one, and in
// order, into the receives posted later, and what is sent after them behind them.
PAIR(89, "Early messages come one to one into newly posted receives, then what follows") {
    CONNECTED_WITH(8 * 256);
    static Operation ops[8];
    for (uint32_t i = 0; i < 8; ++i) {
        if (i == 5) t.sync(); // five are early: no receive is posted yet
        memset(m.data() + i * 256, static_cast<int>('a' + i), 256);
        ops[i].prepare(false);
        const Piece piece = m.piece(i * 256, 256 - i * 40 % 256);
        EXPECT_EQ(0, s.send(ops[i], &piece, 1));
    }
    DWORD bytes;
    for (Operation &op : ops) EXPECT_EQ(0, s.wait(op, bytes, patience_ms));
    t.sync();
}
PARTNER(89) {
    CONNECTED_WITH(8 * 256);
    t.sync();
    Sleep(100);
    static Operation ops[8];
    for (uint32_t i = 0; i < 8; ++i) {
        ops[i].prepare(false);
        const Piece piece = m.piece(i * 256, 256);
        EXPECT_EQ(0, s.recv(ops[i], &piece, 1));
    }
    for (uint32_t i = 0; i < 8; ++i) {
        const uint32_t length = 256 - i * 40 % 256;
        DWORD bytes = 0;
        EXPECT_EQ(0, s.wait(ops[i], bytes, patience_ms));
        EXPECT_EQ(length, bytes);
        for (uint32_t k = 0; k < 256; ++k) EXPECT_EQ(k < length ? 'a' + i : 0, m.data()[i * 256 + k]);
    }
    t.sync();
}

PAIR(160, "Close: the peer's posted receives end with WSAECONNRESET") {
    CONNECTED();
    t.sync();
    EXPECT_EQ(0, s.close());
    t.sync();
}
PARTNER(160) {
    CONNECTED_WITH(4096);
    Operation polled, notified;
    notified.event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
    polled.prepare(false);
    notified.prepare(true);
    const Piece a = m.piece(0, 64), b = m.piece(64, 64);
    EXPECT_EQ(0, s.recv(polled, &a, 1));
    EXPECT_EQ(0, s.recv(notified, &b, 1));
    t.sync();
    DWORD bytes = 1;
    EXPECT_EQ(WSAECONNRESET, s.wait(polled, bytes, patience_ms));
    EXPECT_EQ(0, polled.notifications);
    EXPECT_EQ(WSAECONNRESET, s.wait(notified, bytes, patience_ms));
    EXPECT_EQ(1, notified.notifications);
    EXPECT_EQ(WSAECONNRESET, notified.error);
    EXPECT_EQ(0, notified.bytes);
    // Later posts tell the same.
    Operation late;
    late.prepare(false);
    EXPECT_EQ(WSAECONNRESET, s.recv(late, &a, 1));
    t.sync();
    CloseHandle(notified.event);
}

PAIR(161, "Close completes what is pending with WSA_OPERATION_ABORTED, exactly once") {
    CONNECTED_WITH(65536);
    constexpr int n = 100; // beyond the depth of the rings
    static Operation ops[n];
    for (int i = 0; i < n; ++i) {
        ops[i].prepare(i % 2);
        const Piece piece = m.piece(i * 64, 64);
        EXPECT_EQ(0, s.recv(ops[i], &piece, 1));
    }
    const uint64_t begin = sanswitch::now_ms();
    EXPECT_EQ(0, s.close());
    EXPECT(sanswitch::now_ms() - begin < 2000);
    for (int i = 0; i < n; ++i) {
        EXPECT(ops[i].finished());
        EXPECT_EQ(WSA_OPERATION_ABORTED, ops[i].overlapped.OffsetHigh);
        EXPECT_EQ(i % 2, ops[i].notifications);
    }
    t.sync();
}
PARTNER(161) {
    CONNECTED();
    t.sync();
}

PAIR(165, "Close during connect aborts it promptly") {
    Socket l, s;
    if (!t.listener(l, 1)) return;
    EXPECT_EQ(0, s.open());
    EXPECT_EQ(0, s.bind(t.own_ip, santools::any_port()));
    EXPECT_EQ(WSAETIMEDOUT, s.connect(t.peer_ip, t.port, 100)); // nobody accepts
    const uint64_t begin = sanswitch::now_ms();
    EXPECT_EQ(0, s.close());
    EXPECT(sanswitch::now_ms() - begin < 2000);
    t.sync();
}
PARTNER(165) {
    Socket l;
    if (!t.listener(l, 1)) return;
    t.sync();
}

WITH(35, 80, "Addresses are translated both ways: connect by IP, and the acceptor sees the connector's IP");
WITH(73, 71, "WSPEnumNetworkEvents resets the event, clears the record, gives the code of each event");
WITH(78, 80, "Refused by the peer's provider: connect fails with WSAECONNREFUSED");
WITH(79, 86, "SetEvent on an incoming request");
WITH(82, 80, "CF_ACCEPT tells the peer, CF_REJECT refuses it");
WITH(83, 80, "CF_REJECT: WSPAccept gives WSAECONNREFUSED");
WITH(84, 80, "CF_ACCEPT: one WPUCreateSocketHandle, and a descriptor of the provider's own");
WITH(90, 88, "No connection is dropped for lack of a posted receive");
WITH(91, 80, "Caller and callee are sockaddr_in, the callee is the actual destination");
WITH(149, 88, "A send has completed when the peer's NIC has it, not before");
WITH(148, 160, "Errors carry 0 bytes; the peer's close is WSAECONNRESET");
WITH(164, 160, "The structures of a socket whose peer has gone last until WSPCloseSocket");
WITH(167, 161, "WSPCloseSocket neither blocks nor asks to be called again");

PAIR(72, "SetEvent when a connect has ended, with success or failure") {
    Socket l, good, bad;
    if (!t.listener(l, 4)) return;
    // The peer's NIC answers that nobody listens: a TCP-only listener may, so it must not look like a refusal (WSD-074).
    EXPECT_EQ(0, bad.open());
    EXPECT_EQ(0, bad.bind(t.own_ip, santools::any_port()));
    const uint64_t begin = sanswitch::now_ms();
    const int error = bad.connect(t.peer_ip, 1, patience_ms + 2000);
    EXPECT_EQ(WSAETIMEDOUT, error);
    EXPECT(sanswitch::now_ms() - begin < 2000); // told by the event, not by our patience
    EXPECT_EQ(0, connect_to(t, good));
    t.sync();
}
PARTNER(72) {
    Socket l, s;
    if (!t.listener(l, 4)) return;
    EXPECT_EQ(0, l.accept(s, patience_ms));
    t.sync();
}
WITH(74, 72, "WSAECONNRESET, WSAECONNREFUSED, WSAEHOSTUNREACH only if TCP would fail, too");

PAIR(81, "Nothing is said to the peer before the condition function has decided") {
    Socket l, s;
    if (!t.listener(l, 4)) return;
    HANDLE event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
    int error = 0;
    EXPECT_EQ(0, s.open());
    EXPECT_EQ(0, s.bind(t.own_ip, santools::any_port()));
    EXPECT_EQ(0, procs().lpWSPEventSelect(s.handle(), event, FD_CONNECT, &error));
    sockaddr_in a = {};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = __builtin_bswap32(t.peer_ip);
    a.sin_port = __builtin_bswap16(t.port);
    procs().lpWSPConnect(s.handle(), reinterpret_cast<sockaddr *>(&a), sizeof a, nullptr, nullptr, nullptr, nullptr, &error);
    EXPECT_EQ(WSAEWOULDBLOCK, error);
    t.sync(); // deferred there
    EXPECT_EQ(WAIT_TIMEOUT, WaitForSingleObject(event, 200));
    t.sync();
    EXPECT_EQ(WAIT_OBJECT_0, WaitForSingleObject(event, patience_ms));
    t.sync();
    CloseHandle(event);
}
PARTNER(81) {
    Socket l;
    if (!t.listener(l, 4)) return;
    HANDLE event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
    int error = 0;
    EXPECT_EQ(0, procs().lpWSPEventSelect(l.handle(), event, FD_ACCEPT, &error));
    Seen seen = {0, 0, CF_DEFER, 0, 0, 0};
    EXPECT_EQ(INVALID_SOCKET, accept_with(l, seen, error));
    EXPECT_EQ(WSATRY_AGAIN, error);
    t.sync();
    t.sync(); // it has waited in vain
    seen.answer = CF_ACCEPT;
    SetEvent(event); // as the request did
    const SOCKET accepted = accept_with(l, seen, error);
    EXPECT(accepted != INVALID_SOCKET);
    EXPECT_EQ(2, seen.calls);
    EXPECT_EQ(WAIT_TIMEOUT, WaitForSingleObject(event, 0)); // WSD-085
    t.sync();
    close_raw(accepted);
    CloseHandle(event);
}
WITH(85, 81, "A successful WSPAccept leaves the event reset when no more requests wait");

namespace {

// In the up-call that ends an operation its memory is free already.
struct AtTheEnd {
    void *memory;
    LONG asked_before, asked_after;
    BOOL freed;
};
void free_memory(Operation *op) {
    auto *end = static_cast<AtTheEnd *>(op->context);
    end->asked_before = sanswitch::counters().cache_callbacks;
    end->freed = VirtualFree(end->memory, 0, MEM_RELEASE);
    end->asked_after = sanswitch::counters().cache_callbacks;
}

} // namespace

PAIR(162, "Close: an operation's memory is released before its end is signalled") {
    CONNECTED();
    AtTheEnd end = {VirtualAlloc(nullptr, 65536, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE), 0, 0, FALSE};
    EXPECT(end.memory != nullptr);
    HANDLE h;
    EXPECT_EQ(0, s.register_memory(end.memory, 65536, MEM_READWRITE, h));
    Operation op;
    op.callback = free_memory;
    op.context = &end;
    op.prepare(true);
    const Piece piece = {end.memory, 64, h};
    EXPECT_EQ(0, s.recv(op, &piece, 1));
    EXPECT_EQ(0, s.close());
    EXPECT_EQ(1, op.notifications);
    EXPECT_EQ(WSA_OPERATION_ABORTED, op.error);
    EXPECT(end.freed);
    EXPECT_EQ(end.asked_before, end.asked_after); // nothing secured it any more
    t.sync();
}
PARTNER(162) {
    CONNECTED();
    t.sync();
}
WITH(113, 162, "The provider releases the memory of outstanding operations itself when the socket closes");

PAIR(166, "Close during RDMA forces its end, and the NIC uses the buffers no more") {
    CONNECTED();
    const RemoteBuffer remote = t.take();
    Memory m;
    constexpr uint32_t size = 1 << 20;
    constexpr int n = 40;
    EXPECT_EQ(0, m.make(s, size));
    static Operation ops[n];
    for (int i = 0; i < n; ++i) {
        ops[i].prepare(i % 2);
        const Piece piece = m.piece(0, size);
        EXPECT_EQ(0, i % 4 < 2 ? s.write(ops[i], &piece, 1, remote, 0) : s.read(ops[i], &piece, 1, remote, 0));
    }
    const uint64_t begin = sanswitch::now_ms();
    EXPECT_EQ(0, s.close());
    EXPECT(sanswitch::now_ms() - begin < 3000);
    memset(m.data(), 0x11, size);
    for (int i = 0; i < n; ++i) {
        EXPECT(ops[i].finished());
        const DWORD error = ops[i].overlapped.OffsetHigh;
        EXPECT(error == 0 || error == WSA_OPERATION_ABORTED || error == WSAECONNABORTED);
        EXPECT_EQ(i % 2, ops[i].notifications);
    }
    Sleep(50);
    for (uint32_t i = 0; i < size; i += 256) EXPECT_EQ(0x11, m.data()[i]); // no read arrives late
    const LONG asked = sanswitch::counters().cache_callbacks;
    m.buffer.free();
    EXPECT_EQ(asked, sanswitch::counters().cache_callbacks);
    t.sync();
}
PARTNER(166) {
    CONNECTED();
    Buffer area;
    EXPECT(area.alloc(1 << 20));
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(area.data(), 1 << 20, MEM_READWRITE, exposed));
    t.give(exposed);
    t.sync();
}

PAIR(168, "The last WSPCleanup aborts what is pending and frees everything; then WSANOTINITIALISED") {
    Socket l;
    if (!t.listener(l, 4)) return;
    Child child; // a process of its own: this one still needs its provider
    EXPECT(child.start());
    Child::Message m = {};
    m.verb = Child::connect;
    m.ip = t.peer_ip;
    m.port = t.port;
    EXPECT(child.ask(m));
    EXPECT_EQ(0, m.error);
    t.sync(); // the partner's receive is posted
    m.verb = Child::cleanup;
    EXPECT(child.ask(m));
    EXPECT_EQ(0, m.error);
    t.sync();
}
PARTNER(168) {
    Socket l, s;
    if (!t.listener(l, 4)) return;
    EXPECT_EQ(0, l.accept(s, patience_ms));
    Memory m;
    DWORD bytes;
    EXPECT_EQ(0, m.make(s, 4096));
    Operation op;
    op.prepare(false);
    const Piece piece = m.piece(0, 64);
    EXPECT_EQ(0, s.recv(op, &piece, 1));
    t.sync();
    EXPECT_EQ(WSAECONNRESET, s.wait(op, bytes, 2 * patience_ms));
    t.sync();
}
