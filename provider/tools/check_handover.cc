// SPDX-License-Identifier: GPL-2.0-or-later
//
// Rules of sockets that move to another process: the client has two processes, the partner must not notice.
#include "conformance.h"

#include <cstring>
#include <initializer_list>

using namespace santest;

namespace {

// The verb's error; -100 when the child does not answer.
int ask(Child &c, Child::Verb verb, Child::Message &m) {
    m.verb = verb;
    return c.ask(m) ? static_cast<int>(m.error) : -100;
}
int ask(Child &c, Child::Verb verb, uint32_t value = 0) {
    Child::Message m = {};
    m.value = value;
    return ask(c, verb, m);
}
int give_token(Child &c, Child::Verb verb, DWORD token, Child::Message &m) {
    m = {};
    m.token = token;
    return ask(c, verb, m);
}

int send_pattern(Socket &s, uint32_t seed) {
    Memory m;
    const int error = m.make(s, 4096);
    if (error) return error;
    for (uint32_t i = 0; i < 1000; ++i) m.data()[i] = static_cast<unsigned char>(i + seed);
    return send_now(s, m.piece(0, 1000));
}

bool has_pattern(const unsigned char *at, uint32_t seed) {
    for (uint32_t i = 0; i < 1000; ++i)
        if (at[i] != static_cast<unsigned char>(i + seed)) return false;
    return true;
}

SOCKET take_raw(DWORD token, int &error) {
    WSAPROTOCOL_INFOW info = {};
    info.dwProviderReserved = token;
    error = 0;
    return sanswitch::procs().lpWSPSocket(AF_INET, SOCK_STREAM, IPPROTO_TCP, &info, 0, WSA_FLAG_OVERLAPPED, &error);
}

} // namespace

PAIR(169, "WSPDuplicateSocket completes receives with success and 0 bytes, and releases their memory") {
    CONNECTED();
    Child child;
    EXPECT(child.start());
    Memory m;
    EXPECT_EQ(0, m.make(s, 65536));
    constexpr int n = 100; // more than the ring holds
    static Operation ops[n];
    for (int i = 0; i < n; ++i) {
        ops[i].prepare(i % 2);
        const Piece piece = m.piece(i * 64, 64);
        EXPECT_EQ(0, s.recv(ops[i], &piece, 1));
    }
    DWORD token = 0;
    EXPECT_EQ(0, s.duplicate(child.id(), token));
    for (int i = 0; i < n; ++i) {
        EXPECT(ops[i].finished());
        EXPECT_EQ(0, ops[i].overlapped.OffsetHigh);
        EXPECT_EQ(0, ops[i].overlapped.InternalHigh);
        EXPECT_EQ(i % 2, ops[i].notifications);
    }
    // Nothing secures the memory any more.
    const LONG asked = sanswitch::counters().cache_callbacks;
    m.buffer.free();
    EXPECT_EQ(asked, sanswitch::counters().cache_callbacks);
    Child::Message answer;
    EXPECT_EQ(0, give_token(child, Child::take, token, answer));
    t.sync();
}
PARTNER(169) {
    CONNECTED();
    t.sync();
}

PAIR(170, "dwProviderReserved: unique, valid in the target process only, usable once") {
    Socket a, b;
    if (!t.connect(a) || !t.connect(b)) return;
    Child child, other;
    EXPECT(child.start() && other.start());
    DWORD first = 0, second = 0, again = 0;
    EXPECT_EQ(WSAEINVAL, a.duplicate(0x7ffffff0, first)); // no such process: nothing has changed
    EXPECT_EQ(0, send_pattern(a, 1));
    EXPECT_EQ(0, a.duplicate(child.id(), first));
    EXPECT_EQ(WSAEINVAL, a.duplicate(child.id(), again)); // it is not ours any more
    EXPECT_EQ(0, b.duplicate(child.id(), second));
    EXPECT(first != 0 && second != 0 && first != second);
    int error;
    Child::Message m;
    EXPECT_EQ(INVALID_SOCKET, take_raw(first, error)); // not the target
    EXPECT_EQ(WSAEINVAL, error);
    EXPECT_EQ(WSAEINVAL, give_token(other, Child::take, first, m));
    EXPECT_EQ(WSAEINVAL, give_token(child, Child::take, first ^ 1, m));
    EXPECT_EQ(0, give_token(child, Child::take, first, m));
    EXPECT_EQ(1, m.created);
    EXPECT_EQ(WSAEINVAL, give_token(child, Child::take, first, m)); // once
    EXPECT_EQ(0, ask(child, Child::send, 2));
    t.sync();
}
PARTNER(170) {
    Socket a, b;
    if (!t.connect(a) || !t.connect(b)) return;
    Memory m;
    DWORD bytes = 0;
    EXPECT_EQ(0, m.make(a, 4096));
    for (uint32_t seed : {1u, 2u}) {
        EXPECT_EQ(0, recv_now(a, m.piece(0, 4096), bytes));
        EXPECT_EQ(1000, bytes);
        EXPECT(has_pattern(m.data(), seed));
    }
    t.sync();
}

