// SPDX-License-Identifier: GPL-2.0-or-later
//
// Rules of the registration cache with the real driver underneath, and what stale keys must not do.
#include "conformance.h"
#include "import_spy.h"

#include <cstring>

using namespace santest;

namespace {

bool all_are(const unsigned char *at, size_t n, unsigned char value) {
    for (size_t i = 0; i < n; ++i)
        if (at[i] != value) return false;
    return true;
}

} // namespace

PAIR(102, "Local registrations are not reachable by the peer") {
    CONNECTED_WITH(4096);
    memset(m.data(), 0xff, 4096);
    RemoteBuffer target = t.take();
    EXPECT_EQ(0, write_now(s, m.piece(0, 16), target, 0));
    const uint64_t elsewhere = t.sync(); // where the partner's local registration lies
    memcpy(target.bytes + 8, &elsewhere, 8);
    EXPECT_EQ(WSAECONNABORTED, write_now(s, m.piece(0, 4096), target, 0));
    t.sync();
}
PARTNER(102) {
    CONNECTED();
    Memory local;
    Buffer area;
    EXPECT_EQ(0, local.make(s, 4096));
    EXPECT(area.alloc(4096));
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(area.data(), 4096, MEM_READWRITE, exposed));
    t.give(exposed);
    t.sync(reinterpret_cast<uint64_t>(local.data()));
    t.sync();
    EXPECT(all_are(local.data(), 4096, 0));
}
WITH(104, 120, "Reachable only while registered");
WITH(110, 142, "The descriptor works on the peer");
WITH(111, 109, "Descriptors have one size and hold no pointers of ours");

PAIR(115, "Registering again finds the cached range: nothing is locked or registered anew") {
    CONNECTED();
    Buffer b;
    EXPECT(b.alloc(1 << 20));
    HANDLE h;
    EXPECT_EQ(0, s.register_memory(b.data(), 1 << 20, MEM_READWRITE, h));
    EXPECT_EQ(0, s.deregister_memory(h));
    ImportSpy spy;
    if (!spy.complete()) return t.fail("the provider's import %s cannot be watched", spy.problem());
    for (int i = 0; i < 100; ++i) {
        // Locking and registering are the driver's: without a request to it there is neither.
        EXPECT_EQ(0, s.register_memory(b.data() + i * 4096, 65536, MEM_READWRITE, h));
        EXPECT_EQ(0, s.deregister_memory(h));
        EXPECT_EQ(0, spy.requests());
    }
    EXPECT_EQ(0, s.register_memory(b.data(), 1 << 20, MEM_READ, h)); // other rights: another entry, by one request
    EXPECT_EQ(1, spy.requests());
    EXPECT_EQ(0, s.deregister_memory(h));
    EXPECT_EQ(1, spy.requests());
    t.sync();
}
PARTNER(115) { idle_partner(t); }
WITH(114, 117, "A local registration stays locked and registered after it is given back");
WITH(116, 117, "Cached ranges are secured: the system tells before they go");
WITH(118, 125, "On the callback the range leaves cache and NIC and is unlocked, also while it is in use");

PAIR(119, "Cached buffers are released before the connection closes") {
    CONNECTED();
    Buffer b;
    EXPECT(b.alloc(1 << 20));
    HANDLE h;
    EXPECT_EQ(0, s.register_memory(b.data(), 1 << 20, MEM_READWRITE, h));
    EXPECT_EQ(0, s.deregister_memory(h));
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(b.data(), 8192, MEM_READ, exposed));
    EXPECT_EQ(0, s.withdraw(exposed));
    EXPECT_EQ(0, s.close());
    const LONG asked = sanswitch::counters().cache_callbacks;
    b.free();
    EXPECT_EQ(asked, sanswitch::counters().cache_callbacks);
    t.sync();
}
PARTNER(119) { idle_partner(t); }

