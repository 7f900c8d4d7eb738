// SPDX-License-Identifier: GPL-2.0-or-later
//
// Rules of start-up, sockets, options and binding that take one machine.
#include "conformance.h"

#include <cstring>
#include <initializer_list>

using namespace santest;
using sanswitch::procs;

namespace {

LPWSPSTARTUPEX start_function() {
    HMODULE m = GetModuleHandleA("sanprov.dll");
    return m ? reinterpret_cast<LPWSPSTARTUPEX>(reinterpret_cast<void *>(GetProcAddress(m, "WSPStartupEx"))) : nullptr;
}

// A start with up-calls of our own.
volatile LONG own_created, own_closed;
SOCKET WSPAPI create_handle(DWORD, DWORD_PTR, LPINT) {
    InterlockedIncrement(&own_created);
    return 0x1234;
}
int WSPAPI close_handle(SOCKET, LPINT) {
    InterlockedIncrement(&own_closed);
    return 0;
}
int WSPAPI complete(SOCKET, LPWSAOVERLAPPED, DWORD, DWORD, LPINT) { return 0; }

int start(WORD version, WSPDATA *data, WSPPROC_TABLE *table) {
    WSPUPCALLTABLEEX upcalls = {};
    upcalls.lpWPUCreateSocketHandle = create_handle;
    upcalls.lpWPUCloseSocketHandle = close_handle;
    upcalls.lpWPUCompleteOverlappedRequest = complete;
    WSAPROTOCOL_INFOW info = {};
    return start_function()(version, data, &info, &upcalls, table);
}

// A start as the switch made it.
int start_again(WORD version, WSPDATA *data, WSPPROC_TABLE *table) {
    WSPUPCALLTABLEEX upcalls = sanswitch::upcalls();
    WSAPROTOCOL_INFOW info = sanswitch::tcp_entry();
    return start_function()(version, data, &info, &upcalls, table);
}

int ioctl(SOCKET s, DWORD code, void *in, DWORD in_size, void *out, DWORD out_size, DWORD *returned) {
    int error = 0;
    return procs().lpWSPIoctl(s, code, in, in_size, out, out_size, returned, nullptr, nullptr, nullptr, &error) ? error : 0;
}

int socket_error(int af, int type, int protocol, DWORD flags) {
    int error = 0;
    SOCKET s = procs().lpWSPSocket(af, type, protocol, nullptr, 0, flags, &error);
    if (s == INVALID_SOCKET) return error;
    procs().lpWSPCloseSocket(s, &error);
    return 0;
}

sockaddr_in address(uint32_t ip, uint16_t port) {
    sockaddr_in a = {};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = __builtin_bswap32(ip);
    a.sin_port = __builtin_bswap16(port);
    return a;
}

int bind_raw(SOCKET s, const sockaddr_in &a, int length) {
    int error = 0;
    return procs().lpWSPBind(s, reinterpret_cast<const sockaddr *>(&a), length, &error) ? error : 0;
}

int get_option(Socket &s, int level, int name, uint32_t &value, int length = 4) {
    int error = 0;
    return procs().lpWSPGetSockOpt(s.handle(), level, name, reinterpret_cast<char *>(&value), &length, &error) ? error : 0;
}

const GUID all_extensions[] = {WSAID_REGISTERMEMORY,     WSAID_DEREGISTERMEMORY, WSAID_REGISTERRDMAMEMORY,
                               WSAID_DEREGISTERRDMAMEMORY, WSAID_RDMAWRITE,      WSAID_RDMAREAD,
                               WSAID_MEMORYREGISTRATIONCACHECALLBACK};

} // namespace

