// SPDX-License-Identifier: GPL-2.0-or-later
// nic.h: one SAN NIC, as docs/snic.md describes it. Deterministic: all it does follows from the calls below, the host memory, and
// what Host and Link return. It belongs to one thread at a time (the owner's engine).
//
//   admin.cc         registers, admin queue, commands about PDs and queues
//   admin_qp.cc      commands about queue pairs
//   admin_memory.cc  commands about memory regions
//   queues.cc        event queues, completion queues, doorbells, the watch list
//   requester.cc     send queues: segments out, acknowledgements in, retransmission
//   responder.cc     requests from peers: the chain of checks, placement, acknowledgement
//   timing.cc        the latency and bandwidth model
//   connection.cc    listen, connect, accept, disconnect; flushing
//   nic.cc           step, timers, links, reset
//   state_json.cc    introspection
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <queue>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "guest_memory.h"
#include "handle_table.h"
#include "host.h"
#include "mr_table.h"
#include "nic_config.h"
#include "objects.h"
#include "sanlab/fabric_wire.h"
#include "sanlab/snic_hw.h"

namespace snic {

struct NicCounters {
    uint64_t commands = 0, command_errors = 0, events = 0, interrupts = 0;
    uint64_t bad_doorbells = 0;      // unknown queue, or not of that page
    uint64_t bad_records = 0;        // malformed messages from peers
    uint64_t stale_records = 0;      // well-formed, for a QP that is gone or not connected to the sender
    uint64_t events_lost = 0;        // more held back than kMaxHeldEvents
};

class Nic {
  public:
    static constexpr uint64_t kNever = UINT64_MAX;
    static constexpr size_t kMaxHeldEvents = 65536;
    static constexpr size_t kMaxWatched = 16;

    Nic(Host &host, Link &link, const Config &config);

    // Registers that the engine owns. The interrupt registers are the owner's (irq_unit.h).
    void write_register(uint32_t offset, uint64_t value, unsigned size);
    uint64_t read_register(uint32_t offset, unsigned size) const;
    void doorbell(uint32_t page, uint32_t offset, uint32_t value);
    void reset();
    // Looks at every queue as if all doorbells had been rung: for an owner that had to drop some.
    void rescan();

    // The fabric. A peer that is down is forgotten: its id does not come back.
    void set_link(bool up);
    void peer_down(PeerId peer);
    // One record from a peer: copied before it is checked. Handled completely before this returns.
    void receive(PeerId peer, std::span<const std::byte> record);

    // Does at most about `budget` units of work (a unit: a segment, a command). True: there is more to do at once.
    bool step(unsigned budget);
    // When step() must be called next even if nothing happens; kNever: no need.
    uint64_t deadline() const;
    // Before the owner stops calling step(): asks for doorbells again. False: work turned up meanwhile, do not sleep.
    bool prepare_sleep();

    std::string state_json();
    const Config &config() const { return config_; }
    const NicCounters &counters() const { return counters_; }
    fabric_counters fabric_totals();

  private:
    // --- admin.cc, admin_memory.cc ---
    struct Outcome {
        snic_status status = SNIC_OK;
        uint16_t detail = 0;
        bool deferred = false;  // completes later, by finish_command()
        uint64_t result[6] = {};
        static Outcome error(snic_status status, size_t field = 0) {
            Outcome o;
            o.status = status;
            o.detail = static_cast<uint16_t>(field);
            return o;
        }
    };
    struct Waiter {  // a deferred command
        uint32_t slot_number;
        uint64_t cookie;
        uint8_t opcode;
        uint64_t handle;
    };
    void enable();
    void fatal(snic_fatal cause);
    bool run_commands(unsigned budget);
    Outcome execute(uint32_t number, const snic_cmd &cmd);
    void finish_command(uint32_t number, uint64_t cookie, const Outcome &outcome);
    void fail_on_purpose(uint32_t number, const snic_cmd &cmd);  // Config::fail_command
    void run_waiters();

    Outcome cmd_query_device(const snic_cmd &);
    Outcome cmd_create_pd(const snic_cmd &);
    Outcome cmd_destroy_pd(const snic_cmd &);
    Outcome cmd_register_mr(const snic_cmd &);
    Outcome cmd_modify_mr(const snic_cmd &);
    Outcome cmd_deregister_mr(uint32_t number, const snic_cmd &);
    Outcome cmd_create_eq(const snic_cmd &);
    Outcome cmd_destroy_eq(const snic_cmd &);
    Outcome cmd_create_cq(const snic_cmd &);
    Outcome cmd_destroy_cq(const snic_cmd &);
    Outcome cmd_create_qp(const snic_cmd &);
    Outcome check_qp_params(const snic_qp_params &params);
    Outcome cmd_destroy_qp(uint32_t number, const snic_cmd &);
    Outcome cmd_modify_qp(uint32_t number, const snic_cmd &);
    Outcome cmd_query_qp(const snic_cmd &);
    Outcome cmd_rebind_qp(const snic_cmd &);
    Outcome load_qp_params(uint64_t addr, size_t field, snic_qp_params &params, PageMap &sq, PageMap &rq);
    void count_qp_users(const snic_qp_params &params, int change);
    Outcome cmd_listen(const snic_cmd &);
    Outcome cmd_unlisten(const snic_cmd &);
    Outcome cmd_connect(const snic_cmd &);
    Outcome cmd_get_request(const snic_cmd &);
    Outcome cmd_accept(const snic_cmd &);
    Outcome cmd_reject(const snic_cmd &);
    Outcome cmd_disconnect(const snic_cmd &);
    Outcome cmd_attach_doorbell();
    Outcome cmd_detach_doorbell(const snic_cmd &);
    Outcome read_private_data(uint64_t addr, uint32_t len, size_t addr_field, size_t len_field, std::vector<std::byte> &out);
    void release_mr(Mr &mr);
    void destroy_qp(Qp &qp);

