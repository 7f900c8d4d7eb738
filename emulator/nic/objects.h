// SPDX-License-Identifier: GPL-2.0-or-later
// objects.h: what a guest creates in the NIC besides memory regions: event queues, completion queues, queue pairs, listeners and
// connection requests. Plain state; the code that moves it on is in the file named beside each.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "mr_table.h"
#include "sanlab/fabric_wire.h"

namespace snic {

struct Pd {
    uint32_t handle = 0;
    uint32_t qps = 0;
    uint32_t mrs = 0;
};

// queues.cc
struct Eq {
    uint32_t handle = 0;
    uint32_t entries = 0, vector = 0, users = 0;
    PageMap ring;
    uint64_t record = 0;
    uint32_t pi = 0, ci = 0;
    std::deque<snic_eqe> held;  // the ring is full; bounded by Nic::kMaxHeldEvents
};

// queues.cc
struct Cq {
    uint32_t handle = 0;
    uint32_t entries = 0, eqn = 0, doorbell_page = 0, users = 0;
    PageMap ring;
    uint64_t record = 0, cookie = 0;
    uint32_t pi = 0, ci = 0;
    bool armed = false;
    bool failed = false;  // overflowed or not writable: takes no more entries
};

// One work request of the send queue, from its fetch to its completion (requester.cc).
struct SendOp {
    snic_wqe wqe;             // our copy; num_sge elements are valid
    uint32_t index = 0;       // of the WQE
    uint32_t length = 0;      // sum of the SGEs
    uint32_t first_psn = 0;
    uint32_t segments = 0;    // at least 1, also for no data
    uint32_t segment_size = 0;
    uint32_t answered = 0;    // READ: segments whose response has come
    bool direct = false;      // the peer reads or writes our RAM itself
    snic_wc_status status = SNIC_WC_SUCCESS;  // not SUCCESS: complete with it when all earlier ones are done
    uint8_t held = 0;         // SGEs whose region counts this use
    Mr *regions[SNIC_MAX_SGE];

    uint32_t end_psn() const { return first_psn + segments; }
    bool is_read() const { return wqe.opcode == SNIC_WR_RDMA_READ; }
};

// A receive that a message is being placed into (responder.cc).
struct RecvOp {
    bool active = false;
    snic_wqe wqe;
    uint32_t index = 0;
    uint32_t capacity = 0;
    uint32_t done = 0;        // bytes placed
    uint32_t msg_length = 0;
    uint8_t held = 0;
    Mr *regions[SNIC_MAX_SGE];
};

// A READ that could not be answered yet because the link was full (responder.cc).
struct PendingRead {
    fabric_msg msg;
    std::vector<std::byte> tail;
};

// Who is waiting for what on the wire (connection.cc).
enum class Cm : uint8_t {
    idle,         // no connection yet
    requested,    // REQ sent; REP, REJ or the time-out moves it on
    replied,      // REP sent; RTU or the first request moves it on
    established,  // ends with an error or a DREQ
    leaving,      // DREQ sent; DREP, the peer's end or the last try moves it on
    gone          // the peer does nothing more for this QP
};

struct QpCounters {
    uint64_t tx_segments = 0, rx_segments = 0, tx_bytes = 0, rx_bytes = 0;
    uint64_t rx_write_requests = 0, rx_read_requests = 0, rx_send_requests = 0;
    uint64_t duplicate_request = 0, out_of_sequence = 0, packet_seq_err = 0, retransmits = 0;
    uint64_t local_ack_timeout_err = 0, rnr_nak_retry_err = 0, out_of_buffer = 0;
    uint64_t req_remote_access_errors = 0, resp_remote_access_errors = 0;
    uint64_t req_cqe_flush_error = 0, resp_cqe_flush_error = 0;
};

struct Qp {
    uint32_t handle = 0;  // the QP number
    snic_qp_state state = SNIC_QP_INIT;
    snic_qp_params params = {};
    PageMap sq, rq;

    // Connection
    Cm cm = Cm::idle;
    PeerId peer = kNoPeer;
    uint32_t remote_qpn = 0;
    uint64_t connection = 0;
    bool initiator = false;
    fabric_cm address = {};     // as in REQ
    std::vector<std::byte> private_data;  // of REQ or REP, for retransmission
    uint64_t cm_deadline = 0;   // end of CONNECT
    uint64_t cm_next = 0;       // next retransmission
    uint32_t cm_tries = 0;
    uint32_t reply_request = 0; // connector: request handle that holds the acceptor's private data

    // Requester
    uint32_t sq_ci = 0;         // next WQE to begin
    uint32_t sq_done = 0;       // WQEs completed
    std::deque<SendOp> ops;     // begun, oldest first
    uint32_t next_psn = 0;      // of the next new segment
    uint32_t una_psn = 0;       // oldest not acknowledged
    uint32_t send_psn = 0;      // next to be sent: una_psn..next_psn (below next_psn while going back)
    uint32_t max_sent_psn = 0;  // past the highest ever sent
    bool stalled = false;       // an op failed locally: nothing after it begins
    uint32_t retries = 0, rnr_retries = 0;
    uint64_t ack_due = 0;       // 0: nothing outstanding
    uint64_t rnr_until = 0;     // 0: not waiting
    uint64_t pace_until = 0;    // the transmitter is busy until then; 0: not waiting

    // Responder
    uint32_t epsn = 0;
    uint32_t rq_ci = 0;
    bool nak_sent = false;      // a sequence NAK is out for epsn
    bool ack_owed = false;      // an ACK did not fit into the link
    RecvOp recv;
    std::deque<PendingRead> reads;

    // What the peer was told when we refused its request: repeated in DREQ, in case the NAK was lost.
    fabric_nak refused = fabric_nak{};
    uint32_t refused_psn = 0;

    // Scheduling
    uint64_t timer_at = 0;      // earliest entry of this QP in Nic::timers_; 0: none
    bool scheduled = false;     // in Nic::active_
    bool watched = false;       // in Nic::watched_
    bool reported_drained = false;
    QpCounters counters;
};

struct Listener {
    uint32_t handle = 0;
    uint32_t ip = 0, backlog = 0, eqn = 0, pending = 0;
    uint16_t port = 0;
    uint64_t cookie = 0;
};

struct Request {
    uint32_t handle = 0;
    uint32_t listener = 0;  // 0: the private data of a REP
    PeerId peer = kNoPeer;
    uint32_t remote_qpn = 0, remote_psn = 0;
    fabric_cm address = {};
    std::vector<std::byte> private_data;
};

}  // namespace snic