NOT_HERE(1, "Installed as a base provider", "a matter of installation; shown by tests/host/sanctl.sh");
NOT_HERE(2, "PFL_HIDDEN is set", "a matter of installation; shown by tests/host/sanctl.sh");
NOT_HERE(3, "ProviderId stands under TCP on SAN", "a matter of installation; shown by tests/host/sanctl.sh");
NOT_HERE(4, "The value's name is unique", "a matter of installation; shown by tests/host/sanctl.sh");
NOT_HERE(5, "The registry value comes before the catalog entry", "a matter of installation; shown by tests/host/sanctl.sh");
NOT_HERE(6, "XP1_CONNECTIONLESS is never set", "a matter of installation; shown by tests/host/sanctl.sh");
NOT_HERE(7, "XP1_QOS_SUPPORTED only with QoS", "a matter of installation; shown by tests/host/sanctl.sh");
NOT_HERE(8, "Both bitnesses are installed", "a matter of installation; shown by tests/host/sanctl.sh");

SOLO(9, "Export WSPStartupEx") { EXPECT(start_function() != nullptr); }

SOLO(10, "WSPStartupEx returns its error code directly") {
    WSPPROC_TABLE table;
    WSPDATA data;
    EXPECT_EQ(WSAEFAULT, start(MAKEWORD(2, 2), nullptr, &table));
    EXPECT_EQ(WSAEFAULT, start(MAKEWORD(2, 2), &data, nullptr));
}

SOLO(11, "Fail below Winsock 2.2") {
    WSPPROC_TABLE table;
    WSPDATA data;
    EXPECT_EQ(WSAVERNOTSUPPORTED, start(MAKEWORD(1, 1), &data, &table));
    EXPECT_EQ(WSAVERNOTSUPPORTED, start(MAKEWORD(2, 0), &data, &table));
}

SOLO(12, "wVersion is the lower of request and own highest, wHighVersion the own highest") {
    for (const WORD asked : {MAKEWORD(2, 2), MAKEWORD(2, 3), MAKEWORD(3, 0)}) {
        WSPPROC_TABLE table;
        WSPDATA data = {};
        EXPECT_EQ(0, start_again(asked, &data, &table));
        EXPECT_EQ(MAKEWORD(2, 2), data.wVersion);
        EXPECT_EQ(MAKEWORD(2, 2), data.wHighVersion);
        int error = 0;
        EXPECT_EQ(0, table.lpWSPCleanup(&error));
    }
}

SOLO(14, "The most recent up-call table counts, and a copy of it was made") {
    WSPPROC_TABLE table;
    WSPDATA data;
    Socket before;
    EXPECT_EQ(0, before.open());
    const LONG switch_handles = sanswitch::counters().handles_created;
    own_created = 0;
    own_closed = 0;
    EXPECT_EQ(0, start(MAKEWORD(2, 2), &data, &table)); // with a table that is gone by now
    int error = 0, cleaned = 0;
    const SOCKET s = table.lpWSPSocket(AF_INET, SOCK_STREAM, IPPROTO_TCP, nullptr, 0, WSA_FLAG_OVERLAPPED, &error);
    table.lpWSPCloseSocket(s, &error);
    const LONG created = own_created, closed = own_closed;
    cleaned = table.lpWSPCleanup(&error);
    WSPDATA ignored;
    EXPECT_EQ(0, start_again(MAKEWORD(2, 2), &ignored, &table)); // the switch's again, before anything may fail
    EXPECT_EQ(0, table.lpWSPCleanup(&error));
    EXPECT(s != INVALID_SOCKET);
    EXPECT_EQ(1, created);
    EXPECT_EQ(1, closed);
    EXPECT_EQ(0, cleaned);
    EXPECT_EQ(switch_handles, sanswitch::counters().handles_created);
    EXPECT_EQ(0, before.bind(t.own_ip, t.port)); // not the last clean-up: what was there is there
}
WITH(15, 14, "Starts are counted; only the last WSPCleanup tears down");
WITH(16, 14, "Started with the TCP/IP entry, the provider follows the rules of the switch");

SOLO(13, "Fill the 17 required entries in the right slots") {
    const auto *slots = reinterpret_cast<void *const *>(&procs());
    constexpr int required[] = {0, 3, 5, 6, 7, 8, 9, 10, 11, 14, 15, 16, 18, 19, 23, 26, 28};
    for (int i : required) EXPECT(slots[i] != nullptr);
    EXPECT_EQ(28 * sizeof(void *), offsetof(WSPPROC_TABLE, lpWSPSocket));
}

