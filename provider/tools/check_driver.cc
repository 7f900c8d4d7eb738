// SPDX-License-Identifier: GPL-2.0-or-later
//
// Rules of the proxy driver, asked directly: a program that is not our provider, or a broken one, sends it what it likes.
#include "conformance.h"

#include <sanlab/sanproxy_ioctl.h>
#include <sanlab/snic_hw.h>

#include <cstring>

using namespace santest;

namespace {

class Driver {
  public:
    Driver()
        : file_(CreateFileA("\\\\.\\" SANPROXY_DEVICE_NAME, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE,
                            nullptr, OPEN_EXISTING, 0, nullptr)) {}
    ~Driver() {
        if (is_open()) CloseHandle(file_);
    }
    bool is_open() const { return file_ != INVALID_HANDLE_VALUE; }

    bool raw(uint32_t code, void *buffer, DWORD in, DWORD out) {
        DWORD returned = 0;
        return DeviceIoControl(file_, code, buffer, in, buffer, out, &returned, nullptr);
    }
    // enum sanproxy_result, or -1 when it failed as an I/O request.
    template <typename T> int send(uint32_t code, T &r) {
        auto *header = reinterpret_cast<sanproxy_header *>(&r);
        header->version = SANPROXY_VERSION;
        header->size = sizeof r;
        return raw(code, &r, sizeof r, sizeof r) ? static_cast<int>(header->result) : -1;
    }
    int object(uint32_t code, uint32_t id) {
        sanproxy_object r = {};
        r.id = id;
        return send(code, r);
    }
    int open() {
        sanproxy_open r = {};
        return send(SANPROXY_IOCTL_OPEN, r);
    }
    int create_cq(uint32_t entries, uint32_t &id) {
        sanproxy_create_cq r = {};
        r.entries = entries;
        const int result = send(SANPROXY_IOCTL_CREATE_CQ, r);
        id = r.id;
        return result;
    }
    int create_qp(uint32_t cq, uint32_t entries, uint32_t sges, uint32_t &id) {
        sanproxy_create_qp r = {};
        r.send_cq = r.recv_cq = cq;
        r.sq_entries = r.rq_entries = entries;
        r.max_send_sge = r.max_recv_sge = sges;
        const int result = send(SANPROXY_IOCTL_CREATE_QP, r);
        id = r.id;
        return result;
    }
    int register_memory(uint64_t va, uint64_t length, uint32_t access, uint32_t qp, uint32_t &id) {
        sanproxy_register r = {};
        r.va = va;
        r.length = length;
        r.access = access;
        r.qp = qp;
        const int result = send(SANPROXY_IOCTL_REGISTER, r);
        id = r.id;
        return result;
    }

  private:
    HANDLE file_;
};

uint64_t random_state = 0x853c49e6748fea9bull;
uint64_t random64() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

constexpr struct {
    uint32_t code, size;
} codes[] = {
    {SANPROXY_IOCTL_QUERY, sizeof(sanproxy_query)},       {SANPROXY_IOCTL_WAKE, sizeof(sanproxy_header)},
    {SANPROXY_IOCTL_CREATE_CQ, sizeof(sanproxy_create_cq)}, {SANPROXY_IOCTL_CREATE_QP, sizeof(sanproxy_create_qp)},
    {SANPROXY_IOCTL_STOP_QP, sizeof(sanproxy_object)},    {SANPROXY_IOCTL_CLOSE, sizeof(sanproxy_object)},
    {SANPROXY_IOCTL_REGISTER, sizeof(sanproxy_register)}, {SANPROXY_IOCTL_EXPOSE, sizeof(sanproxy_expose)},
    {SANPROXY_IOCTL_REVOKE, sizeof(sanproxy_object)},     {SANPROXY_IOCTL_LISTEN, sizeof(sanproxy_listen)},
    {SANPROXY_IOCTL_GET_REQUEST, sizeof(sanproxy_get_request)}, {SANPROXY_IOCTL_ACCEPT, sizeof(sanproxy_reply)},
    {SANPROXY_IOCTL_REJECT, sizeof(sanproxy_reply)},      {SANPROXY_IOCTL_CONNECT, sizeof(sanproxy_connect)},
    {SANPROXY_IOCTL_DISCONNECT, sizeof(sanproxy_object)},
};

} // namespace

