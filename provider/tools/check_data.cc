// SPDX-License-Identifier: GPL-2.0-or-later
//
// Rules of data transfer; two machines.
#include "conformance.h"
#include "import_spy.h"

#include <cstring>
#include <initializer_list>

using namespace santest;

namespace {

void pattern(unsigned char *at, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; ++i) at[i] = static_cast<unsigned char>(i * 31 + seed * 7 + (i >> 8));
}
bool holds(const unsigned char *at, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; ++i)
        if (at[i] != static_cast<unsigned char>(i * 31 + seed * 7 + (i >> 8))) return false;
    return true;
}
bool all_zero(const unsigned char *at, size_t n) {
    for (size_t i = 0; i < n; ++i)
        if (at[i]) return false;
    return true;
}

} // namespace

PAIR(131, "Data calls return WSA_IO_PENDING at once") {
    CONNECTED_WITH(8192);
    pattern(m.data(), 8192, 1);
    Operation polled, notified;
    notified.event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
    polled.prepare(false);
    notified.prepare(true);
    WSABUF buffer = {4096, reinterpret_cast<char *>(m.data())};
    DWORD sent = 0;
    int error = 0;
    EXPECT_EQ(SOCKET_ERROR, sanswitch::procs().lpWSPSend(s.handle(), &buffer, 1, &sent, 0, &polled.overlapped, nullptr,
                                                         nullptr, &error));
    EXPECT_EQ(WSA_IO_PENDING, error);
    const Piece piece = m.piece(4096, 4096);
    EXPECT_EQ(0, s.send(notified, &piece, 1));
    DWORD bytes = 0;
    EXPECT_EQ(0, s.wait(polled, bytes, patience_ms));
    EXPECT_EQ(4096, bytes);
    EXPECT_EQ(0, polled.notifications);
    EXPECT_EQ(WAIT_OBJECT_0, WaitForSingleObject(notified.event, patience_ms));
    EXPECT_EQ(1, notified.notifications);
    EXPECT_EQ(4096, notified.bytes);
    EXPECT_EQ(4096, notified.overlapped.InternalHigh);
    EXPECT_EQ(4096, notified.high_when_notified);
    t.sync();
    CloseHandle(notified.event);
}
PARTNER(131) {
    CONNECTED_WITH(8192);
    DWORD bytes = 0;
    EXPECT_EQ(0, recv_now(s, m.piece(0, 4096), bytes));
    EXPECT_EQ(4096, bytes);
    EXPECT_EQ(0, recv_now(s, m.piece(4096, 4096), bytes));
    EXPECT(holds(m.data(), 8192, 1));
    t.sync();
}

PAIR(134, "WSPGetOverlappedResult: WSA_IO_INCOMPLETE while pending, then bytes") {
    CONNECTED_WITH(4096);
    Operation op;
    op.prepare(false);
    const Piece piece = m.piece(0, 4096);
    EXPECT_EQ(0, s.recv(op, &piece, 1));
    DWORD bytes = 0;
    EXPECT_EQ(WSA_IO_INCOMPLETE, s.poll(op, bytes));
    EXPECT_EQ(WSS_OPERATION_IN_PROGRESS, op.overlapped.Internal);
    EXPECT_EQ(1, reinterpret_cast<uintptr_t>(op.overlapped.hEvent)); // the switch's, untouched
    t.sync();
    EXPECT_EQ(0, s.wait(op, bytes, patience_ms));
    EXPECT_EQ(100, bytes);
    EXPECT_EQ(100, op.overlapped.InternalHigh);
    EXPECT_EQ(1, reinterpret_cast<uintptr_t>(op.overlapped.hEvent));
    t.sync();
}
PARTNER(134) {
    CONNECTED_WITH(4096);
    t.sync();
    EXPECT_EQ(0, send_now(s, m.piece(0, 100)));
    t.sync();
}

PAIR(139, "One send is one message in one receive, in order") {
    CONNECTED();
    Memory m;
    constexpr int n = 200;
    EXPECT_EQ(0, m.make(s, n * 256));
    static Operation ops[n];
    t.sync();
    for (int i = 0; i < n; ++i) {
        pattern(m.data() + i * 256, 256, i);
        ops[i].prepare(false);
        const Piece piece = m.piece(i * 256, 1 + i % 256);
        EXPECT_EQ(0, s.send(ops[i], &piece, 1));
    }
    for (int i = 0; i < n; ++i) {
        DWORD bytes = 0;
        EXPECT_EQ(0, s.wait(ops[i], bytes, patience_ms));
        EXPECT_EQ(1 + i % 256, bytes);
    }
    t.sync();
}
PARTNER(139) {
    CONNECTED();
    Memory m;
    constexpr int n = 200;
    EXPECT_EQ(0, m.make(s, n * 256));
    static Operation ops[n];
    for (int i = 0; i < n; ++i) {
        ops[i].prepare(false);
        const Piece piece = m.piece(i * 256, 256);
        EXPECT_EQ(0, s.recv(ops[i], &piece, 1));
    }
    t.sync();
    for (int i = 0; i < n; ++i) {
        DWORD bytes = 0;
        EXPECT_EQ(0, s.wait(ops[i], bytes, patience_ms));
        EXPECT_EQ(1 + i % 256, bytes);
        EXPECT(holds(m.data() + i * 256, bytes, i));
    }
    t.sync();
}

