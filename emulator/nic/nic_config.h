// SPDX-License-Identifier: GPL-2.0-or-later
// nic_config.h: sizes of one NIC, fixed at its creation. QUERY_DEVICE reports them.
#pragma once

#include <cstdint>

#include "sanlab/fabric_wire.h"
#include "sanlab/snic_hw.h"

namespace snic {

struct Config {
    uint64_t guid = 0;
    uint32_t ip = 0;  // host order
    uint32_t prefix = 24;
    uint32_t vectors = 4;
    uint32_t doorbell_pages = 256;
    uint32_t max_pd = 4096;
    uint32_t max_mr = 65536;
    uint32_t max_cq = 4096;
    uint32_t max_qp = 4096;
    uint32_t max_eq = 32;
    uint32_t max_listen = 1024;
    uint32_t max_requests = 4096;  // pending connection requests of all listeners
    uint32_t max_pages = 1u << 24;     // page addresses in all regions and queues together
    uint32_t max_wqe = 16384;
    uint32_t max_cqe = 65536;
    uint32_t max_eqe = 65536;
    uint32_t max_rd_atomic = 16;       // outstanding read segments of a QP, as requester
    uint64_t max_mr_size = 1ull << 38;
    uint64_t max_msg_size = 1u << 30;
    bool revoke_by_deregister = false;

    // Fault injection: admin command number fail_command (from 1, counted since the NIC was made, across resets) is not carried
    // out, and completes with fail_status, or never.
    static constexpr uint16_t no_answer = 0xFFFF;
    uint32_t fail_command = 0;  // 0: none
    uint16_t fail_status = SNIC_ERR_RESOURCES;

    // Latency and bandwidth model; all 0: as fast as it goes. Times by Host::now_ns().
    uint64_t link_rate = 0;   // bytes per second that this NIC can send
    uint64_t delay = 0;       // ns that every record takes to arrive here
    uint64_t jitter = 0;      // ns added to that, uniform in 0..jitter; order is kept
    uint64_t op_cost = 0;     // ns of this NIC's time for each operation it begins

    // Transport. Times in nanoseconds.
    uint64_t ack_timeout = 50'000'000;  // first; doubles with each retry, up to eight times
    uint64_t rnr_delay = 100'000;       // first; doubles up to 16 times
    uint64_t cm_retransmit = 100'000'000;
    uint32_t cm_disconnect_tries = 8;
    uint32_t direct_segment = FABRIC_DIRECT_SEGMENT;    // bytes, at most that
    uint32_t payload_segment = FABRIC_PAYLOAD_SEGMENT;  // bytes, at most that
    uint32_t window_segments = 64;      // unacknowledged segments of a QP
    uint32_t window_ops = 256;          // operations of a QP begun and not completed

    uint32_t caps() const {
        return SNIC_CAP_RDMA_READ | SNIC_CAP_LARGE_PAGES | (revoke_by_deregister ? 0 : SNIC_CAP_REKEY);
    }
};

}  // namespace snic