SOLO(36, "The driver answers device control requests, and only well-formed ones") {
    Driver d;
    EXPECT(d.is_open());
    sanproxy_query q = {};
    EXPECT_EQ(SANPROXY_OK, d.send(SANPROXY_IOCTL_QUERY, q));
    EXPECT(q.max_message > 0 && q.max_sge > 0);
    q.header.version = SANPROXY_VERSION + 1;
    EXPECT(!d.raw(SANPROXY_IOCTL_QUERY, &q, sizeof q, sizeof q));
    q.header.version = SANPROXY_VERSION;
    EXPECT(!d.raw(SANPROXY_IOCTL_QUERY, &q, sizeof q - 1, sizeof q));
    EXPECT(!d.raw(SANPROXY_IOCTL_QUERY, &q, sizeof q, sizeof q - 1));
    EXPECT(!d.raw(SANPROXY_IOCTL_QUERY, &q, 0, 0));
    q.header.size = 4;
    EXPECT(!d.raw(SANPROXY_IOCTL_QUERY, &q, sizeof q, sizeof q));
    EXPECT(!d.raw(SANPROXY_CODE(77), &q, sizeof q, sizeof q));
    uint32_t id;
    EXPECT_EQ(SANPROXY_BAD_STATE, d.create_cq(16, id)); // not opened
    EXPECT_EQ(SANPROXY_OK, d.open());
    EXPECT_EQ(SANPROXY_BAD_STATE, d.open());
}

SOLO(34, "A device control returns the addresses of this moment") {
    Driver d;
    sanproxy_query q = {};
    EXPECT_EQ(SANPROXY_OK, d.send(SANPROXY_IOCTL_QUERY, q));
    EXPECT_EQ(1, q.address_count);
    EXPECT_EQ(t.own_ip, q.addresses[0].ip);
    EXPECT(q.addresses[0].guid != 0);
}
WITH(30, 34, "The driver keeps the IP addresses of its NIC");
NOT_HERE(31, "Addresses come by TDI PnP handlers or a later equivalent", "TDI is Windows'; the NIC's address register stands in for it");
NOT_HERE(32, "The add handler returns promptly for foreign NICs", "TDI is Windows'");
NOT_HERE(33, "An address that TCP/IP withdraws is removed", "TDI is Windows'");
NOT_HERE(37, "The unload routine removes the device", "not visible from a program; shown by tests/host/rules.sh");
NOT_HERE(38, "DO_DIRECT_IO is set in the device object", "not visible from a program; shown by tests/host/rules.sh");
WITH(39, 36, "Each device control is completed with a status");
NOT_HERE(40, "RDMA memory also on NOLOWMEM systems", "takes such a system; shown by tests/host/rules.sh");
NOT_HERE(41, "DEVICE_DESCRIPTION is zeroed", "the driver asks for no DMA adapter; shown by tests/host/rules.sh");
WITH(42, 43, "Memory is allocated and released on each request");
WITH(46, 48, "User memory that is not there, or not accessible, gives an error");

SOLO(44, "A pended request can be cancelled, and is when its handle is closed") {
    for (int round = 0; round < 6; ++round) {
        HANDLE file = CreateFileA("\\\\.\\" SANPROXY_DEVICE_NAME, GENERIC_READ | GENERIC_WRITE,
                                  FILE_SHARE_READ | FILE_SHARE_WRITE, nullptr, OPEN_EXISTING, FILE_FLAG_OVERLAPPED, nullptr);
        EXPECT(file != INVALID_HANDLE_VALUE);
        sanproxy_wait_events wait = {};
        wait.header = {SANPROXY_VERSION, sizeof wait, 0, 0};
        OVERLAPPED overlapped = {};
        overlapped.hEvent = CreateEventA(nullptr, TRUE, FALSE, nullptr);
        DWORD returned;
        EXPECT(!DeviceIoControl(file, SANPROXY_IOCTL_WAIT_EVENTS, &wait, sizeof wait, &wait, sizeof wait, &returned, &overlapped));
        EXPECT_EQ(ERROR_IO_PENDING, GetLastError());
        if (round % 2) CancelIo(file);
        else CloseHandle(file); // the clean-up cancels it
        EXPECT_EQ(WAIT_OBJECT_0, WaitForSingleObject(overlapped.hEvent, patience_ms));
        if (round % 2) CloseHandle(file);
        CloseHandle(overlapped.hEvent);
    }
}

