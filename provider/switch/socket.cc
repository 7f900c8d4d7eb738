// SPDX-License-Identifier: GPL-2.0-or-later
//
// socket.cc: sockets over the provider's functions, with the calls that the switch makes, in its order.
#include "switch.h"

namespace sanswitch {

namespace {

constexpr size_t max_pieces = 64;
// Few: with fewer processors than pollers, who spins keeps the one from running that he waits for.
constexpr unsigned polls_before_yield = 16;

sockaddr_in address(uint32_t ip, uint16_t port) {
    sockaddr_in a = {};
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = __builtin_bswap32(ip);
    a.sin_port = __builtin_bswap16(port);
    return a;
}

// Every data call answers SOCKET_ERROR with WSA_IO_PENDING when it is under way; 0 would be as good. By reference: the call
// that sets the error may be evaluated after the other argument.
int under_way(int result, const int &error) { return result == 0 || error == WSA_IO_PENDING ? 0 : error; }

struct Decision {
    int (*decide)(uint32_t, uint16_t, void *);
    void *context;
};

int CALLBACK condition(LPWSABUF caller, LPWSABUF, LPQOS, LPQOS, LPWSABUF, LPWSABUF, GROUP *, DWORD_PTR data) {
    const auto &decision = *reinterpret_cast<const Decision *>(data);
    const auto *peer = reinterpret_cast<const sockaddr_in *>(caller->buf);
    return decision.decide(__builtin_bswap32(peer->sin_addr.s_addr), __builtin_bswap16(peer->sin_port), decision.context);
}

} // namespace

uint64_t now_ms() {
    static LARGE_INTEGER frequency;
    LARGE_INTEGER now;
    if (frequency.QuadPart == 0) QueryPerformanceFrequency(&frequency);
    QueryPerformanceCounter(&now);
    return static_cast<uint64_t>(now.QuadPart) / (static_cast<uint64_t>(frequency.QuadPart) / 1000);
}

void Operation::prepare(bool notified) {
    overlapped = {};
    // Bit 0 tells the provider not to notify; what else stands there is the switch's business.
    overlapped.hEvent = notified ? nullptr : reinterpret_cast<HANDLE>(static_cast<uintptr_t>(1));
    notifications = 0;
    error = bytes = 0;
    if (event) ResetEvent(event);
}

int Socket::open() {
    close();
    int error = 0;
    s_ = procs().lpWSPSocket(AF_INET, SOCK_STREAM, IPPROTO_TCP, nullptr, 0, WSA_FLAG_OVERLAPPED, &error);
    return s_ == INVALID_SOCKET ? error : 0;
}

int Socket::take(DWORD token, bool listening) {
    WSAPROTOCOL_INFOW info = {};
    info.dwProviderReserved = token;
    int error = 0;
    const SOCKET taken = procs().lpWSPSocket(AF_INET, SOCK_STREAM, IPPROTO_TCP, &info, 0, WSA_FLAG_OVERLAPPED, &error);
    if (taken == INVALID_SOCKET) return error;
    if (taken != s_) close(); // the provider has not used the old descriptor again, so it goes
    s_ = taken;
    return listening ? select_events(FD_ACCEPT) : 0;
}

int Socket::duplicate(DWORD process, DWORD &token) {
    WSAPROTOCOL_INFOW info = {};
    int error = 0;
    if (procs().lpWSPDuplicateSocket(s_, process, &info, &error)) return error;
    token = info.dwProviderReserved;
    return 0;
}

int Socket::bind(uint32_t ip, uint16_t port) {
    const sockaddr_in a = address(ip, port);
    int error = 0;
    return procs().lpWSPBind(s_, reinterpret_cast<const sockaddr *>(&a), sizeof a, &error) ? error : 0;
}

int Socket::select_events(long events) {
    int error = 0;
    if (!event_) event_ = CreateEventA(nullptr, TRUE, FALSE, nullptr);
    if (!event_) return WSAENOBUFS;
    return procs().lpWSPEventSelect(s_, event_, events, &error) ? error : 0;
}

int Socket::listen(int backlog) {
    int error = 0;
    if (procs().lpWSPListen(s_, backlog, &error)) return error;
    return select_events(FD_ACCEPT);
}

int Socket::connect(uint32_t ip, uint16_t port, uint32_t timeout_ms) {
    int error = select_events(FD_CONNECT);
    if (error) return error;
    const sockaddr_in a = address(ip, port);
    if (procs().lpWSPConnect(s_, reinterpret_cast<const sockaddr *>(&a), sizeof a, nullptr, nullptr, nullptr, nullptr,
                             &error) == 0)
        error = 0;
    else if (error == WSAEWOULDBLOCK) {
        const uint64_t end = now_ms() + timeout_ms;
        for (;;) {
            const uint64_t now = now_ms();
            if (now >= end || WaitForSingleObject(event_, static_cast<DWORD>(end - now)) != WAIT_OBJECT_0)
                return WSAETIMEDOUT; // the caller closes the socket, which aborts the attempt
            WSANETWORKEVENTS events;
            if (procs().lpWSPEnumNetworkEvents(s_, event_, &events, &error)) return error;
            if (!(events.lNetworkEvents & FD_CONNECT)) continue;
            error = events.iErrorCode[FD_CONNECT_BIT];
            break;
        }
    }
    if (error) return error;
    peer_ip_ = ip;
    peer_port_ = port;
    return 0;
}

int Socket::accept(Socket &out, uint32_t timeout_ms, int (*decide)(uint32_t, uint16_t, void *), void *context) {
    out.close();
    const Decision decision = {decide, context};
    const uint64_t end = now_ms() + timeout_ms;
    for (;;) {
        sockaddr_in peer;
        int length = sizeof peer, error = 0;
        out.s_ = procs().lpWSPAccept(s_, reinterpret_cast<sockaddr *>(&peer), &length, decide ? condition : nullptr,
                                     reinterpret_cast<DWORD_PTR>(&decision), &error);
        if (out.s_ != INVALID_SOCKET) {
            out.peer_ip_ = __builtin_bswap32(peer.sin_addr.s_addr);
            out.peer_port_ = __builtin_bswap16(peer.sin_port);
            return 0;
        }
        if (error != WSAEWOULDBLOCK) return error;
        const uint64_t now = now_ms();
        if (now >= end || WaitForSingleObject(event_, static_cast<DWORD>(end - now)) != WAIT_OBJECT_0) return WSAETIMEDOUT;
        WSANETWORKEVENTS events;
        if (procs().lpWSPEnumNetworkEvents(s_, event_, &events, &error)) return error;
    }
}

int Socket::close() {
    int error = 0, result = 0;
    if (s_ != INVALID_SOCKET && procs().lpWSPCloseSocket(s_, &error)) result = error;
    s_ = INVALID_SOCKET;
    if (event_) CloseHandle(event_);
    event_ = nullptr;
    return result;
}

int Socket::register_memory(void *buffer, size_t length, DWORD flags, HANDLE &handle) {
    int error = 0;
    handle = extensions().register_memory(s_, buffer, static_cast<DWORD>(length), flags, &error);
    return handle ? 0 : error;
}

int Socket::deregister_memory(HANDLE handle) {
    int error = 0;
    return extensions().deregister_memory(s_, handle, &error) ? error : 0;
}

int Socket::expose(void *buffer, size_t length, DWORD flags, RemoteBuffer &out) {
    int error = 0;
    DWORD size = sizeof out.bytes;
    if (extensions().register_rdma_memory(s_, buffer, static_cast<DWORD>(length), flags, out.bytes, &size, &error))
        return error;
    out.length = size;
    return 0;
}

int Socket::withdraw(RemoteBuffer &buffer) {
    int error = 0;
    return extensions().deregister_rdma_memory(s_, buffer.bytes, buffer.length, &error) ? error : 0;
}

int Socket::send(Operation &op, const Piece *pieces, size_t count) {
    if (count > max_pieces) return WSAEINVAL;
    WSABUF buffers[max_pieces];
    for (size_t i = 0; i < count; ++i) buffers[i] = {pieces[i].length, static_cast<char *>(pieces[i].buffer)};
    int error = 0;
    DWORD sent;
    return under_way(procs().lpWSPSend(s_, buffers, static_cast<DWORD>(count), &sent, 0, &op.overlapped, nullptr, nullptr,
                                       &error),
                     error);
}

int Socket::recv(Operation &op, const Piece *pieces, size_t count) {
    if (count > max_pieces) return WSAEINVAL;
    WSABUF buffers[max_pieces];
    for (size_t i = 0; i < count; ++i) buffers[i] = {pieces[i].length, static_cast<char *>(pieces[i].buffer)};
    int error = 0;
    DWORD received, flags = 0;
    return under_way(procs().lpWSPRecv(s_, buffers, static_cast<DWORD>(count), &received, &flags, &op.overlapped, nullptr,
                                       nullptr, &error),
                     error);
}

int Socket::rdma(Operation &op, const Piece *pieces, size_t count, const RemoteBuffer &target, uint32_t offset, bool write) {
    if (count > max_pieces) return WSAEINVAL;
    if (!write && !extensions().rdma_read) return WSAEOPNOTSUPP;
    WSABUFEX buffers[max_pieces];
    for (size_t i = 0; i < count; ++i)
        buffers[i] = {pieces[i].length, static_cast<char *>(pieces[i].buffer), pieces[i].handle};
    int error = 0;
    DWORD moved;
    auto call = write ? extensions().rdma_write : extensions().rdma_read;
    return under_way(call(s_, buffers, static_cast<DWORD>(count), const_cast<unsigned char *>(target.bytes), target.length,
                          offset, &moved, 0, &op.overlapped, nullptr, nullptr, &error),
                     error);
}

int Socket::write(Operation &op, const Piece *pieces, size_t count, const RemoteBuffer &target, uint32_t offset) {
    return rdma(op, pieces, count, target, offset, true);
}

int Socket::read(Operation &op, const Piece *pieces, size_t count, const RemoteBuffer &target, uint32_t offset) {
    return rdma(op, pieces, count, target, offset, false);
}

int Socket::poll(Operation &op, DWORD &bytes) {
    int error = 0;
    DWORD flags = 0;
    bytes = 0;
    return procs().lpWSPGetOverlappedResult(s_, &op.overlapped, &bytes, FALSE, &flags, &error) ? 0 : error;
}

int Socket::wait(Operation &op, DWORD &bytes, uint32_t timeout_ms) {
    const uint64_t end = now_ms() + timeout_ms;
    const bool notified = !(reinterpret_cast<uintptr_t>(op.overlapped.hEvent) & 1);
    if (notified && op.event && WaitForSingleObject(op.event, timeout_ms) != WAIT_OBJECT_0) return WSAETIMEDOUT;
    for (unsigned n = 1;; ++n) {
        const int error = poll(op, bytes);
        if (error != WSA_IO_INCOMPLETE) return error;
        if (n % polls_before_yield) continue;
        Sleep(0);
        if (now_ms() >= end) return WSAETIMEDOUT;
    }
}

} // namespace sanswitch
