// SPDX-License-Identifier: GPL-2.0-or-later
//
// Rules of registration and of its cache; two machines, as memory is registered on connected sockets.
#include "conformance.h"

#include <cstring>

using namespace santest;
using sanswitch::extensions;

namespace {

bool all_are(const unsigned char *at, size_t n, unsigned char value) {
    for (size_t i = 0; i < n; ++i)
        if (at[i] != value) return false;
    return true;
}

} // namespace

PAIR(101, "A registration is valid on its socket only") {
    Socket a;
    if (!t.connect(a)) return;
    Socket b;
    if (!t.connect(b)) return;
    Memory m;
    EXPECT_EQ(0, m.make(a, 4096));
    EXPECT_EQ(WSAEINVAL, b.deregister_memory(m.handle));
    EXPECT_EQ(WSAEFAULT, send_now(b, m.piece(0, 100)));
    EXPECT_EQ(0, a.deregister_memory(m.handle));
    EXPECT_EQ(WSAEINVAL, a.deregister_memory(m.handle));
    t.sync();
}
PARTNER(101) {
    Socket a, b;
    if (!t.connect(a) || !t.connect(b)) return;
    t.sync();
}

PAIR(103, "A peer on another connection cannot use the descriptor") {
    Socket a, b;
    if (!t.connect(a) || !t.connect(b)) return;
    Memory m;
    EXPECT_EQ(0, m.make(b, 4096));
    memset(m.data(), 0xff, 4096);
    const RemoteBuffer target = t.take(); // exposed on a
    EXPECT_EQ(WSAECONNABORTED, write_now(b, m.piece(0, 4096), target, 0));
    t.sync();
}
PARTNER(103) {
    Socket a, b;
    if (!t.connect(a) || !t.connect(b)) return;
    Buffer area;
    EXPECT(area.alloc(4096));
    RemoteBuffer exposed;
    EXPECT_EQ(0, a.expose(area.data(), 4096, MEM_READWRITE, exposed));
    t.give(exposed);
    t.sync();
    EXPECT(all_are(area.data(), 4096, 0));
}

PAIR(105, "Exposed for reading is not writable") {
    CONNECTED_WITH(4096);
    memset(m.data(), 0xff, 4096);
    RemoteBuffer target = t.take();
    EXPECT_EQ(0, read_now(s, m.piece(0, 100), target, 0));
    EXPECT_EQ(7, m.data()[0]);
    EXPECT_EQ(WSAEINVAL, write_now(s, m.piece(0, 100), target, 0)); // seen from here
    const uint32_t all = MEM_READWRITE;                              // and with the rights forged, from there
    memcpy(target.bytes + 4, &all, 4);
    EXPECT_EQ(WSAECONNABORTED, write_now(s, m.piece(1000, 100), target, 0));
    t.sync();
}
PARTNER(105) {
    CONNECTED();
    Buffer area;
    EXPECT(area.alloc(4096));
    memset(area.data(), 7, 4096);
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(area.data(), 4096, MEM_READ, exposed));
    t.give(exposed);
    t.sync();
    EXPECT(all_are(area.data(), 4096, 7));
}

PAIR(106, "The same buffer may be registered repeatedly") {
    CONNECTED_WITH(4096);
    HANDLE again[20];
    for (HANDLE &h : again) EXPECT_EQ(0, s.register_memory(m.data(), 4096, MEM_READWRITE, h));
    for (HANDLE h : again) EXPECT_EQ(0, s.deregister_memory(h));
    EXPECT_EQ(0, send_now(s, m.piece(0, 100))); // the first still counts
    t.sync();
}
PARTNER(106) {
    CONNECTED();
    Memory m;
    DWORD bytes;
    EXPECT_EQ(0, m.make(s, 4096));
    EXPECT_EQ(0, recv_now(s, m.piece(0, 4096), bytes));
    t.sync();
}