PAIR(121, "Revoked on every kind of NIC: a stale key cannot reach memory that was freed and used again") {
    CONNECTED_WITH(65536);
    memset(m.data(), 0xff, 65536);
    const RemoteBuffer target = t.take();
    EXPECT_EQ(0, write_now(s, m.piece(0, 65536), target, 0));
    t.sync();
    t.sync(); // freed there, and the same address is in use again
    EXPECT_EQ(WSAECONNABORTED, write_now(s, m.piece(0, 65536), target, 0));
    t.sync();
}
PARTNER(121) {
    CONNECTED();
    auto *at = static_cast<unsigned char *>(VirtualAlloc(nullptr, 65536, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
    EXPECT(at != nullptr);
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(at, 65536, MEM_WRITE, exposed)); // and never withdrawn
    t.give(exposed);
    t.sync();
    EXPECT(all_are(at, 65536, 0xff)); // it did write there
    EXPECT(VirtualFree(at, 0, MEM_RELEASE));
    EXPECT(VirtualAlloc(at, 65536, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE) == at);
    memset(at, 0x42, 65536);
    t.sync();
    t.sync();
    EXPECT(all_are(at, 65536, 0x42));
    EXPECT_EQ(0, s.withdraw(exposed)); // the dead registration is still the switch's to give back
    VirtualFree(at, 0, MEM_RELEASE);
}

namespace {
// A lock of the heap is a critical section that the heap's functions wait for. It is held by a thread that allocates and
// frees without end, so that a callback which used the heap would meet it; and the callback runs inside a heap function of
// this thread: a large block goes straight back to the system, and the system asks.
struct Churn {
    volatile LONG stop, rounds;
};
DWORD WINAPI churn(LPVOID parameter) {
    auto *c = static_cast<Churn *>(parameter);
    while (!c->stop) {
        void *p = HeapAlloc(GetProcessHeap(), 0, 100 + c->rounds % 5000);
        HeapFree(GetProcessHeap(), 0, p);
        InterlockedIncrement(&c->rounds);
    }
    return 0;
}
} // namespace

PAIR(124, "The callback may come from inside the heap, while others use the heap, also for a range in use") {
    CONNECTED();
    Churn c = {0, 0};
    HANDLE thread = CreateThread(nullptr, 0, churn, &c, 0, nullptr);
    const LONG hits = sanswitch::counters().cache_hits;
    ImportSpy spy;
    unsigned heap_calls = 0;
    int error = 0;
    for (int round = 0; round < 50 && !error; ++round) {
        void *block = HeapAlloc(GetProcessHeap(), 0, 4 << 20);
        HANDLE h = nullptr, live = nullptr;
        error = s.register_memory(block, 4 << 20, MEM_READWRITE, h);
        if (!error) error = s.deregister_memory(h);
        if (!error && round % 2) error = s.register_memory(block, 8192, MEM_READ, live);
        spy.restart();
        HeapFree(GetProcessHeap(), 0, block);
        heap_calls += spy.heap_calls(); // the provider's, in the callback
        if (live) s.deregister_memory(live);
    }
    c.stop = 1;
    const DWORD ended = WaitForSingleObject(thread, patience_ms);
    CloseHandle(thread);
    EXPECT_EQ(0, error);
    EXPECT_EQ(WAIT_OBJECT_0, ended);
    EXPECT(sanswitch::counters().cache_hits > hits);
    EXPECT(spy.complete());
    EXPECT_EQ(0, heap_calls);
    t.sync();
}
PARTNER(124) { idle_partner(t); }
WITH(47, 107, "Locking memory that is not all there fails with an error");
NOT_HERE(126, "Secure before lock, unlock before unsecure", "the order is not visible from a program; shown by tests/host/rules.sh");

namespace {
struct Locker {
    Socket *s;
    unsigned char *at;
    volatile LONG stop, locks, error;
};
DWORD WINAPI keep_locking(LPVOID parameter) {
    auto *l = static_cast<Locker *>(parameter);
    for (LONG i = 0; !l->stop && !l->error; ++i) {
        // Another range each time, and remote, so that nothing in the cache serves it.
        RemoteBuffer r;
        l->error = l->s->expose(l->at + i % 4096, 4096 * 15 - i % 977, MEM_WRITE, r);
        if (!l->error) l->error = l->s->withdraw(r);
        InterlockedIncrement(&l->locks);
    }
    return 0;
}
constexpr uint32_t probe_pages = 16;
constexpr uint64_t probe_writes = 1000;
} // namespace

// The peer writes a number to each page while overlapping ranges are locked for writing. A lock that probes a page which the NIC
// is writing puts the old byte back. So each number is looked for in each page before the next one is written: a byte that was
// put back stays.
PAIR(127, "Locking memory again does not disturb what the NIC is writing there") {
    CONNECTED_WITH(probe_pages * 4096);
    const RemoteBuffer target = t.take();
    for (uint64_t n = 1; n <= probe_writes; ++n) {
        for (uint32_t p = 0; p < probe_pages; ++p) memcpy(m.data() + p * 4096, &n, sizeof n);
        EXPECT_EQ(0, write_now(s, m.piece(0, probe_pages * 4096), target, 0));
        t.sync(); // written
        t.sync(); // looked at
        if (t.failed()) return;
    }
    t.sync(); // and nothing is being locked any more
}
PARTNER(127) {
    CONNECTED();
    Buffer area;
    EXPECT(area.alloc(probe_pages * 4096));
    RemoteBuffer exposed;
    EXPECT_EQ(0, s.expose(area.data(), probe_pages * 4096, MEM_WRITE, exposed));
    Locker locker = {&s, area.data(), 0, 0, 0};
    HANDLE thread = CreateThread(nullptr, 0, keep_locking, &locker, 0, nullptr);
    t.give(exposed);
    uint64_t lost = 0;
    LONG locked = locker.locks;
    for (uint64_t n = 1; n <= probe_writes && !t.failed(); ++n) {
        t.sync();
        for (uint32_t p = 0; p < probe_pages; ++p)
            if (*reinterpret_cast<volatile uint64_t *>(area.data() + p * 4096) != n) ++lost;
        t.sync();
    }
    locked = locker.locks - locked;
    locker.stop = 1;
    WaitForSingleObject(thread, patience_ms);
    CloseHandle(thread);
    if (t.failed()) return;
    t.sync();
    EXPECT_EQ(0, locker.error);
    EXPECT(locked > 0); // how many in that time is the machine's business
    EXPECT_EQ(0, lost);
}
