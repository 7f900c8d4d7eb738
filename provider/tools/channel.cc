// SPDX-License-Identifier: GPL-2.0-or-later
#include "channel.h"

#include <cstring>

namespace santools {

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

Channel::~Channel() {
    socket.close();
    for (sanswitch::Operation &op : receives_)
        if (op.event) CloseHandle(op.event);
}

int Channel::post(unsigned slot) {
    receives_[slot].prepare(true);
    const sanswitch::Piece piece = {memory_.data() + slot * max_message, max_message, handle_};
    return socket.recv(receives_[slot], &piece, 1);
}

int Channel::start(uint32_t timeout_ms) {
    timeout_ms_ = timeout_ms;
    if (!memory_.alloc((slots + 1) * max_message)) return WSAENOBUFS;
    int error = socket.register_memory(memory_.data(), memory_.size(), MEM_READWRITE, handle_);
    for (unsigned i = 0; i < slots && !error; ++i) {
        receives_[i].event = CreateEventA(nullptr, TRUE, FALSE, nullptr);
        error = receives_[i].event ? post(i) : WSAENOBUFS;
    }
    return error;
}

int Channel::tell(const void *message, uint32_t length) {
    if (length > max_message) return WSAEMSGSIZE;
    unsigned char *buffer = memory_.data() + slots * max_message;
    memcpy(buffer, message, length);
    send_.prepare(false);
    const sanswitch::Piece piece = {buffer, length, handle_};
    const int error = socket.send(send_, &piece, 1);
    DWORD bytes;
    return error ? error : socket.wait(send_, bytes, timeout_ms_);
}

int Channel::hear(void *message, uint32_t length) {
    DWORD bytes = 0;
    if (unposted_[next_]) return unposted_[next_];
    const int error = socket.wait(receives_[next_], bytes, timeout_ms_);
    if (error) return error;
    memcpy(message, memory_.data() + next_ * max_message, bytes < length ? bytes : length);
    // The peer may have closed already: this message counts all the same, only a further one will not come.
    unposted_[next_] = post(next_);
    next_ = (next_ + 1) % slots;
    return bytes == length ? 0 : WSAEMSGSIZE;
}

// What the TCP/IP provider would have chosen.
uint16_t any_port() {
    static volatile LONG next;
    return static_cast<uint16_t>(49152 + (GetCurrentProcessId() * 131u + static_cast<uint32_t>(InterlockedIncrement(&next))) %
                                             16000);
}

int connect_patiently(sanswitch::Socket &s, uint32_t local_ip, uint32_t ip, uint16_t port, uint32_t timeout_ms) {
    const uint64_t end = sanswitch::now_ms() + timeout_ms;
    for (;;) {
        int error = s.open();
        if (!error) error = s.bind(local_ip, any_port());
        if (error) return error;
        error = s.connect(ip, port, 6000);
        if (!error) return 0;
        s.close();
        if (sanswitch::now_ms() >= end) return error;
        Sleep(50);
    }
}

} // namespace santools