SOLO(17, "Extension pointers are served") {
    for (const GUID &id : all_extensions) {
        GUID in = id;
        void *pointer = nullptr;
        DWORD returned = 0;
        EXPECT_EQ(0, ioctl(INVALID_SOCKET, SIO_GET_EXTENSION_FUNCTION_POINTER, &in, sizeof in, &pointer, sizeof pointer,
                           &returned));
        EXPECT(pointer != nullptr);
        EXPECT_EQ(sizeof pointer, returned);
    }
    GUID unknown = {0x12345678, 1, 2, {3, 4, 5, 6, 7, 8, 9, 10}};
    void *pointer;
    DWORD returned;
    EXPECT(ioctl(INVALID_SOCKET, SIO_GET_EXTENSION_FUNCTION_POINTER, &unknown, sizeof unknown, &pointer, sizeof pointer,
                 &returned) != 0);
}

NOT_HERE(18, "WSAEOPNOTSUPP for an absent extension", "none is absent: this provider has all seven, the NIC can read");
WITH(19, 17, "The cache callback is provided, as registrations are cached");

SOLO(20, "The socket argument of the extension ioctl is not looked at") {
    GUID id = WSAID_RDMAWRITE;
    void *pointer = nullptr;
    DWORD returned = 0;
    EXPECT_EQ(0, ioctl(static_cast<SOCKET>(0xdeadbee0), SIO_GET_EXTENSION_FUNCTION_POINTER, &id, sizeof id, &pointer,
                       sizeof pointer, &returned));
}

SOLO(21, "The address list holds the NIC's address") {
    uint32_t ip = 0;
    EXPECT(sanswitch::addresses(&ip, 1) >= 1);
    EXPECT(ip != 0);
}

SOLO(22, "Address list into a short buffer: WSAEFAULT and the size") {
    Socket s;
    EXPECT_EQ(0, s.open());
    DWORD size = 0;
    EXPECT_EQ(WSAEFAULT, ioctl(s.handle(), SIO_ADDRESS_LIST_QUERY, nullptr, 0, nullptr, 0, &size));
    EXPECT(size >= sizeof(SOCKET_ADDRESS_LIST));
    alignas(8) unsigned char buffer[1024];
    EXPECT(size <= sizeof buffer);
    DWORD again = 0;
    EXPECT_EQ(0, ioctl(s.handle(), SIO_ADDRESS_LIST_QUERY, nullptr, 0, buffer, size, &again));
    EXPECT_EQ(size, again);
    EXPECT_EQ(WSAEFAULT, ioctl(s.handle(), SIO_ADDRESS_LIST_QUERY, nullptr, 0, buffer, size - 1, &again));
}

SOLO(23, "Socket, bind to 0.0.0.0 and listen directly after start-up") {
    Socket s;
    EXPECT_EQ(0, s.open());
    EXPECT_EQ(0, s.bind(0, t.port));
    EXPECT_EQ(0, s.listen(SOMAXCONN));
}

SOLO(50, "One WPUCreateSocketHandle for each new socket") {
    const LONG before = sanswitch::counters().handles_created;
    Socket a, b;
    EXPECT_EQ(0, a.open());
    EXPECT_EQ(0, b.open());
    EXPECT_EQ(before + 2, sanswitch::counters().handles_created);
    EXPECT(a.handle() != b.handle());
}

SOLO(52, "Every up-call carries the switch's handle, not the provider's") {
    const LONG closed = sanswitch::counters().handles_closed;
    for (int i = 0; i < 10; ++i) {
        Socket s;
        EXPECT_EQ(0, s.open());
        EXPECT_EQ(0, s.close());
    }
    EXPECT_EQ(closed + 10, sanswitch::counters().handles_closed); // of handles that the switch has given out
    EXPECT_EQ(0, sanswitch::counters().bad_handles);
}
WITH(51, 52, "The switch's handle is stored; the descriptor is the provider's own");