    // --- queues.cc ---
    void post_event(uint32_t eqn, snic_eqe eqe);
    bool write_eqe(Eq &eq, const snic_eqe &eqe);
    void drain_held_events();
    void post_cqe(uint32_t cqn, const snic_cqe &cqe);
    void fail_cq(Cq &cq);
    void fail_qps_of_broken_cqs();
    void fire_cq(Cq &cq);
    void raise_vector(uint32_t vector) { pending_vectors_ |= 1u << vector; }
    void fire_vectors();
    void watch(Qp &qp);
    void unwatch(Qp &qp);
    void poll_watched();

    // --- requester.cc ---
    void schedule(Qp &qp);
    bool run_requester(Qp &qp, unsigned &budget);
    enum class Fetch : uint8_t { begun, nothing, failed };
    Fetch fetch_op(Qp &qp);
    bool read_wqe(const PageMap &ring, uint32_t entries, uint32_t stride, uint32_t index, snic_wqe &wqe);
    snic_wc_status begin_op(Qp &qp, SendOp &op);
    uint32_t reads_outstanding(const Qp &qp) const;
    bool send_segment(Qp &qp, SendOp &op, uint32_t segment);
    bool local_pieces(const snic_wqe &wqe, Mr *const *regions, uint32_t offset, uint32_t len, bool write, Pieces &out);
    snic_wc_status hold_regions(const Qp &qp, const snic_wqe &wqe, uint32_t need, Mr **regions, uint8_t &held,
                                uint32_t &length);
    void drop_regions(Mr **regions, uint8_t &held);
    void complete_send(Qp &qp, SendOp &op, snic_wc_status status);
    void retire_ops(Qp &qp);
    void handle_ack(Qp &qp, uint32_t psn);
    void handle_nak(Qp &qp, const fabric_msg &msg);
    void handle_read_response(Qp &qp, const fabric_msg &msg, std::span<const std::byte> payload);
    void acknowledge_to(Qp &qp, uint32_t psn);
    void ack_timed_out(Qp &qp);
    void go_back(Qp &qp);
    void fail_oldest(Qp &qp, snic_wc_status status, bool peer_stopped);

    // --- responder.cc ---
    void handle_request(Qp &qp, const fabric_msg &msg, std::span<const std::byte> tail);
    bool source_pieces(Qp &qp, const fabric_msg &msg, std::span<const std::byte> tail, Pieces &out);
    fabric_nak begin_receive(Qp &qp, const fabric_msg &msg, snic_wc_status &local);
    fabric_nak place_send(Qp &qp, const fabric_msg &msg, std::span<const std::byte> tail, snic_wc_status &local);
    fabric_nak place_write(Qp &qp, const fabric_msg &msg, std::span<const std::byte> tail);
    enum class ReadResult : uint8_t { done, link_full, refused };
    fabric_msg read_response(const Qp &qp, const fabric_msg &request) const;
    void repeat_read(Qp &qp, const fabric_msg &msg);
    ReadResult answer_read(Qp &qp, const fabric_msg &msg, std::span<const std::byte> tail, fabric_nak &nak);
    void refuse(Qp &qp, uint32_t psn, fabric_nak nak, snic_wc_status local);
    bool send_nak(Qp &qp, uint32_t psn, fabric_nak nak);
    bool run_responder(Qp &qp);
    void complete_recv(Qp &qp, const snic_wqe &wqe, uint32_t index, uint32_t length, uint32_t imm, snic_wc_status status);
    enum class Posted : uint8_t { some, none, broken };
    Posted fetch_recv(Qp &qp, snic_wqe &wqe, uint32_t &index);