PAIR(140, "Data of an RDMA write is in place when a later message arrives") {
    CONNECTED();
    Memory m;
    constexpr uint32_t size = 1 << 20;
    EXPECT_EQ(0, m.make(s, size + 64));
    const RemoteBuffer target = t.take();
    for (unsigned round = 0; round < 20; ++round) {
        pattern(m.data(), size, round);
        Operation write, send;
        write.prepare(false);
        send.prepare(false);
        const Piece data = m.piece(0, size), word = m.piece(size, 64);
        EXPECT_EQ(0, s.write(write, &data, 1, target, 0));
        EXPECT_EQ(0, s.send(send, &word, 1)); // without waiting for the write
        DWORD bytes = 0;
        EXPECT_EQ(0, s.wait(write, bytes, patience_ms));
        EXPECT_EQ(size, bytes);
        EXPECT_EQ(0, s.wait(send, bytes, patience_ms));
        t.sync();
    }
}
PARTNER(140) {
    CONNECTED();
    Memory m;
    Buffer area;
    constexpr uint32_t size = 1 << 20;
    EXPECT_EQ(0, m.make(s, 4096));
    EXPECT(area.alloc(size));
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(area.data(), size, MEM_WRITE, exposed));
    t.give(exposed);
    for (unsigned round = 0; round < 20; ++round) {
        DWORD bytes = 0;
        EXPECT_EQ(0, recv_now(s, m.piece(0, 64), bytes));
        EXPECT(holds(area.data(), size, round));
        t.sync();
    }
}

PAIR(141, "A message after an RDMA read does not overtake it") {
    CONNECTED();
    Memory m;
    constexpr uint32_t size = 1 << 20;
    EXPECT_EQ(0, m.make(s, size + 64));
    const RemoteBuffer source = t.take();
    for (unsigned round = 0; round < 10; ++round) {
        Operation read, send;
        read.prepare(false);
        send.prepare(false);
        const Piece data = m.piece(0, size), word = m.piece(size, 64);
        t.sync(); // filled
        EXPECT_EQ(0, s.read(read, &data, 1, source, 0));
        EXPECT_EQ(0, s.send(send, &word, 1));
        DWORD bytes = 0;
        EXPECT_EQ(0, s.wait(read, bytes, patience_ms));
        EXPECT(holds(m.data(), size, round)); // the partner spoils it as soon as the message is there
        EXPECT_EQ(0, s.wait(send, bytes, patience_ms));
        t.sync();
    }
}
PARTNER(141) {
    CONNECTED();
    Memory m;
    Buffer area;
    constexpr uint32_t size = 1 << 20;
    EXPECT_EQ(0, m.make(s, 4096));
    EXPECT(area.alloc(size));
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(area.data(), size, MEM_READ, exposed));
    t.give(exposed);
    for (unsigned round = 0; round < 10; ++round) {
        pattern(area.data(), size, round);
        Operation op;
        op.prepare(false);
        const Piece word = m.piece(0, 64);
        EXPECT_EQ(0, s.recv(op, &word, 1));
        t.sync();
        DWORD bytes = 0;
        EXPECT_EQ(0, s.wait(op, bytes, patience_ms));
        memset(area.data(), 0xee, size);
        t.sync();
    }
}

