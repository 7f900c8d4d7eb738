// SPDX-License-Identifier: GPL-2.0-or-later
//
// channel.h: messages between the two sides of a tool: one connection with a pool of posted receives. Waiting for a message
// sleeps (notified completions), so that it takes no processor from what is being measured. Also memory from VirtualAlloc.
#pragma once

#include "switch/switch.h"

namespace santools {

class Buffer {
  public:
    Buffer() = default;
    ~Buffer() { free(); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    bool alloc(uint64_t bytes); // zeroed, whole pages
    void free();
    unsigned char *data() const { return data_; }
    uint64_t size() const { return size_; }

  private:
    unsigned char *data_ = nullptr;
    uint64_t size_ = 0;
};

class Channel {
  public:
    static constexpr uint32_t max_message = 512;

    Channel() = default;
    ~Channel();
    Channel(const Channel &) = delete;
    Channel &operator=(const Channel &) = delete;

    // The connection, connected or accepted by the caller; start() then posts the receives.
    sanswitch::Socket socket;
    int start(uint32_t timeout_ms);

    // 0 or a Winsock error. WSAEMSGSIZE: the peer's message has another length.
    int tell(const void *message, uint32_t length);
    int hear(void *message, uint32_t length);

  private:
    static constexpr unsigned slots = 8;
    int post(unsigned slot);

    Buffer memory_;
    HANDLE handle_ = nullptr;
    sanswitch::Operation receives_[slots], send_;
    int unposted_[slots] = {}; // why the slot has no receive
    unsigned next_ = 0;
    uint32_t timeout_ms_ = 0;
};

// Connects a socket from a port of our own choosing, again and again until the server is there or the time is up.
int connect_patiently(sanswitch::Socket &s, uint32_t local_ip, uint32_t ip, uint16_t port, uint32_t timeout_ms);
uint16_t any_port();

} // namespace santools