SOLO(43, "Closing the handle releases everything, whatever it was in the middle of") {
    Buffer memory;
    EXPECT(memory.alloc(1 << 20));
    const uint64_t va = reinterpret_cast<uint64_t>(memory.data());
    for (int round = 0; round < 20; ++round) {
        Driver d;
        EXPECT_EQ(SANPROXY_OK, d.open());
        uint32_t cq, qp, region, ids[8];
        EXPECT_EQ(SANPROXY_OK, d.create_cq(100, cq));
        EXPECT_EQ(SANPROXY_OK, d.create_qp(cq, 64, 16, qp));
        EXPECT_EQ(SANPROXY_OK, d.register_memory(va, 1 << 20, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_REMOTE_READ, qp, region));
        for (uint32_t &i : ids) EXPECT_EQ(SANPROXY_OK, d.register_memory(va + 100, 5000, SNIC_ACCESS_LOCAL_WRITE, 0, i));
        sanproxy_listen listen = {};
        listen.port = t.port;
        listen.backlog = 1;
        EXPECT_EQ(SANPROXY_OK, d.send(SANPROXY_IOCTL_LISTEN, listen));
        sanproxy_connect connect = {};
        connect.qp = qp;
        connect.dst_ip = 0xC0000263;
        connect.dst_port = 9;
        connect.timeout_ms = 60000;
        d.send(SANPROXY_IOCTL_CONNECT, connect);
    }
    // Nothing is secured any more: the memory goes without anybody having to be asked.
    const LONG asked = sanswitch::counters().cache_callbacks;
    memory.free();
    EXPECT_EQ(asked, sanswitch::counters().cache_callbacks);
}