PAIR(107, "Bad range WSAEFAULT, bad flags WSAEINVAL, not connected WSAENOTCONN") {
    Socket fresh, s;
    HANDLE h;
    Buffer b;
    EXPECT(b.alloc(8192));
    EXPECT_EQ(0, fresh.open());
    EXPECT_EQ(WSAENOTCONN, fresh.register_memory(b.data(), 4096, MEM_READ, h));
    if (!t.connect(s)) return;
    EXPECT_EQ(WSAEINVAL, s.register_memory(b.data(), 4096, 0, h));
    EXPECT_EQ(WSAEINVAL, s.register_memory(b.data(), 4096, 4, h));
    EXPECT_EQ(WSAEFAULT, s.register_memory(nullptr, 4096, MEM_READ, h));
    EXPECT_EQ(WSAEFAULT, s.register_memory(reinterpret_cast<void *>(0xffff800000000000), 4096, MEM_READ, h));
    EXPECT_EQ(WSAEFAULT, s.register_memory(reinterpret_cast<void *>(~uintptr_t{4095}), 8192, MEM_READ, h));
    // Partly decommitted: not wholly inside valid memory.
    EXPECT(VirtualFree(b.data() + 4096, 4096, MEM_DECOMMIT));
    EXPECT_EQ(WSAEFAULT, s.register_memory(b.data(), 8192, MEM_READ, h));
    EXPECT_EQ(0, s.register_memory(b.data(), 4096, MEM_READ, h));
    // Valid, but not for writing.
    DWORD old;
    EXPECT(VirtualProtect(b.data(), 4096, PAGE_READONLY, &old));
    EXPECT_EQ(WSAEFAULT, s.register_memory(b.data(), 4096, MEM_READWRITE, h));
    EXPECT_EQ(0, s.register_memory(b.data(), 4096, MEM_READ, h));
    t.sync();
}
PARTNER(107) { idle_partner(t); }

PAIR(108, "Deregistering what is in use: WSAEINVAL") {
    CONNECTED_WITH(4096);
    Operation op;
    op.prepare(false);
    const Piece piece = m.piece(0, 100);
    EXPECT_EQ(0, s.recv(op, &piece, 1));
    EXPECT_EQ(WSAEINVAL, s.deregister_memory(m.handle));
    t.sync();
    DWORD bytes;
    EXPECT_EQ(0, s.wait(op, bytes, patience_ms));
    EXPECT_EQ(0, s.deregister_memory(m.handle));
    t.sync();
}
PARTNER(108) {
    CONNECTED_WITH(4096);
    t.sync();
    EXPECT_EQ(0, send_now(s, m.piece(0, 10)));
    t.sync();
}

PAIR(109, "A short descriptor block: WSAEFAULT and the size, before the buffer is looked at") {
    CONNECTED();
    int error = 0;
    DWORD size = 0;
    unsigned char block[64];
    EXPECT_EQ(SOCKET_ERROR, extensions().register_rdma_memory(s.handle(), nullptr, 0, MEM_READ, block, &size, &error));
    EXPECT_EQ(WSAEFAULT, error);
    EXPECT_EQ(32, size); // the same for all bitnesses (WSD-111)
    t.sync();
}
PARTNER(109) { idle_partner(t); }

PAIR(112, "Deregistering an unknown descriptor: WSAEINVAL") {
    CONNECTED();
    Buffer b;
    EXPECT(b.alloc(4096));
    RemoteBuffer r;
    EXPECT_EQ(0, s.expose(b.data(), 4096, MEM_READ, r));
    RemoteBuffer forged = r;
    forged.bytes[16] ^= 1; // the key
    EXPECT_EQ(WSAEINVAL, s.withdraw(forged));
    EXPECT_EQ(0, s.withdraw(r));
    EXPECT_EQ(WSAEINVAL, s.withdraw(r));
    t.sync();
}
PARTNER(112) { idle_partner(t); }

PAIR(117, "A cached range is given up when its memory is freed, and the new memory there is registered anew") {
    CONNECTED();
    Buffer b;
    EXPECT(b.alloc(65536));
    unsigned char *at = b.data();
    HANDLE h;
    EXPECT_EQ(0, s.register_memory(at, 65536, MEM_READWRITE, h));
    EXPECT_EQ(0, s.deregister_memory(h)); // cached now, and secured
    const LONG hits = sanswitch::counters().cache_hits;
    EXPECT(VirtualFree(at, 0, MEM_RELEASE));
    EXPECT_EQ(hits + 1, sanswitch::counters().cache_hits);
    EXPECT(VirtualAlloc(at, 65536, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE) == at);
    memset(at, 0x77, 65536);
    EXPECT_EQ(0, s.register_memory(at, 65536, MEM_READWRITE, h));
    const Piece piece = {at, 65536, h};
    EXPECT_EQ(0, send_now(s, piece)); // what arrives must be the new memory's contents
    EXPECT_EQ(0, s.deregister_memory(h));
    t.sync();
}
PARTNER(117) {
    CONNECTED();
    Memory m;
    DWORD bytes = 0;
    EXPECT_EQ(0, m.make(s, 65536));
    EXPECT_EQ(0, recv_now(s, m.piece(0, 65536), bytes));
    EXPECT_EQ(65536, bytes);
    EXPECT(all_are(m.data(), 65536, 0x77));
    t.sync();
}