PAIR(171, "The other process has the socket in its earlier state, and back again; the peer notices nothing") {
    CONNECTED();
    Child child;
    EXPECT(child.start());
    const SOCKET descriptor = s.handle();
    t.sync(); // the partner's receives are posted
    for (uint32_t round = 0; round < 3; ++round) {
        EXPECT_EQ(0, send_pattern(s, 10 * round));
        DWORD token = 0;
        EXPECT_EQ(0, s.duplicate(child.id(), token));
        Child::Message m;
        EXPECT_EQ(0, give_token(child, Child::take, token, m));
        EXPECT_EQ(round == 0 ? 1 : 0, m.created); // WSD-175, in the other process
        EXPECT_EQ(0, ask(child, Child::send, 10 * round + 1));
        EXPECT_EQ(0, ask(child, Child::receive, 10 * round + 2));
        m = {};
        m.process = GetCurrentProcessId();
        EXPECT_EQ(0, ask(child, Child::duplicate, m));
        const LONG created = sanswitch::counters().handles_created;
        EXPECT_EQ(0, s.take(m.token, false));
        EXPECT_EQ(descriptor, s.handle());
        EXPECT_EQ(created, sanswitch::counters().handles_created);
        // Data moves in both directions, with fresh registrations.
        Memory memory;
        EXPECT_EQ(0, memory.make(s, 4096));
        const RemoteBuffer target = t.take();
        memset(memory.data(), static_cast<int>(round + 1), 4096);
        EXPECT_EQ(0, write_now(s, memory.piece(0, 4096), target, 0));
        t.sync();
    }
}
PARTNER(171) {
    CONNECTED_WITH(6 * 4096);
    Buffer area;
    EXPECT(area.alloc(4096));
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(area.data(), 4096, MEM_WRITE, exposed));
    static Operation ops[6]; // all posted before anything moves: they survive (WSD-173)
    for (int i = 0; i < 6; ++i) {
        ops[i].prepare(false);
        const Piece piece = m.piece(i * 4096, 4096);
        EXPECT_EQ(0, s.recv(ops[i], &piece, 1));
    }
    Memory out;
    EXPECT_EQ(0, out.make(s, 4096));
    t.sync();
    for (uint32_t round = 0; round < 3; ++round) {
        DWORD bytes = 0;
        for (int i = 0; i < 2; ++i) {
            EXPECT_EQ(0, s.wait(ops[2 * round + i], bytes, 2 * patience_ms));
            EXPECT_EQ(1000, bytes);
            EXPECT(has_pattern(m.data() + (2 * round + i) * 4096, 10 * round + i));
        }
        for (uint32_t i = 0; i < 1000; ++i) out.data()[i] = static_cast<unsigned char>(i + 10 * round + 2);
        EXPECT_EQ(0, send_now(s, out.piece(0, 1000)));
        t.give(exposed);
        t.sync();
        for (int i = 0; i < 4096; ++i) EXPECT_EQ(round + 1, area.data()[i]);
    }
}
WITH(172, 171, "The connection is there after the hand-over (it is never broken)");
WITH(173, 171, "Receives that are pending at the peer survive the hand-over");
WITH(175, 171, "A descriptor that is used again gets no second switch handle");

PAIR(174, "The old descriptor stays reserved until WSPCloseSocket") {
    CONNECTED();
    Child child;
    EXPECT(child.start());
    const SOCKET old = s.handle();
    DWORD token = 0;
    EXPECT_EQ(0, s.duplicate(child.id(), token));
    Child::Message m;
    EXPECT_EQ(0, give_token(child, Child::take, token, m));
    {
        Socket others[64];
        for (Socket &other : others) {
            EXPECT_EQ(0, other.open());
            EXPECT(other.handle() != old);
        }
    }
    const LONG closed = sanswitch::counters().handles_closed;
    EXPECT_EQ(0, s.close());
    EXPECT_EQ(closed + 1, sanswitch::counters().handles_closed);
    int error = 0;
    EXPECT_EQ(SOCKET_ERROR, sanswitch::procs().lpWSPCloseSocket(old, &error));
    EXPECT_EQ(WSAENOTSOCK, error);
    EXPECT_EQ(0, ask(child, Child::send, 5)); // the connection is the child's
    t.sync();
}
PARTNER(174) {
    CONNECTED();
    Memory m;
    DWORD bytes = 0;
    EXPECT_EQ(0, m.make(s, 4096));
    EXPECT_EQ(0, recv_now(s, m.piece(0, 4096), bytes));
    EXPECT(has_pattern(m.data(), 5));
    t.sync();
}