SOLO(58, "Never WSAEINPROGRESS") {
    Socket s;
    EXPECT_EQ(0, s.open());
    int error = 0;
    sockaddr_in a = address(t.own_ip, t.port);
    const auto *name = reinterpret_cast<const sockaddr *>(&a);
#define EXPECT_OTHER(call)                                                                                              \
    do {                                                                                                                \
        error = 0;                                                                                                      \
        (void)(call);                                                                                                   \
        EXPECT(error != WSAEINPROGRESS);                                                                                \
    } while (0)
    EXPECT_OTHER(procs().lpWSPListen(s.handle(), 1, &error));
    EXPECT_OTHER(procs().lpWSPBind(s.handle(), name, sizeof a, &error));
    EXPECT_OTHER(procs().lpWSPBind(s.handle(), name, sizeof a, &error));
    a.sin_addr.s_addr = __builtin_bswap32((t.own_ip & 0xffffff00) | 0xfd);
    for (int i = 0; i < 3; ++i)
        EXPECT_OTHER(procs().lpWSPConnect(s.handle(), name, sizeof a, nullptr, nullptr, nullptr, nullptr, &error));
    EXPECT_OTHER(procs().lpWSPAccept(s.handle(), nullptr, nullptr, nullptr, 0, &error));
    EXPECT_OTHER(procs().lpWSPListen(s.handle(), 1, &error));
    const SOCKET handle = s.handle();
    EXPECT_OTHER(s.close()); // in the middle of a connect
    EXPECT_OTHER(procs().lpWSPCloseSocket(handle, &error));
#undef EXPECT_OTHER
}

SOLO(70, "WSPEventSelect takes FD_CONNECT and FD_ACCEPT, and no other event") {
    Socket s;
    EXPECT_EQ(0, s.open());
    HANDLE event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
    int error = 0;
    for (const long wrong : {FD_READ, FD_WRITE, FD_CLOSE, FD_OOB, FD_READ | FD_ACCEPT}) {
        EXPECT_EQ(SOCKET_ERROR, procs().lpWSPEventSelect(s.handle(), event, wrong, &error));
        EXPECT_EQ(WSAEINVAL, error);
    }
    EXPECT_EQ(0, procs().lpWSPEventSelect(s.handle(), event, FD_CONNECT | FD_ACCEPT, &error));
    EXPECT_EQ(0, procs().lpWSPEventSelect(s.handle(), nullptr, 0, &error));
    CloseHandle(event);
}
WITH(191, 70, "Only FD_ACCEPT and FD_CONNECT are ever signalled");
NOT_HERE(193, "An NDIS miniport for the same NIC", "NDIS is Windows'");

SOLO(53, "AF_INET, SOCK_STREAM, IPPROTO_TCP, WSA_FLAG_OVERLAPPED only") {
    EXPECT_EQ(0, socket_error(AF_INET, SOCK_STREAM, IPPROTO_TCP, WSA_FLAG_OVERLAPPED));
    EXPECT_EQ(WSAEAFNOSUPPORT, socket_error(AF_INET6, SOCK_STREAM, IPPROTO_TCP, WSA_FLAG_OVERLAPPED));
    EXPECT_EQ(WSAESOCKTNOSUPPORT, socket_error(AF_INET, SOCK_DGRAM, IPPROTO_TCP, WSA_FLAG_OVERLAPPED));
    EXPECT_EQ(WSAEPROTONOSUPPORT, socket_error(AF_INET, SOCK_STREAM, IPPROTO_UDP, WSA_FLAG_OVERLAPPED));
    EXPECT_EQ(WSAEINVAL, socket_error(AF_INET, SOCK_STREAM, IPPROTO_TCP, 0));
}

SOLO(54, "Bind takes a qualified address or 0.0.0.0") {
    Socket a, b;
    EXPECT_EQ(0, a.open());
    EXPECT_EQ(0, a.bind(t.own_ip, t.port));
    EXPECT_EQ(0, b.open());
    EXPECT_EQ(0, b.bind(0, t.port));
}

SOLO(55, "Bind to an address that is not ours: WSAEADDRNOTAVAIL") {
    Socket s;
    EXPECT_EQ(0, s.open());
    EXPECT_EQ(WSAEADDRNOTAVAIL, s.bind(0xC0000263, t.port)); // 192.0.2.99, for documentation
}

