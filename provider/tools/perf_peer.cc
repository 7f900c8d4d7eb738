// SPDX-License-Identifier: GPL-2.0-or-later
//
// perf_peer.cc: the two connections between client and server, and the control messages on the first of them.
#include "perf.h"

#include <cstring>

namespace sanperf {

namespace {
constexpr uint32_t message_magic = 0x46524550; // "PERF"
constexpr uint32_t slot_bytes = 512;
static_assert(sizeof(Message) <= slot_bytes);
constexpr uint32_t connect_timeout_ms = 6000;
} // namespace

bool Buffer::alloc(uint64_t bytes) {
    free();
    size_ = (bytes + 4095) & ~4095ull;
    data_ = static_cast<unsigned char *>(VirtualAlloc(nullptr, size_, MEM_COMMIT | MEM_RESERVE, PAGE_READWRITE));
    return data_ != nullptr;
}

void Buffer::free() {
    if (data_) VirtualFree(data_, 0, MEM_RELEASE);
    data_ = nullptr;
}

Peer::~Peer() {
    data.close();
    control_.close();
    for (sanswitch::Operation &op : receives_)
        if (op.event) CloseHandle(op.event);
}

int Peer::post_receive(unsigned slot) {
    receives_[slot].prepare(true);
    const sanswitch::Piece piece = {memory_.data() + slot * slot_bytes, slot_bytes, memory_handle_};
    return control_.recv(receives_[slot], &piece, 1);
}

int Peer::prepare_control() {
    if (!memory_.alloc((slots + 1) * slot_bytes)) return WSAENOBUFS;
    int error = control_.register_memory(memory_.data(), memory_.size(), MEM_READWRITE, memory_handle_);
    for (unsigned i = 0; i < slots && !error; ++i) {
        receives_[i].event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
        error = receives_[i].event ? post_receive(i) : WSAENOBUFS;
    }
    return error;
}

int Peer::listen_and_accept(const Options &options, const char **what) {
    timeout_ms_ = options.timeout_ms;
    *what = "socket";
    int error = listener_.open();
    if (!error) *what = "bind", error = listener_.bind(options.bind_ip, options.port);
    if (!error) *what = "listen", error = listener_.listen(8);
    if (!error) *what = "accept", error = listener_.accept(control_, options.timeout_ms);
    if (!error) *what = "preparing for control messages", error = prepare_control();
    if (!error) *what = "accept", error = listener_.accept(data, options.timeout_ms);
    return error;
}

int Peer::connect(const Options &options, const char **what) {
    timeout_ms_ = options.timeout_ms;
    uint32_t local = options.bind_ip;
    *what = "finding a local address";
    if (!local && sanswitch::addresses(&local, 1) == 0) return WSAEADDRNOTAVAIL;
    // The server may not be up yet.
    const uint64_t end = sanswitch::now_ms() + options.timeout_ms;
    int error = 0;
    for (int n = 0; n < 2;) {
        sanswitch::Socket &s = n == 0 ? control_ : data;
        *what = "socket";
        error = s.open();
        // What the TCP/IP provider would have chosen: any port that is not the server's.
        const uint16_t port = static_cast<uint16_t>(49152 + (GetCurrentProcessId() * 7 + sanswitch::now_ms() + n) % 16000);
        if (!error) *what = "bind", error = s.bind(local, port);
        if (error) return error;
        *what = "connect";
        error = s.connect(options.server_ip, options.port, connect_timeout_ms);
        if (error) {
            s.close();
            if (sanswitch::now_ms() >= end) return error;
            Sleep(50);
            continue;
        }
        if (n == 0) *what = "preparing for control messages", error = prepare_control();
        if (error) return error;
        ++n;
    }
    return 0;
}

int Peer::tell(const Message &message) {
    unsigned char *buffer = memory_.data() + slots * slot_bytes;
    memcpy(buffer, &message, sizeof message);
    reinterpret_cast<Message *>(buffer)->magic = message_magic;
    send_.prepare(false);
    const sanswitch::Piece piece = {buffer, sizeof message, memory_handle_};
    const int error = control_.send(send_, &piece, 1);
    DWORD bytes;
    return error ? error : control_.wait(send_, bytes, timeout_ms_);
}

int Peer::hear(Message &message, Say expected) {
    DWORD bytes = 0;
    int error = control_.wait(receives_[next_], bytes, timeout_ms_);
    if (error) return error;
    if (bytes < sizeof message) return WSAEMSGSIZE;
    memcpy(&message, memory_.data() + next_ * slot_bytes, sizeof message);
    error = post_receive(next_);
    next_ = (next_ + 1) % slots;
    if (error) return error;
    return message.magic == message_magic && message.say == expected ? 0 : WSAEPROTOTYPE;
}

} // namespace sanperf