    // --- connection.cc ---
    struct CmView {  // a checked copy
        fabric_msg msg;
        fabric_cm cm;
        std::vector<std::byte> private_data;
    };
    bool send_cm(PeerId peer, fabric_type type, uint32_t dst_qpn, uint32_t src_qpn, uint32_t psn, const fabric_cm &cm,
                 std::span<const std::byte> private_data, snic_conn_reason reason);
    void handle_cm(PeerId peer, const fabric_msg &msg, std::span<const std::byte> tail);
    void handle_cm_req(PeerId peer, const CmView &in);
    void handle_cm_rep(PeerId peer, const CmView &in);
    void handle_cm_rej(PeerId peer, const CmView &in);
    void handle_cm_dreq(PeerId peer, const CmView &in);
    void confirm(Qp &qp);
    void connect_failed(Qp &qp, snic_conn_reason reason);
    void drop_request(Request &request);
    void enter_error(Qp &qp, snic_wc_status status, snic_conn_reason reason, bool peer_stopped);
    void leave(Qp &qp);
    void flush(Qp &qp);
    void flush_receives(Qp &qp);
    bool drained(const Qp &qp) const;
    void cm_timer(Qp &qp, uint64_t now);
    void connection_event(Qp &qp, snic_event_type type, snic_conn_reason reason, snic_wc_status status);

    // --- timing.cc ---
    // What the model adds to the time until an acknowledgement: both ways as slow as ours, and one read response of the longest kind.
    uint64_t round_trip() const {
        return 2 * (config_.delay + config_.jitter) + (config_.link_rate ? FABRIC_DIRECT_SEGMENT * 1'000'000'000ull / config_.link_rate : 0);
    }
    bool paced() const { return config_.link_rate || config_.op_cost; }
    bool may_transmit(uint64_t &wait_until);
    void account_transmit(size_t bytes, bool begins_operation);
    void hold_record(PeerId peer, std::span<const std::byte> record);
    bool deliver_held_records();
    void dispatch(PeerId peer, std::span<const std::byte> record);

    // --- nic.cc ---
    void arm_timer(Qp &qp);
    void run_timers();
    std::span<std::byte> start_message(PeerId peer, const fabric_msg &msg, size_t extra);
    void finish_message(PeerId peer, std::span<std::byte> record);

    Host &host_;
    Link &link_;
    Config config_;
    NicCounters counters_;

    // Registers
    uint32_t ctrl_ = 0, error_ = 0, aq_size_ = 0, moderation_us_ = 0;
    uint64_t aq_base_ = 0, acq_base_ = 0;
    uint32_t aq_doorbell_ = 0, aq_next_ = 0;
    uint64_t commands_taken_ = 0;  // since the NIC was made; must not wrap: Config::fail_command counts by it
    bool ready_ = false, link_up_ = false;
    std::vector<Waiter> waiters_;  // bounded by the admin ring

    PageBudget page_budget_;  // before everything that holds a share of it
    HandleTable<Pd> pds_;
    MrTable mrs_;
    HandleTable<Eq> eqs_;
    HandleTable<Cq> cqs_;
    HandleTable<Qp> qps_;
    HandleTable<Listener> listeners_;
    HandleTable<Request> requests_;
    std::vector<bool> doorbell_attached_;
    std::vector<uint32_t> doorbell_users_;
    std::map<std::pair<PeerId, uint64_t>, uint32_t> incoming_;  // connection -> request (pending) or QP (accepted)

    // A QP that a reset dropped while its peer may still be copying to or from our RAM: until the peer has said that it is
    // not (DREP), is gone, or stays silent for too long, the reset is not over (STATUS.RESETTING).
    struct Farewell {
        PeerId peer;
        uint32_t qpn, remote_qpn;
        fabric_cm address;
        uint32_t tries;
        uint64_t next;
    };
    std::vector<Farewell> farewells_;
    void repeat_farewells();

    std::vector<uint32_t> broken_cqs_;  // CQs whose QPs are still to fail
    std::deque<uint32_t> active_;    // QPs with something to do
    size_t blocked_ = 0;             // of them: those that can do nothing before a link has room
    bool link_full_ = false;         // since it was last set to false
    std::vector<uint32_t> watched_;  // QPs whose sq_pi is polled
    bool held_events_ = false;
    uint64_t held_retry_ = 0;
    struct Timer {
        uint64_t when;
        uint32_t qpn;
        bool operator>(const Timer &o) const { return when > o.when; }
    };
    std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;

    // Latency and bandwidth model
    struct HeldRecord {
        uint64_t due;
        PeerId peer;
        std::vector<std::byte> bytes;
    };
    static constexpr size_t kMaxHeldRecords = 65536;
    std::deque<HeldRecord> held_records_;  // on their way to us, oldest first
    uint64_t tx_free_ = 0;                 // when the transmitter has sent what it was given

    uint32_t pending_vectors_ = 0;
    uint64_t vector_next_[SNIC_MAX_VECTORS] = {};
};

// a - b as sequence numbers: negative when a is before b.
inline int32_t seq_diff(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b); }

// v is a power of two in least..most.
inline bool power_of_two(uint32_t v, uint32_t least, uint32_t most) { return v >= least && v <= most && (v & (v - 1)) == 0; }

// The command's body as one of its structures.
template <typename T>
T body_of(const snic_cmd &cmd) {
    static_assert(sizeof(T) == sizeof(cmd.body));
    T t;
    __builtin_memcpy(&t, cmd.body, sizeof t);
    return t;
}
#define SNIC_FIELD(type, member) (offsetof(snic_cmd, body) + offsetof(type, member))

}  // namespace snic