PAIR(176, "A listener moves, with the requests that wait, and without suspension") {
    Child child;
    EXPECT(child.start());
    Socket l;
    EXPECT_EQ(0, l.open());
    EXPECT_EQ(0, l.bind(0, t.port));
    EXPECT_EQ(0, l.listen(4));
    t.sync();
    // One request has been looked at and deferred, another one may come at any moment.
    Socket none;
    EXPECT_EQ(WSATRY_AGAIN, l.accept(none, patience_ms, [](uint32_t, uint16_t, void *) -> int { return CF_DEFER; }, nullptr));
    DWORD token = 0;
    EXPECT_EQ(0, l.duplicate(child.id(), token));
    Child::Message m;
    EXPECT_EQ(0, give_token(child, Child::take_listener, token, m));
    EXPECT_EQ(0, ask(child, Child::accept));
    EXPECT_EQ(0, ask(child, Child::send, 1));
    t.sync();
    EXPECT_EQ(0, ask(child, Child::accept)); // closes the first
    EXPECT_EQ(0, ask(child, Child::send, 2));
    t.sync();
}
PARTNER(176) {
    t.sync();
    for (uint32_t seed = 1; seed <= 2; ++seed) {
        Socket s;
        EXPECT_EQ(0, s.open());
        EXPECT_EQ(0, s.bind(t.own_ip, santools::any_port()));
        EXPECT_EQ(0, s.connect(t.peer_ip, t.port, 2 * patience_ms));
        Memory m;
        DWORD bytes = 0;
        EXPECT_EQ(0, m.make(s, 4096));
        EXPECT_EQ(0, recv_now(s, m.piece(0, 4096), bytes));
        EXPECT(has_pattern(m.data(), seed));
        t.sync();
    }
}

PAIR(177, "A hand-over that fails: the peer's receives complete with WSAECONNRESET") {
    Socket a, b;
    if (!t.connect(a) || !t.connect(b)) return;
    t.sync();
    DWORD token = 0;
    { // Dies with the token unused.
        Child child;
        EXPECT(child.start());
        EXPECT_EQ(0, a.duplicate(child.id(), token));
        Child::Message m = {};
        m.verb = Child::die;
        EXPECT(child.ask(m));
    }
    { // Dies with the socket.
        Child child;
        EXPECT(child.start());
        EXPECT_EQ(0, b.duplicate(child.id(), token));
        Child::Message m;
        EXPECT_EQ(0, give_token(child, Child::take, token, m));
        m.verb = Child::die;
        EXPECT(child.ask(m));
    }
    t.sync();
}
PARTNER(177) {
    Socket a, b;
    if (!t.connect(a) || !t.connect(b)) return;
    Memory ma, mb;
    EXPECT_EQ(0, ma.make(a, 4096));
    EXPECT_EQ(0, mb.make(b, 4096));
    Operation one, two;
    one.prepare(false);
    two.prepare(false);
    const Piece pa = ma.piece(0, 64), pb = mb.piece(0, 64);
    EXPECT_EQ(0, a.recv(one, &pa, 1));
    EXPECT_EQ(0, b.recv(two, &pb, 1));
    t.sync();
    DWORD bytes;
    EXPECT_EQ(WSAECONNRESET, a.wait(one, bytes, 2 * patience_ms));
    EXPECT_EQ(WSAECONNRESET, b.wait(two, bytes, 2 * patience_ms));
    t.sync();
}

WITH(45, 177, "User mappings are removed in the context of their process, also when it dies");

PAIR(178, "A connection outlives the process that made it: another one sends the rest and closes") {
    Socket l, s;
    if (!t.listener(l, 4)) return;
    {
        Child child;
        EXPECT(child.start());
        Child::Message m = {};
        m.ip = t.peer_ip;
        m.port = t.port;
        EXPECT_EQ(0, ask(child, Child::connect, m));
        m = {};
        m.process = GetCurrentProcessId();
        EXPECT_EQ(0, ask(child, Child::duplicate, m));
        const DWORD token = m.token;
        m.verb = Child::exit_process;
        EXPECT(child.ask(m) && child.ended());
        EXPECT_EQ(0, s.take(token, false));
    }
    EXPECT_EQ(0, send_pattern(s, 9));
    t.sync();
}
PARTNER(178) {
    Socket l, s;
    if (!t.listener(l, 4)) return;
    EXPECT_EQ(0, l.accept(s, 2 * patience_ms));
    Memory m;
    DWORD bytes = 0;
    EXPECT_EQ(0, m.make(s, 4096));
    EXPECT_EQ(0, recv_now(s, m.piece(0, 4096), bytes));
    EXPECT(has_pattern(m.data(), 9));
    t.sync();
}