SOLO(56, "Second bind: WSAEINVAL; bad name: WSAEFAULT") {
    Socket s;
    EXPECT_EQ(0, s.open());
    sockaddr_in a = address(t.own_ip, t.port);
    int error = 0;
    EXPECT_EQ(SOCKET_ERROR, procs().lpWSPBind(s.handle(), nullptr, sizeof a, &error));
    EXPECT_EQ(WSAEFAULT, error);
    EXPECT_EQ(WSAEFAULT, bind_raw(s.handle(), a, sizeof a - 1));
    a.sin_family = AF_INET6;
    EXPECT_EQ(WSAEFAULT, bind_raw(s.handle(), a, sizeof a));
    a.sin_family = AF_INET;
    EXPECT_EQ(0, bind_raw(s.handle(), a, sizeof a));
    EXPECT_EQ(WSAEINVAL, bind_raw(s.handle(), a, sizeof a));
}

SOLO(57, "Never WSAEADDRINUSE from bind or listen") {
    Socket a, b;
    EXPECT_EQ(0, a.open());
    EXPECT_EQ(0, b.open());
    EXPECT_EQ(0, a.bind(t.own_ip, t.port));
    EXPECT_EQ(0, b.bind(t.own_ip, t.port));
    EXPECT_EQ(0, a.listen(1));
    EXPECT_EQ(0, b.listen(1));
}

SOLO(59, "Options: the known ones work, others give WSAENOPROTOOPT") {
    Socket s;
    EXPECT_EQ(0, s.open());
    uint32_t value = 7;
    EXPECT_EQ(0, get_option(s, SOL_SOCKET, SO_DEBUG, value));
    EXPECT_EQ(0, value);
    const BOOL on = TRUE;
    int error = 0;
    EXPECT_EQ(0, procs().lpWSPSetSockOpt(s.handle(), SOL_SOCKET, SO_DEBUG, reinterpret_cast<const char *>(&on), 4, &error));
    EXPECT_EQ(0, get_option(s, SOL_SOCKET, SO_DEBUG, value));
    EXPECT_EQ(1, value);
    EXPECT_EQ(WSAENOPROTOOPT, get_option(s, SOL_SOCKET, SO_LINGER, value));
    EXPECT_EQ(WSAEFAULT, get_option(s, SOL_SOCKET, SO_DEBUG, value, 2));
}

SOLO(60, "SO_MAX_MSG_SIZE") {
    Socket s;
    uint32_t value = 0;
    EXPECT_EQ(0, s.open());
    EXPECT_EQ(0, get_option(s, SOL_SOCKET, 0x2003, value));
    EXPECT(value >= 65536);
}

SOLO(61, "SO_MAX_RDMA_SIZE") {
    Socket s;
    uint32_t value = 0;
    EXPECT_EQ(0, s.open());
    EXPECT_EQ(0, get_option(s, SOL_SOCKET, SO_MAX_RDMA_SIZE, value));
    EXPECT(value >= 1 << 20);
}

SOLO(62, "SO_RDMA_THRESHOLD_SIZE") {
    Socket s;
    uint32_t value = 0;
    EXPECT_EQ(0, s.open());
    EXPECT_EQ(0, get_option(s, SOL_SOCKET, SO_RDMA_THRESHOLD_SIZE, value));
    EXPECT(value > 0);
}

SOLO(63, "WSPGetQOSByName: FALSE and WSAEOPNOTSUPP") {
    Socket s;
    EXPECT_EQ(0, s.open());
    int error = 0;
    EXPECT_EQ(FALSE, procs().lpWSPGetQOSByName(s.handle(), nullptr, nullptr, &error));
    EXPECT_EQ(WSAEOPNOTSUPP, error);
}

