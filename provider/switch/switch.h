// SPDX-License-Identifier: GPL-2.0-or-later
//
// switch.h: our stand-in for the Windows Sockets switch, as a library for programs: it loads the provider DLL and calls it
// exactly as the switch does (its own up-call table, WSPStartupEx, address list, extension pointers, event selection for
// accept and connect, overlapped data transfer, the secure-memory callback), and offers that as sockets.
//
// Errors are Winsock codes, 0 is success. No exceptions, no C++ threads: usable in programs for NT 5.2.
#pragma once

#include <winsock2.h>
#include <ws2spi.h>
#include <ws2san.h>
#include <windows.h>

#include <cstddef>
#include <cstdint>

namespace sanswitch {

// The seven extension functions; read and cache_callback may be absent.
struct Extensions {
    LPFN_WSPREGISTERMEMORY register_memory;
    LPFN_WSPDEREGISTERMEMORY deregister_memory;
    int(WSPAPI *register_rdma_memory)(SOCKET, PVOID, DWORD, DWORD, LPVOID, LPDWORD, LPINT);
    LPFN_WSPDEREGISTERRDMAMEMORY deregister_rdma_memory;
    LPFN_WSPRDMAWRITE rdma_write;
    LPFN_WSPRDMAREAD rdma_read;
    LPFN_WSPMEMORYREGISTRATIONCACHECALLBACK cache_callback;
};

// What the provider has asked of the switch, for tests.
struct UpcallCounters {
    volatile LONG handles_created, handles_closed, completions, bad_handles;
    volatile LONG cache_callbacks, cache_hits;
};

// Loads the provider. name: nullptr for sanprov.dll by the usual search. *what names the step that failed.
int startup(const char *name, const char **what);
void shutdown();

HMODULE provider(); // the DLL
const WSPPROC_TABLE &procs();
const Extensions &extensions();
UpcallCounters &counters();
// What the provider was started with; for tests that start it again.
const WSPUPCALLTABLEEX &upcalls();
WSAPROTOCOL_INFOW tcp_entry();

// The provider's addresses, host order. Returns how many there are; at most max are stored.
size_t addresses(uint32_t *out, size_t max);

// One overlapped operation; it must outlive its completion. Polled operations are found finished by asking, notified ones
// are announced by the provider: the event is set, then the callback runs, on whatever thread the provider chose.
struct Operation {
    WSAOVERLAPPED overlapped = {};
    HANDLE event = nullptr;
    void (*callback)(Operation *) = nullptr;
    void *context = nullptr;
    volatile LONG notifications = 0; // up-calls for this use: at most one is right
    DWORD error = 0, bytes = 0;      // as notified
    DWORD high_when_notified = 0;    // InternalHigh, as the provider had set it by then

    // Prepares for (another) use. A notified one without event and callback can be asked, too.
    void prepare(bool notified);
    bool finished() const { return *const_cast<volatile ULONG_PTR *>(&overlapped.Internal) != WSS_OPERATION_IN_PROGRESS; }
};

// A buffer of the peer's, as it came in a message.
struct RemoteBuffer {
    unsigned char bytes[64];
    uint32_t length;
};

struct Piece {
    void *buffer;
    uint32_t length;
    HANDLE handle; // from register_memory; only RDMA looks at it
};

class Socket {
  public:
    Socket() = default;
    ~Socket() { close(); }
    Socket(const Socket &) = delete;
    Socket &operator=(const Socket &) = delete;

    int open();
    // Takes a socket over that another process has given up for this one.
    int take(DWORD token, bool listening);
    // Gives it up for that process; what is left is a descriptor to close, or to take() again.
    int duplicate(DWORD process, DWORD &token);
    int bind(uint32_t ip, uint16_t port);
    int listen(int backlog);
    int connect(uint32_t ip, uint16_t port, uint32_t timeout_ms);
    // Waits for a request and accepts it. decide: nullptr accepts all; else CF_ACCEPT, CF_REJECT, CF_DEFER by peer and port.
    int accept(Socket &out, uint32_t timeout_ms, int (*decide)(uint32_t ip, uint16_t port, void *) = nullptr,
               void *context = nullptr);
    int close();

    int register_memory(void *buffer, size_t length, DWORD flags, HANDLE &handle);
    int deregister_memory(HANDLE handle);
    int expose(void *buffer, size_t length, DWORD flags, RemoteBuffer &out);
    int withdraw(RemoteBuffer &buffer);

    // 0: under way. The operation must have been prepared.
    int send(Operation &op, const Piece *pieces, size_t count);
    int recv(Operation &op, const Piece *pieces, size_t count);
    int write(Operation &op, const Piece *pieces, size_t count, const RemoteBuffer &target, uint32_t offset);
    int read(Operation &op, const Piece *pieces, size_t count, const RemoteBuffer &target, uint32_t offset);

    // WSA_IO_INCOMPLETE, or the operation's end.
    int poll(Operation &op, DWORD &bytes);
    // Polls (or waits for the event of a notified operation) until it has ended. WSAETIMEDOUT: it has not.
    int wait(Operation &op, DWORD &bytes, uint32_t timeout_ms);

    SOCKET handle() const { return s_; }
    uint32_t peer_ip() const { return peer_ip_; }
    uint16_t peer_port() const { return peer_port_; }

  private:
    int select_events(long events);
    int rdma(Operation &op, const Piece *pieces, size_t count, const RemoteBuffer &target, uint32_t offset, bool write);

    SOCKET s_ = INVALID_SOCKET;
    HANDLE event_ = nullptr;
    uint32_t peer_ip_ = 0;
    uint16_t peer_port_ = 0;
};

// Milliseconds from an arbitrary point, never backwards.
uint64_t now_ms();

} // namespace sanswitch