PAIR(142, "Offset and bounds of the remote registration are kept") {
    CONNECTED_WITH(65536);
    const RemoteBuffer target = t.take();
    for (uint32_t offset : {1u, 4095u, 4096u, 10000u, 16384u - 100u}) {
        pattern(m.data(), 100, offset);
        EXPECT_EQ(0, write_now(s, m.piece(0, 100), target, offset));
        memset(m.data() + 1000, 0, 100);
        EXPECT_EQ(0, read_now(s, m.piece(1000, 100), target, offset));
        EXPECT(holds(m.data() + 1000, 100, offset));
    }
    t.sync();
    t.sync(); // the partner has looked
    // Beyond the end, by one byte and by much: refused here.
    EXPECT_EQ(WSAEINVAL, write_now(s, m.piece(0, 101), target, 16384 - 100));
    EXPECT_EQ(WSAEINVAL, write_now(s, m.piece(0, 1), target, 0xffffffff));
    // A peer that lies about the length: the NIC refuses, the connection ends, nothing is touched.
    RemoteBuffer lie = target;
    const uint32_t length = 0x7fffffff;
    memcpy(lie.bytes + 24, &length, 4);
    EXPECT_EQ(WSAECONNABORTED, write_now(s, m.piece(0, 101), lie, 16384 - 100));
    t.sync();
}
PARTNER(142) {
    CONNECTED();
    Buffer area;
    constexpr uint32_t size = 16384, before = 4096 + 17;
    EXPECT(area.alloc(65536));
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(area.data() + before, size, MEM_READWRITE, exposed)); // any address
    t.give(exposed);
    t.sync();
    for (uint32_t offset : {1u, 10000u}) EXPECT(holds(area.data() + before + offset, 100, offset));
    EXPECT(all_zero(area.data(), before + 1));
    EXPECT(all_zero(area.data() + before + size, 65536 - before - size));
    t.sync();
    t.sync();
    EXPECT(all_zero(area.data() + before + size, 65536 - before - size));
}

PAIR(144, "RDMA with 16 buffers, and with more than the NIC takes at once") {
    CONNECTED_WITH(65536);
    pattern(m.data(), 65536, 3);
    const RemoteBuffer target = t.take();
    for (uint32_t count : {4u, 16u, 40u}) {
        Piece pieces[40];
        const uint32_t length = 777;
        for (uint32_t i = 0; i < count; ++i) pieces[i] = m.piece(i * 1001, length);
        Operation op;
        op.prepare(false);
        EXPECT_EQ(0, s.write(op, pieces, count, target, 5));
        DWORD bytes = 0;
        EXPECT_EQ(0, s.wait(op, bytes, patience_ms));
        EXPECT_EQ(count * length, bytes);
        Memory back;
        EXPECT_EQ(0, back.make(s, 65536));
        for (uint32_t i = 0; i < count; ++i) pieces[i] = back.piece(i * 1500 + 3, length);
        op.prepare(false);
        EXPECT_EQ(0, s.read(op, pieces, count, target, 5));
        EXPECT_EQ(0, s.wait(op, bytes, patience_ms));
        for (uint32_t i = 0; i < count; ++i)
            EXPECT_EQ(0, memcmp(back.data() + i * 1500 + 3, m.data() + i * 1001, length));
        EXPECT_EQ(0, s.deregister_memory(back.handle));
    }
    t.sync();
}
PARTNER(144) {
    CONNECTED();
    Buffer area;
    EXPECT(area.alloc(65536));
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(area.data(), 65536, MEM_READWRITE, exposed));
    t.give(exposed);
    t.sync();
}

PAIR(145, "Sends find their registration by address; elsewhere it is WSAEFAULT") {
    CONNECTED_WITH(8192, MEM_READ);
    Buffer other;
    EXPECT(other.alloc(4096));
    EXPECT_EQ(0, send_now(s, m.piece(4000, 200)));
    const Piece outside = {other.data(), 100, nullptr}, over = m.piece(8190, 3);
    EXPECT_EQ(WSAEFAULT, send_now(s, outside));
    EXPECT_EQ(WSAEFAULT, send_now(s, over));
    DWORD bytes;
    EXPECT_EQ(WSAEFAULT, recv_now(s, m.piece(0, 100), bytes)); // registered for reading only (WSD-105)
    t.sync();
}
PARTNER(145) {
    CONNECTED_WITH(4096);
    DWORD bytes = 0;
    EXPECT_EQ(0, recv_now(s, m.piece(0, 4096), bytes));
    EXPECT_EQ(200, bytes);
    t.sync();
}

WITH(76, 139, "An established connection is served fully");
WITH(100, 145, "All buffers that cross to the NIC are locked and registered");
WITH(130, 139, "Reliable, in order, uncorrupted");
WITH(132, 131, "Bit 0 of hEvent set: no notification");
WITH(133, 131, "Bit 0 of hEvent clear: WPUCompleteOverlappedRequest exactly once");
WITH(135, 134, "Internal, InternalHigh and hEvent are touched by the protocol's rules only");
WITH(136, 131, "InternalHigh is valid before the notification");
WITH(137, 134, "Internal says in progress from the start");
WITH(138, 131, "No APC, no completion routine");
WITH(143, 139, "200 receives and sends outstanding on a socket: more than the NIC's depth are queued");