SOLO(48, "Every request is validated") {
    Driver d, other;
    EXPECT_EQ(SANPROXY_OK, d.open());
    EXPECT_EQ(SANPROXY_OK, other.open());
    Buffer memory;
    EXPECT(memory.alloc(65536));
    const uint64_t va = reinterpret_cast<uint64_t>(memory.data());
    uint32_t cq, qp, id;
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.create_cq(0xffffffff, cq));
    EXPECT_EQ(SANPROXY_OK, d.create_cq(1, cq));
    EXPECT_EQ(SANPROXY_NOT_FOUND, d.create_qp(cq + 1, 16, 1, qp));
    EXPECT_EQ(SANPROXY_NOT_FOUND, other.create_qp(cq, 16, 1, qp)); // somebody else's
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.create_qp(cq, 16, 0, qp));
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.create_qp(cq, 16, 17, qp));
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.create_qp(cq, 0x80000000, 1, qp));
    EXPECT_EQ(SANPROXY_OK, d.create_qp(cq, 16, 16, qp));
    EXPECT_EQ(SANPROXY_BAD_STATE, d.object(SANPROXY_IOCTL_CLOSE, cq)); // the QP needs it

    constexpr uint32_t read = SNIC_ACCESS_LOCAL_READ, expose = SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_REMOTE_READ;
    EXPECT_EQ(SANPROXY_BAD_ADDRESS, d.register_memory(va, 0, read, 0, id));
    EXPECT_EQ(SANPROXY_BAD_ADDRESS, d.register_memory(0, 4096, read, 0, id));
    EXPECT_EQ(SANPROXY_BAD_ADDRESS, d.register_memory(~0ull - 4096, 8192, read, 0, id));
    EXPECT_EQ(SANPROXY_BAD_ADDRESS, d.register_memory(0xfffff80000000000, 4096, read, 0, id));
    EXPECT_EQ(SANPROXY_BAD_ADDRESS, d.register_memory(0x8000000000000000, 4096, read, 0, id)); // not canonical
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.register_memory(va, 4096, 0, 0, id));
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.register_memory(va, 4096, 0x10, 0, id));
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.register_memory(va, 4096, expose, 0, id));
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.register_memory(va, 4096, read, qp, id));
    EXPECT_EQ(SANPROXY_NOT_FOUND, d.register_memory(va, 4096, expose, cq, id)); // of another kind
    EXPECT_EQ(SANPROXY_OK, d.register_memory(va, 4096, expose, qp, id));

    sanproxy_expose e = {};
    e.id = id;
    e.qp = qp;
    e.access = expose;
    EXPECT_EQ(SANPROXY_BAD_STATE, d.send(SANPROXY_IOCTL_EXPOSE, e)); // it is exposed
    EXPECT_EQ(SANPROXY_NOT_FOUND, other.object(SANPROXY_IOCTL_REVOKE, id));
    EXPECT_EQ(SANPROXY_OK, d.object(SANPROXY_IOCTL_REVOKE, id));
    e.access = expose | SNIC_ACCESS_REMOTE_WRITE; // more than it was registered with
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.send(SANPROXY_IOCTL_EXPOSE, e));
    e.access = expose;
    EXPECT_EQ(SANPROXY_OK, d.send(SANPROXY_IOCTL_EXPOSE, e));
    EXPECT_EQ(SANPROXY_OK, d.object(SANPROXY_IOCTL_CLOSE, id));
    EXPECT_EQ(SANPROXY_NOT_FOUND, d.object(SANPROXY_IOCTL_CLOSE, id));

    sanproxy_listen l = {};
    l.backlog = 1;
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.send(SANPROXY_IOCTL_LISTEN, l)); // no port
    l.port = t.port;
    l.backlog = 1025;
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.send(SANPROXY_IOCTL_LISTEN, l));
    l.backlog = 1;
    EXPECT_EQ(SANPROXY_OK, d.send(SANPROXY_IOCTL_LISTEN, l));
    sanproxy_get_request g = {};
    g.listener = l.id;
    EXPECT_EQ(SANPROXY_NOT_FOUND, d.send(SANPROXY_IOCTL_GET_REQUEST, g));
    sanproxy_reply r = {};
    r.listener = l.id;
    r.request = 1;
    EXPECT_EQ(SANPROXY_GONE, d.send(SANPROXY_IOCTL_REJECT, r)); // a request that never was
    r.private_len = SANPROXY_MAX_PRIVATE_DATA + 1;
    EXPECT_EQ(SANPROXY_BAD_PARAMETER, d.send(SANPROXY_IOCTL_REJECT, r));
    EXPECT_EQ(SANPROXY_OK, d.object(SANPROXY_IOCTL_STOP_QP, qp));
    sanproxy_connect c = {};
    c.qp = qp;
    c.dst_ip = 1;
    c.dst_port = 1;
    c.timeout_ms = 1;
    EXPECT_EQ(SANPROXY_GONE, d.send(SANPROXY_IOCTL_CONNECT, c)); // stopped
    EXPECT_EQ(SANPROXY_OK, d.object(SANPROXY_IOCTL_CLOSE, qp));
    EXPECT_EQ(SANPROXY_OK, d.object(SANPROXY_IOCTL_CLOSE, cq));

    // Whatever it is sent, the driver survives, and gives everything back.
    uint32_t ids[16] = {};
    for (int i = 0; i < 4000; ++i) {
        const auto &code = codes[random64() % (sizeof codes / sizeof codes[0])];
        union {
            sanproxy_header header;
            sanproxy_create_cq cq;
            sanproxy_create_qp qp;
            sanproxy_register memory;
            sanproxy_connect connect;
            uint32_t words[200];
        } r;
        // Mostly small numbers and known ids: pure noise would get nowhere.
        for (uint32_t &w : r.words) {
            const uint64_t n = random64();
            w = n % 4 == 0 ? ids[n / 4 % 16] : n % 4 == 1 ? static_cast<uint32_t>(n >> 32) : static_cast<uint32_t>(n >> 8) % 70;
        }
        if (code.code == SANPROXY_IOCTL_REGISTER) {
            if (random64() % 8) r.memory.va = va + random64() % 65536;
            if (random64() % 8) r.memory.length = random64() % 70000;
        }
        if (code.code == SANPROXY_IOCTL_CONNECT) r.connect.timeout_ms = 1;
        r.header.version = SANPROXY_VERSION;
        r.header.size = code.size;
        EXPECT(other.raw(code.code, &r, code.size, code.size));
        uint32_t made = 0;
        if (r.header.result == SANPROXY_OK) {
            if (code.code == SANPROXY_IOCTL_CREATE_CQ) made = r.cq.id;
            if (code.code == SANPROXY_IOCTL_CREATE_QP) made = r.qp.id;
            if (code.code == SANPROXY_IOCTL_REGISTER) made = r.memory.id;
        }
        if (made) ids[random64() % 16] = made;
    }
}
