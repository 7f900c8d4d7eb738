// SPDX-License-Identifier: GPL-2.0-or-later
// Requests from the peer. The owner of memory guards it: whatever the peer asks for is checked here, against our own tables, for
// every segment, and this side moves the data. A refused request has touched nothing.
#include <algorithm>
#include <cstring>

#include "nic.h"

namespace snic {

namespace {
constexpr fabric_nak kGranted = fabric_nak{};
}

void Nic::handle_request(Qp &qp, const fabric_msg &msg, std::span<const std::byte> tail) {
    qp.counters.rx_segments++;
    if (qp.cm == Cm::replied) confirm(qp);

    // Order: sequence first, since a repetition must not be executed again.
    int32_t ahead = seq_diff(msg.psn, qp.epsn);
    if (ahead < 0) {
        qp.counters.duplicate_request++;
        if (msg.type == FABRIC_READ)
            repeat_read(qp, msg);
        else
            qp.ack_owed = true, schedule(qp);
        return;
    }
    if (ahead > 0) {
        qp.counters.out_of_sequence++;
        if (!qp.nak_sent) qp.nak_sent = send_nak(qp, qp.epsn, FABRIC_NAK_SEQUENCE);
        return;
    }
    qp.nak_sent = false;

    fabric_nak nak = kGranted;
    snic_wc_status local = SNIC_WC_REM_INV_REQ_ERR;
    uint32_t most = msg.flags & FABRIC_FLAG_DIRECT ? FABRIC_DIRECT_SEGMENT : FABRIC_PAYLOAD_SEGMENT;
    if (qp.recv.active && msg.type != FABRIC_SEND) {
        nak = FABRIC_NAK_INVALID;  // a message must be whole before the next request
    } else if (msg.length > most) {
        nak = FABRIC_NAK_INVALID;
    } else if (msg.type == FABRIC_SEND) {
        qp.counters.rx_send_requests += msg.flags & FABRIC_FLAG_FIRST ? 1 : 0;
        nak = place_send(qp, msg, tail, local);
        if (nak == FABRIC_NAK_RNR) {
            qp.counters.out_of_buffer++;
            qp.nak_sent = send_nak(qp, qp.epsn, FABRIC_NAK_RNR);
            return;
        }
    } else if (msg.type == FABRIC_WRITE) {
        qp.counters.rx_write_requests++;
        nak = place_write(qp, msg, tail);
    } else {
        qp.counters.rx_read_requests++;
        ReadResult r = qp.reads.empty() ? answer_read(qp, msg, tail, nak) : ReadResult::link_full;
        if (r == ReadResult::link_full) {
            // More than the requester may have outstanding: as if it had been lost.
            if (qp.reads.size() >= config_.max_rd_atomic) return;
            qp.reads.push_back({msg, {tail.begin(), tail.end()}});
            schedule(qp);
        }
    }
    if (nak != kGranted) {
        if (nak == FABRIC_NAK_ACCESS) local = SNIC_WC_REM_ACCESS_ERR, qp.counters.resp_remote_access_errors++;
        return refuse(qp, msg.psn, nak, local);
    }
    qp.epsn++;
    qp.counters.rx_bytes += msg.length;
    if (msg.type != FABRIC_READ && msg.flags & FABRIC_FLAG_ACK_REQ) {
        // Sent by the next step: one for a burst.
        qp.ack_owed = true;
        schedule(qp);
    }
}

// The data of a SEND or WRITE, or the place where a READ's data shall go: inline, or in the peer's RAM. False: malformed.
bool Nic::source_pieces(Qp &qp, const fabric_msg &msg, std::span<const std::byte> tail, Pieces &out) {
    if (!(msg.flags & FABRIC_FLAG_DIRECT)) {
        if (tail.size() != msg.length) return false;
        return out.add(const_cast<std::byte *>(tail.data()), msg.length);
    }
    if (msg.fragments > FABRIC_MAX_FRAGMENTS || tail.size() != msg.fragments * sizeof(fabric_fragment)) return false;
    fabric_fragment fragments[FABRIC_MAX_FRAGMENTS];
    if (!tail.empty()) std::memcpy(fragments, tail.data(), tail.size());  // memcpy from nowhere is undefined even for no bytes
    for (uint32_t i = 0; i < msg.fragments; i++) {
        const fabric_fragment &f = fragments[i];
        if (f.length > msg.length - out.total()) return false;
        std::byte *p = link_.peer_ram(qp.peer, f.ram, f.offset, f.length);
        if (!p || !out.add(p, f.length)) return false;
    }
    return out.total() == msg.length;
}

// --- SEND ------------------------------------------------------------------------------------------------------------------

Nic::Posted Nic::fetch_recv(Qp &qp, snic_wqe &wqe, uint32_t &index) {
    uint32_t pi;
    if (!guest_load(host_, qp.params.record + offsetof(snic_qp_record, rq_pi), pi)) return Posted::broken;
    if (pi == qp.rq_ci) return Posted::none;
    if (pi - qp.rq_ci > qp.params.rq_entries) return Posted::broken;
    if (!read_wqe(qp.rq, qp.params.rq_entries, qp.params.rq_stride, qp.rq_ci, wqe)) return Posted::broken;
    index = qp.rq_ci++;
    guest_store(host_, qp.params.record + offsetof(snic_qp_record, rq_ci), qp.rq_ci);
    return Posted::some;
}

fabric_nak Nic::begin_receive(Qp &qp, const fabric_msg &msg, snic_wc_status &local) {
    if (msg.msg_length > config_.max_msg_size) return FABRIC_NAK_INVALID;
    RecvOp &r = qp.recv;
    switch (fetch_recv(qp, r.wqe, r.index)) {
        case Posted::none: return FABRIC_NAK_RNR;
        case Posted::broken: local = SNIC_WC_LOC_QP_OP_ERR; return FABRIC_NAK_OPERATIONAL;
        case Posted::some: break;
    }
    auto reject = [&](snic_wc_status status, fabric_nak nak) {
        complete_recv(qp, r.wqe, r.index, 0, 0, status);
        local = status;
        return nak;
    };
    if (r.wqe.opcode != SNIC_WR_RECV || r.wqe.num_sge == UINT16_MAX)
        return reject(SNIC_WC_LOC_QP_OP_ERR, FABRIC_NAK_OPERATIONAL);
    snic_wc_status st = hold_regions(qp, r.wqe, SNIC_ACCESS_LOCAL_WRITE, r.regions, r.held, r.capacity);
    if (st != SNIC_WC_SUCCESS) return reject(st, FABRIC_NAK_OPERATIONAL);
    if (msg.msg_length > r.capacity) {
        drop_regions(r.regions, r.held);
        return reject(SNIC_WC_LOC_LEN_ERR, FABRIC_NAK_INVALID);
    }
    r.active = true;
    r.done = 0;
    r.msg_length = msg.msg_length;
    return kGranted;
}

fabric_nak Nic::place_send(Qp &qp, const fabric_msg &msg, std::span<const std::byte> tail, snic_wc_status &local) {
    RecvOp &r = qp.recv;
    bool first = msg.flags & FABRIC_FLAG_FIRST, last = msg.flags & FABRIC_FLAG_LAST;
    if (first == r.active || msg.msg_offset != (first ? 0 : r.done)) return FABRIC_NAK_INVALID;
    if (first) {
        if (fabric_nak nak = begin_receive(qp, msg, local); nak != kGranted) return nak;
    }
    uint32_t left = r.msg_length - r.done;
    if (msg.msg_length != r.msg_length || msg.length > left || last != (msg.length == left)) return FABRIC_NAK_INVALID;
    Pieces from, to;
    if (!source_pieces(qp, msg, tail, from)) return FABRIC_NAK_INVALID;
    if (!local_pieces(r.wqe, r.regions, r.done, msg.length, true, to)) {
        local = SNIC_WC_LOC_PROT_ERR;
        return FABRIC_NAK_OPERATIONAL;
    }
    copy_pieces(to, from);
    r.done += msg.length;
    if (last) {
        r.active = false;
        drop_regions(r.regions, r.held);
        complete_recv(qp, r.wqe, r.index, r.msg_length, msg.imm, SNIC_WC_SUCCESS);
    }
    return kGranted;
}

void Nic::complete_recv(Qp &qp, const snic_wqe &wqe, uint32_t index, uint32_t length, uint32_t imm, snic_wc_status status) {
    if (status == SNIC_WC_WR_FLUSH_ERR) qp.counters.resp_cqe_flush_error++;
    snic_cqe cqe = {};
    cqe.wr_id = wqe.wr_id;
    cqe.byte_len = length;
    cqe.qpn = qp.handle;
    cqe.imm = imm;
    cqe.opcode = SNIC_WR_RECV;
    cqe.status = static_cast<uint8_t>(status);
    cqe.wqe_index = index;
    post_cqe(qp.params.recv_cqn, cqe);
}

// --- RDMA ------------------------------------------------------------------------------------------------------------------

fabric_nak Nic::place_write(Qp &qp, const fabric_msg &msg, std::span<const std::byte> tail) {
    if (!(qp.params.access & SNIC_ACCESS_REMOTE_WRITE)) return FABRIC_NAK_ACCESS;
    Pieces from, to;
    if (!source_pieces(qp, msg, tail, from)) return FABRIC_NAK_INVALID;
    if (msg.length == 0) return kGranted;  // needs no key
    Mr *mr = nullptr;
    if (mrs_.check_remote(msg.rkey, qp.params.pd, qp.handle, msg.remote_va, msg.length, SNIC_ACCESS_REMOTE_WRITE, mr) !=
        MrCheck::ok)
        return FABRIC_NAK_ACCESS;
    if (!guest_pieces(host_, mr->pages, msg.remote_va - mr->va, msg.length, true, to)) return FABRIC_NAK_OPERATIONAL;
    copy_pieces(to, from);
    return kGranted;
}

// The response to an earlier READ may have been lost. What comes inline is fetched again, and the requester takes it once. What we
// put into the requester's RAM ourselves is there already, and must not be put there again: the requester may have had the first
// response, and use the memory for something else by now.
void Nic::repeat_read(Qp &qp, const fabric_msg &msg) {
    bool pending = std::any_of(qp.reads.begin(), qp.reads.end(), [&](const PendingRead &r) { return r.msg.psn == msg.psn; });
    if (pending) return;
    fabric_nak nak = kGranted;
    if (!(msg.flags & FABRIC_FLAG_DIRECT)) {
        answer_read(qp, msg, {}, nak);  // refused or full: the time-out asks again
        return;
    }
    std::span<std::byte> record = start_message(qp.peer, read_response(qp, msg), 0);
    if (!record.empty()) finish_message(qp.peer, record);
}

fabric_msg Nic::read_response(const Qp &qp, const fabric_msg &request) const {
    fabric_msg out = {};
    out.type = FABRIC_READ_RESPONSE;
    out.flags = request.flags & FABRIC_FLAG_DIRECT;
    out.dst_qpn = qp.remote_qpn;
    out.src_qpn = qp.handle;
    out.psn = request.psn;
    out.length = request.length;
    return out;
}

Nic::ReadResult Nic::answer_read(Qp &qp, const fabric_msg &msg, std::span<const std::byte> tail, fabric_nak &nak) {
    auto refused = [&](fabric_nak why) {
        nak = why;
        return ReadResult::refused;
    };
    bool direct = msg.flags & FABRIC_FLAG_DIRECT;
    if (!(qp.params.access & SNIC_ACCESS_REMOTE_READ)) return refused(FABRIC_NAK_ACCESS);
    Pieces from, to;
    if (direct ? !source_pieces(qp, msg, tail, to) : !tail.empty()) return refused(FABRIC_NAK_INVALID);
    Mr *mr = nullptr;
    if (msg.length) {
        if (mrs_.check_remote(msg.rkey, qp.params.pd, qp.handle, msg.remote_va, msg.length, SNIC_ACCESS_REMOTE_READ, mr) !=
            MrCheck::ok)
            return refused(FABRIC_NAK_ACCESS);
        if (!guest_pieces(host_, mr->pages, msg.remote_va - mr->va, msg.length, false, from))
            return refused(FABRIC_NAK_OPERATIONAL);
    }
    uint64_t busy_until;
    if (!may_transmit(busy_until)) {
        qp.pace_until = busy_until;
        arm_timer(qp);
        return ReadResult::link_full;
    }
    std::span<std::byte> record = start_message(qp.peer, read_response(qp, msg), direct ? 0 : msg.length);
    if (record.empty()) return ReadResult::link_full;
    account_transmit(sizeof(fabric_msg) + msg.length, false);
    if (!direct) to.add(record.data() + sizeof(fabric_msg), msg.length);
    copy_pieces(to, from);
    finish_message(qp.peer, record);
    qp.counters.tx_segments++;
    qp.counters.tx_bytes += msg.length;
    return ReadResult::done;
}

// --- answers ---------------------------------------------------------------------------------------------------------------

bool Nic::send_nak(Qp &qp, uint32_t psn, fabric_nak nak) {
    fabric_msg msg = {};
    msg.type = FABRIC_NAK;
    msg.syndrome = static_cast<uint8_t>(nak);
    msg.dst_qpn = qp.remote_qpn;
    msg.src_qpn = qp.handle;
    msg.psn = psn;
    std::span<std::byte> record = start_message(qp.peer, msg, 0);
    if (record.empty()) return false;
    finish_message(qp.peer, record);
    return true;
}

void Nic::refuse(Qp &qp, uint32_t psn, fabric_nak nak, snic_wc_status local) {
    send_nak(qp, psn, nak);
    qp.refused = nak;
    qp.refused_psn = psn;
    enter_error(qp, local, SNIC_REASON_NONE, false);
}

// Pays what is owed to the peer. True: the link is full, try again.
bool Nic::run_responder(Qp &qp) {
    while (!qp.reads.empty()) {
        PendingRead &r = qp.reads.front();
        fabric_nak nak = kGranted;
        ReadResult result = answer_read(qp, r.msg, r.tail, nak);
        if (result == ReadResult::link_full) return qp.pace_until == 0;  // else a timer brings us back
        if (result == ReadResult::refused) {
            if (nak == FABRIC_NAK_ACCESS) qp.counters.resp_remote_access_errors++;
            refuse(qp, r.msg.psn, nak, nak == FABRIC_NAK_ACCESS ? SNIC_WC_REM_ACCESS_ERR : SNIC_WC_REM_OP_ERR);
            return false;
        }
        qp.reads.pop_front();
    }
    if (!qp.ack_owed) return false;
    fabric_msg msg = {};
    msg.type = FABRIC_ACK;
    msg.dst_qpn = qp.remote_qpn;
    msg.src_qpn = qp.handle;
    msg.psn = qp.epsn - 1;
    std::span<std::byte> record = start_message(qp.peer, msg, 0);
    if (record.empty()) return true;
    finish_message(qp.peer, record);
    qp.ack_owed = false;
    return false;
}

}  // namespace snic
