// SPDX-License-Identifier: GPL-2.0-or-later
//
// nic.h: the provider's handle to the proxy driver, and through it to the NIC. Thread-safe. request() uses no heap.
#pragma once

#include "sys.h"
#include <sanlab/sanproxy_ioctl.h>
#include <sanlab/snic_hw.h>

namespace sanprov {

class Nic {
  public:
    // 0, or a Winsock error.
    int open();
    void close();
    bool is_open() const { return file_ != INVALID_HANDLE_VALUE; }

    // Sends one request; the structure starts with a sanproxy_header. Returns enum sanproxy_result.
    template <typename T> uint32_t request(uint32_t code, T &structure) {
        return send(code, reinterpret_cast<sanproxy_header *>(&structure), sizeof structure);
    }
    // Releases any object of the driver's.
    void close_object(uint32_t id);

    // Rings: SNIC_DB_SQ, SNIC_DB_CQ_ARM.
    void ring(uint32_t doorbell, uint32_t number) {
        *reinterpret_cast<volatile uint32_t *>(doorbell_page_ + doorbell) = number;
    }
    const sanproxy_query &limits() const { return limits_; }
    // The addresses of this moment.
    uint32_t query(sanproxy_query &query);

  private:
    uint32_t send(uint32_t code, sanproxy_header *header, uint32_t size);
    HANDLE take_event();
    void give_event(HANDLE event);

    static constexpr size_t event_cache = 16;
    HANDLE file_ = INVALID_HANDLE_VALUE;
    volatile uint8_t *doorbell_page_ = nullptr;
    sanproxy_query limits_ = {};
    void *volatile events_[event_cache] = {};
};

// enum sanproxy_result as a Winsock error, for requests without rules of their own.
int winsock_error(uint32_t result);

} // namespace sanprov