PAIR(147, "No system call on the fast path: posting, polling, and a cached registration") {
    CONNECTED_WITH(65536);
    const RemoteBuffer target = t.take();
    DWORD bytes;
    Operation ops[4];
    auto all = [&]() -> int {
        for (Operation &op : ops) op.prepare(false);
        const Piece out = m.piece(0, 4096), in = m.piece(8192, 4096);
        int error = s.recv(ops[0], &in, 1);
        if (!error) error = s.write(ops[1], &out, 1, target, 0);
        if (!error) error = s.read(ops[2], &out, 1, target, 4096);
        if (!error) error = s.send(ops[3], &out, 1);
        for (Operation &op : ops)
            if (!error) {
                const uint64_t end = sanswitch::now_ms() + patience_ms;
                while ((error = s.poll(op, bytes)) == WSA_IO_INCOMPLETE && sanswitch::now_ms() < end) YieldProcessor();
            }
        return error;
    };
    // What is made at the first use is there from then on.
    EXPECT_EQ(0, all());
    HANDLE h;
    EXPECT_EQ(0, s.register_memory(m.data(), 65536, MEM_READWRITE, h));
    EXPECT_EQ(0, s.deregister_memory(h));
    ImportSpy spy;
    if (!spy.complete()) return t.fail("the provider's import %s cannot be watched", spy.problem());
    for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(0, all());
        EXPECT_EQ(0, s.register_memory(m.data(), 65536, MEM_READWRITE, h));
        EXPECT_EQ(0, s.deregister_memory(h));
    }
    EXPECT_EQ(0, spy.system_calls());
    EXPECT_EQ(0, spy.heap_calls());
    t.sync();
}
PARTNER(147) {
    CONNECTED_WITH(8192);
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(m.data(), 8192, MEM_READWRITE, exposed));
    t.give(exposed);
    for (int i = 0; i < 51; ++i) {
        DWORD bytes;
        EXPECT_EQ(0, recv_now(s, m.piece(0, 4096), bytes));
        EXPECT_EQ(0, send_now(s, m.piece(0, 4096)));
    }
    t.sync();
}
WITH(192, 139, "No dependence on the format of messages");

namespace {

// An up-call that comes back into the provider, and waits for another thread that does the same, would stand still if a lock
// were held.
struct Reentry {
    Socket *s;
    Memory *m;
    Operation *next;
    volatile int posted, other;
    volatile LONG done;
};
DWORD WINAPI other_thread(LPVOID parameter) {
    auto *r = static_cast<Reentry *>(parameter);
    HANDLE h;
    int error = r->s->register_memory(r->m->data(), 100, MEM_READ, h);
    if (!error) error = r->s->deregister_memory(h);
    DWORD bytes;
    if (!error && r->s->poll(*r->next, bytes) != WSA_IO_INCOMPLETE) error = -1;
    r->other = error;
    return 0;
}
void on_end(Operation *op) {
    auto *r = static_cast<Reentry *>(op->context);
    const Piece piece = r->m->piece(64, 64);
    r->next->prepare(false);
    r->posted = r->s->recv(*r->next, &piece, 1);
    HANDLE thread = CreateThread(nullptr, 0, other_thread, r, 0, nullptr);
    if (!thread || WaitForSingleObject(thread, patience_ms) != WAIT_OBJECT_0) r->other = WSAETIMEDOUT;
    if (thread) CloseHandle(thread);
    InterlockedExchange(&r->done, 1);
}

} // namespace

PAIR(146, "No lock is held in an up-call: it may call back, and other threads go on") {
    CONNECTED_WITH(4096);
    static Operation first, second;
    Reentry r = {&s, &m, &second, -1, -1, 0};
    first.callback = on_end;
    first.context = &r;
    first.prepare(true);
    const Piece piece = m.piece(0, 64);
    EXPECT_EQ(0, s.recv(first, &piece, 1));
    t.sync();
    const uint64_t end = sanswitch::now_ms() + 2 * patience_ms;
    while (!r.done && sanswitch::now_ms() < end) Sleep(1);
    t.sync();
    EXPECT_EQ(1, r.done);
    EXPECT_EQ(0, r.posted);
    EXPECT_EQ(0, r.other);
    DWORD bytes;
    EXPECT_EQ(0, s.wait(second, bytes, patience_ms));
    t.sync();
}
PARTNER(146) {
    CONNECTED_WITH(4096);
    t.sync();
    EXPECT_EQ(0, send_now(s, m.piece(0, 64)));
    t.sync();
    EXPECT_EQ(0, send_now(s, m.piece(0, 64)));
    t.sync();
}