PAIR(120, "After deregistration the peer has no access, although the buffer is cached") {
    CONNECTED_WITH(4096);
    memset(m.data(), 0xff, 4096);
    const RemoteBuffer target = t.take();
    EXPECT_EQ(0, write_now(s, m.piece(0, 1), target, 0));
    t.sync(1);
    t.sync(2); // withdrawn
    EXPECT_EQ(WSAECONNABORTED, write_now(s, m.piece(0, 4096), target, 0));
    t.sync(3);
}
PARTNER(120) {
    CONNECTED();
    Buffer area;
    EXPECT(area.alloc(4096));
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(area.data(), 4096, MEM_READWRITE, exposed));
    t.give(exposed);
    t.sync(1);
    EXPECT_EQ(0, s.withdraw(exposed));
    EXPECT_EQ(0xff, area.data()[0]);
    area.data()[0] = 0;
    t.sync(2);
    t.sync(3);
    EXPECT(all_are(area.data(), 4096, 0));
}

PAIR(122, "A cached remote buffer is exposed again, under another key") {
    CONNECTED_WITH(4096);
    for (unsigned char round = 1; round <= 5; ++round) {
        memset(m.data(), round, 4096);
        const RemoteBuffer target = t.take();
        EXPECT_EQ(0, write_now(s, m.piece(0, 4096), target, 0));
        t.sync();
    }
}
PARTNER(122) {
    CONNECTED();
    Buffer area;
    EXPECT(area.alloc(4096));
    RemoteBuffer last = {};
    for (unsigned char round = 1; round <= 5; ++round) {
        RemoteBuffer exposed;
        EXPECT_EQ(0, s.expose(area.data(), 4096, MEM_WRITE, exposed));
        EXPECT(memcmp(last.bytes + 16, exposed.bytes + 16, 8) != 0);
        last = exposed;
        t.give(exposed);
        t.sync();
        EXPECT_EQ(0, s.withdraw(exposed));
        EXPECT(all_are(area.data(), 4096, round));
    }
}

PAIR(123, "The cache callback: 0 for what was cached, WSAEINVAL for what was not") {
    CONNECTED_WITH(4096);
    EXPECT_EQ(0, s.deregister_memory(m.handle));
    int error = 0;
    EXPECT_EQ(0, extensions().cache_callback(m.data(), 4096, &error));
    EXPECT_EQ(SOCKET_ERROR, extensions().cache_callback(m.data(), 4096, &error));
    EXPECT_EQ(WSAEINVAL, error);
    t.sync();
}
PARTNER(123) { idle_partner(t); }

PAIR(125, "Partial overlap counts: decommitting one page of a cached range works") {
    CONNECTED();
    Buffer b;
    EXPECT(b.alloc(65536));
    HANDLE h;
    EXPECT_EQ(0, s.register_memory(b.data(), 65536, MEM_READWRITE, h));
    EXPECT_EQ(0, s.deregister_memory(h));
    EXPECT(VirtualFree(b.data() + 5 * 4096, 4096, MEM_DECOMMIT));
    EXPECT_EQ(WSAEFAULT, s.register_memory(b.data(), 65536, MEM_READWRITE, h));
    EXPECT_EQ(0, s.register_memory(b.data(), 5 * 4096, MEM_READWRITE, h));
    // In use: the handle dies, posts with it fail, and the memory goes.
    DWORD old;
    EXPECT(VirtualProtect(b.data(), 4096, PAGE_NOACCESS, &old));
    const Piece piece = {b.data() + 4096, 100, h};
    EXPECT_EQ(WSAEFAULT, send_now(s, piece));
    EXPECT_EQ(0, s.deregister_memory(h));
    t.sync();
}
PARTNER(125) { idle_partner(t); }