SOLO(64, "INVALID_SOCKET: WSAENOTSOCK everywhere") {
    int error = 0;
    DWORD n = 0;
    WSAOVERLAPPED overlapped = {};
    WSABUF buffer = {};
    sockaddr_in a = address(t.own_ip, t.port);
    WSANETWORKEVENTS events;
    const auto &e = sanswitch::extensions();
#define EXPECT_NOTSOCK(call)                                                                                            \
    do {                                                                                                                \
        error = 0;                                                                                                      \
        (void)(call);                                                                                                   \
        EXPECT_EQ(WSAENOTSOCK, error);                                                                                  \
    } while (0)
    EXPECT_NOTSOCK(procs().lpWSPBind(INVALID_SOCKET, reinterpret_cast<sockaddr *>(&a), sizeof a, &error));
    EXPECT_NOTSOCK(procs().lpWSPListen(INVALID_SOCKET, 1, &error));
    EXPECT_NOTSOCK(procs().lpWSPCloseSocket(INVALID_SOCKET, &error));
    EXPECT_NOTSOCK(procs().lpWSPEventSelect(INVALID_SOCKET, nullptr, 0, &error));
    EXPECT_NOTSOCK(procs().lpWSPEnumNetworkEvents(INVALID_SOCKET, nullptr, &events, &error));
    EXPECT_NOTSOCK(procs().lpWSPAccept(INVALID_SOCKET, nullptr, nullptr, nullptr, 0, &error));
    EXPECT_NOTSOCK(procs().lpWSPSend(INVALID_SOCKET, &buffer, 1, &n, 0, &overlapped, nullptr, nullptr, &error));
    EXPECT_NOTSOCK(procs().lpWSPRecv(INVALID_SOCKET, &buffer, 1, &n, &n, &overlapped, nullptr, nullptr, &error));
    EXPECT_NOTSOCK(procs().lpWSPGetOverlappedResult(INVALID_SOCKET, &overlapped, &n, FALSE, &n, &error));
    EXPECT_NOTSOCK(e.register_memory(INVALID_SOCKET, &n, sizeof n, MEM_READ, &error));
    EXPECT_NOTSOCK(e.deregister_memory(INVALID_SOCKET, reinterpret_cast<HANDLE>(4), &error));
    EXPECT_NOTSOCK(e.deregister_rdma_memory(INVALID_SOCKET, &n, sizeof n, &error));
#undef EXPECT_NOTSOCK
}

SOLO(75, "No NIC at that address: an error after which TCP is tried") {
    Socket s;
    EXPECT_EQ(0, s.open());
    EXPECT_EQ(0, s.bind(t.own_ip, santools::any_port()));
    const int error = s.connect((t.own_ip & 0xffffff00) | 0xfe, 9, patience_ms + 2000);
    EXPECT(error != 0);
    EXPECT(error != WSAECONNRESET && error != WSAECONNREFUSED && error != WSAEHOSTUNREACH);
}

SOLO(87, "Accept with an empty queue: WSAEWOULDBLOCK") {
    Socket s;
    EXPECT_EQ(0, s.open());
    EXPECT_EQ(0, s.bind(0, t.port));
    EXPECT_EQ(0, s.listen(1));
    int error = 0;
    EXPECT_EQ(INVALID_SOCKET, procs().lpWSPAccept(s.handle(), nullptr, nullptr, nullptr, 0, &error));
    EXPECT_EQ(WSAEWOULDBLOCK, error);
}

SOLO(163, "WPUCloseSocketHandle once for each socket, and handles die with the socket") {
    const LONG before = sanswitch::counters().handles_closed;
    Socket s;
    EXPECT_EQ(0, s.open());
    const SOCKET handle = s.handle();
    EXPECT_EQ(0, s.close());
    EXPECT_EQ(before + 1, sanswitch::counters().handles_closed);
    EXPECT_EQ(0, sanswitch::counters().bad_handles);
    int error = 0;
    EXPECT_EQ(SOCKET_ERROR, procs().lpWSPCloseSocket(handle, &error));
    EXPECT_EQ(WSAENOTSOCK, error);
}

SOLO(190, "The functions that are never called fail politely") {
    int error = 0;
    EXPECT_EQ(SOCKET_ERROR, procs().lpWSPShutdown(INVALID_SOCKET, 0, &error));
    EXPECT_EQ(WSAEOPNOTSUPP, error);
}
