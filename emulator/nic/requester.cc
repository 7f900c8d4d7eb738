// SPDX-License-Identifier: GPL-2.0-or-later
// The sending side of a QP: WQEs become operations, operations become numbered segments, acknowledgements complete them in order.
// Loss of any kind is answered by going back to the oldest segment that is not acknowledged.
#include <algorithm>
#include <cstring>

#include "nic.h"

namespace snic {

namespace {

// Up to this size a SEND or WRITE travels inline even where the peer could fetch it: cheaper than looking the fragments up.
constexpr uint32_t kInlineBytes = 512;
constexpr uint32_t kAckEvery = 16;  // segments

}  // namespace

void Nic::schedule(Qp &qp) {
    if (qp.scheduled) return;
    qp.scheduled = true;
    active_.push_back(qp.handle);
}

// Returns true when the QP has more to do at once.
bool Nic::run_requester(Qp &qp, unsigned &budget) {
    if (qp.state != SNIC_QP_RTS) return false;
    bool blocked = run_responder(qp);
    while (budget > 0 && qp.state == SNIC_QP_RTS && !qp.rnr_until) {
        if (qp.send_psn == qp.next_psn) {
            Fetch f = fetch_op(qp);
            if (f == Fetch::nothing) return blocked;
            if (f == Fetch::failed) return false;
            budget--;
            continue;
        }
        if (qp.send_psn - qp.una_psn >= config_.window_segments) return blocked;
        auto op = std::find_if(qp.ops.rbegin(), qp.ops.rend(),
                               [&](const SendOp &o) { return o.segments && seq_diff(qp.send_psn, o.first_psn) >= 0; });
        if (op == qp.ops.rend()) return blocked;
        if (op->is_read() && reads_outstanding(qp) >= config_.max_rd_atomic) return blocked;
        uint64_t busy_until;
        if (!may_transmit(busy_until)) {
            qp.pace_until = busy_until;
            arm_timer(qp);
            return blocked;
        }
        uint32_t segment = qp.send_psn - op->first_psn;
        if (!send_segment(qp, *op, segment)) return true;  // the link is full
        account_transmit(sizeof(fabric_msg) + (op->is_read() ? 0 : std::min(op->segment_size, op->length - segment * op->segment_size)),
                         segment == 0);
        if (op->status != SNIC_WC_SUCCESS) {  // failed just now: what was numbered beyond here will never be sent
            retire_ops(qp);
            return false;
        }
        budget--;
        if (seq_diff(qp.send_psn, qp.max_sent_psn) < 0) {
            qp.counters.retransmits++;
        } else {
            qp.max_sent_psn = qp.send_psn + 1;
        }
        qp.send_psn++;
        if (!qp.ack_due) {
            qp.ack_due = std::max(host_.now_ns(), tx_free_) + round_trip() + config_.ack_timeout;
            arm_timer(qp);
        }
    }
    return qp.state == SNIC_QP_RTS && (blocked || !qp.rnr_until);
}

uint32_t Nic::reads_outstanding(const Qp &qp) const {
    uint32_t n = 0;
    for (const SendOp &op : qp.ops) {
        if (seq_diff(op.first_psn, qp.send_psn) >= 0) break;
        if (!op.is_read() || !op.segments) continue;
        uint32_t sent = seq_diff(op.end_psn(), qp.send_psn) < 0 ? op.segments : qp.send_psn - op.first_psn;
        n += sent > op.answered ? sent - op.answered : 0;
    }
    return n;
}

bool Nic::read_wqe(const PageMap &ring, uint32_t entries, uint32_t stride, uint32_t index, snic_wqe &wqe) {
    uint64_t at = uint64_t{index & (entries - 1)} * stride;
    if (!guest_read(host_, ring, at, &wqe, SNIC_WQE_HEADER_SIZE)) return false;
    uint32_t room = std::min<uint32_t>((stride - SNIC_WQE_HEADER_SIZE) / sizeof(snic_sge), SNIC_MAX_SGE);
    if (wqe.num_sge > room) {
        wqe.num_sge = UINT16_MAX;  // the caller refuses it
        return true;
    }
    return guest_read(host_, ring, at + SNIC_WQE_HEADER_SIZE, wqe.sge, wqe.num_sge * sizeof(snic_sge));
}

Nic::Fetch Nic::fetch_op(Qp &qp) {
    if (qp.stalled || qp.ops.size() >= config_.window_ops) return Fetch::nothing;
    uint32_t pi;
    if (!guest_load(host_, qp.params.record + offsetof(snic_qp_record, sq_pi), pi) || pi - qp.sq_done > qp.params.sq_entries) {
        enter_error(qp, SNIC_WC_LOC_QP_OP_ERR, SNIC_REASON_NONE, false);
        return Fetch::failed;
    }
    if (pi == qp.sq_ci) return Fetch::nothing;
    SendOp op;
    op.index = qp.sq_ci;
    if (!read_wqe(qp.sq, qp.params.sq_entries, qp.params.sq_stride, qp.sq_ci, op.wqe)) {
        enter_error(qp, SNIC_WC_LOC_QP_OP_ERR, SNIC_REASON_NONE, false);
        return Fetch::failed;
    }
    if (op.wqe.flags & SNIC_WQE_FENCE && std::any_of(qp.ops.begin(), qp.ops.end(), [](const SendOp &o) { return o.is_read(); }))
        return Fetch::nothing;
    op.status = begin_op(qp, op);
    if (op.status != SNIC_WC_SUCCESS) qp.stalled = true;
    op.first_psn = qp.next_psn;
    qp.next_psn += op.segments;
    qp.sq_ci++;
    qp.ops.push_back(op);
    if (op.status != SNIC_WC_SUCCESS) retire_ops(qp);
    return qp.state == SNIC_QP_RTS ? Fetch::begun : Fetch::failed;
}

snic_wc_status Nic::hold_regions(const Qp &qp, const snic_wqe &wqe, uint32_t need, Mr **regions, uint8_t &held,
                                 uint32_t &length) {
    uint64_t total = 0;
    held = 0;
    for (uint32_t i = 0; i < wqe.num_sge; i++) {
        const snic_sge &sge = wqe.sge[i];
        Mr *mr = nullptr;
        if (sge.length && mrs_.check_local(sge.key, qp.params.pd, sge.va, sge.length, need, mr) != MrCheck::ok) {
            drop_regions(regions, held);
            return SNIC_WC_LOC_PROT_ERR;
        }
        if (mr) mr->uses++;
        regions[held++] = mr;
        total += sge.length;
    }
    if (total > config_.max_msg_size) {
        drop_regions(regions, held);
        return SNIC_WC_LOC_LEN_ERR;
    }
    length = static_cast<uint32_t>(total);
    return SNIC_WC_SUCCESS;
}

void Nic::drop_regions(Mr **regions, uint8_t &held) {
    for (uint8_t i = 0; i < held; i++)
        if (regions[i]) regions[i]->uses--;
    held = 0;
}

snic_wc_status Nic::begin_op(Qp &qp, SendOp &op) {
    const snic_wqe &w = op.wqe;
    bool known = w.opcode == SNIC_WR_SEND || w.opcode == SNIC_WR_RDMA_WRITE || w.opcode == SNIC_WR_RDMA_READ;
    if (!known || w.num_sge == UINT16_MAX || w.flags & ~(SNIC_WQE_SIGNALED | SNIC_WQE_FENCE | SNIC_WQE_SOLICITED))
        return SNIC_WC_LOC_QP_OP_ERR;
    uint32_t need = op.is_read() ? SNIC_ACCESS_LOCAL_WRITE : SNIC_ACCESS_LOCAL_READ;
    if (snic_wc_status st = hold_regions(qp, w, need, op.regions, op.held, op.length); st != SNIC_WC_SUCCESS) return st;

    op.direct = link_.direct(qp.peer) && (op.is_read() || op.length > kInlineBytes);
    // All RAM is shared, or none: the first byte of each element tells.
    for (uint32_t i = 0; op.direct && i < w.num_sge; i++) {
        if (!op.regions[i]) continue;
        size_t n = 1;
        std::byte *p = host_.map(op.regions[i]->pages.find(w.sge[i].va - op.regions[i]->va).addr, n, op.is_read());
        op.direct = p && host_.ram_ref(p, n).shared;
    }
    op.segment_size = op.direct ? config_.direct_segment : config_.payload_segment;
    op.segments = op.length ? (op.length + op.segment_size - 1) / op.segment_size : 1;
    return SNIC_WC_SUCCESS;
}

// Host memory of bytes [offset, offset + len) of the work request's data. The regions are held, so no check can fail any more.
bool Nic::local_pieces(const snic_wqe &wqe, Mr *const *regions, uint32_t offset, uint32_t len, bool write, Pieces &out) {
    for (uint32_t i = 0; i < wqe.num_sge && len; i++) {
        const snic_sge &sge = wqe.sge[i];
        if (offset >= sge.length) {
            offset -= sge.length;
            continue;
        }
        uint32_t n = std::min(len, sge.length - offset);
        if (!guest_pieces(host_, regions[i]->pages, sge.va - regions[i]->va + offset, n, write, out)) return false;
        offset = 0;
        len -= n;
    }
    return len == 0;
}

// False: the link is full. A local failure marks the operation instead (op.status).
bool Nic::send_segment(Qp &qp, SendOp &op, uint32_t segment) {
    uint32_t offset = segment * op.segment_size;
    uint32_t len = std::min(op.segment_size, op.length - offset);
    fabric_msg msg = {};
    msg.type = op.is_read() ? FABRIC_READ : op.wqe.opcode == SNIC_WR_SEND ? FABRIC_SEND : FABRIC_WRITE;
    msg.flags = static_cast<uint8_t>((segment == 0 ? FABRIC_FLAG_FIRST : 0) |
                                     (segment + 1 == op.segments ? FABRIC_FLAG_LAST | FABRIC_FLAG_ACK_REQ : 0) |
                                     (paced() || segment % kAckEvery == kAckEvery - 1 ? FABRIC_FLAG_ACK_REQ : 0) |
                                     (op.direct ? FABRIC_FLAG_DIRECT : 0) |
                                     (op.wqe.flags & SNIC_WQE_SOLICITED ? FABRIC_FLAG_SOLICITED : 0));
    msg.dst_qpn = qp.remote_qpn;
    msg.src_qpn = qp.handle;
    msg.psn = qp.send_psn;
    msg.length = len;
    msg.remote_va = op.wqe.remote_va + offset;
    msg.rkey = op.wqe.rkey;
    msg.msg_length = op.length;
    msg.msg_offset = offset;
    msg.imm = op.wqe.imm;

    // What belongs to this segment never changes; so a repetition needs no memory of the first time.
    auto fail = [&] {
        op.status = SNIC_WC_LOC_PROT_ERR;
        op.segments = segment;
        qp.next_psn = qp.send_psn;
        qp.stalled = true;
        for (SendOp &later : qp.ops) {
            if (seq_diff(later.first_psn, op.first_psn) <= 0) continue;
            later.segments = 0;
            later.status = SNIC_WC_WR_FLUSH_ERR;
        }
        return true;
    };
    Pieces local;
    bool carries = !op.is_read() || op.direct;
    if (carries && !local_pieces(op.wqe, op.regions, offset, len, op.is_read(), local)) return fail();

    if (op.direct) {
        fabric_fragment fragments[FABRIC_MAX_FRAGMENTS];
        uint32_t n = 0;
        for (const Piece &p : local) {
            RamRef ref = host_.ram_ref(p.at, p.len);
            if (!ref.shared || n == FABRIC_MAX_FRAGMENTS) return fail();
            fragments[n++] = {ref.offset, static_cast<uint32_t>(p.len), ref.ram, 0};
        }
        msg.fragments = static_cast<uint8_t>(n);
        std::span<std::byte> record = start_message(qp.peer, msg, n * sizeof(fabric_fragment));
        if (record.empty()) return false;
        std::memcpy(record.data() + sizeof msg, fragments, n * sizeof(fabric_fragment));
        finish_message(qp.peer, record);
    } else {
        std::span<std::byte> record = start_message(qp.peer, msg, local.total());
        if (record.empty()) return false;
        Pieces to;
        to.add(record.data() + sizeof msg, local.total());
        copy_pieces(to, local);
        finish_message(qp.peer, record);
    }
    qp.counters.tx_segments++;
    qp.counters.tx_bytes += len;
    return true;
}

// --- what comes back -------------------------------------------------------------------------------------------------------

void Nic::acknowledge_to(Qp &qp, uint32_t psn) {
    // An acknowledgement does not stand in for a read's response: stop before the first one that is missing.
    for (const SendOp &op : qp.ops) {
        if (op.segments == 0 || seq_diff(psn, op.first_psn) <= 0) continue;
        if (op.is_read() && op.answered < op.segments && seq_diff(psn, op.first_psn + op.answered) > 0) {
            psn = op.first_psn + op.answered;
            break;
        }
    }
    if (seq_diff(psn, qp.una_psn) <= 0) return;
    qp.una_psn = psn;
    if (seq_diff(qp.send_psn, psn) < 0) qp.send_psn = psn;
    qp.retries = qp.rnr_retries = 0;
    qp.ack_due = qp.una_psn == qp.max_sent_psn ? 0 : std::max(host_.now_ns(), tx_free_) + round_trip() + config_.ack_timeout;
    arm_timer(qp);
    retire_ops(qp);
    schedule(qp);
}

void Nic::handle_ack(Qp &qp, uint32_t psn) {
    if (seq_diff(psn, qp.una_psn) < 0 || seq_diff(psn, qp.max_sent_psn) >= 0) return;
    acknowledge_to(qp, psn + 1);
}

void Nic::handle_nak(Qp &qp, const fabric_msg &msg) {
    if (seq_diff(msg.psn, qp.una_psn) < 0 || seq_diff(msg.psn, qp.max_sent_psn) >= 0) return;
    acknowledge_to(qp, msg.psn);
    if (qp.state != SNIC_QP_RTS) return;
    switch (msg.syndrome) {
        case FABRIC_NAK_SEQUENCE:
            qp.counters.packet_seq_err++;
            go_back(qp);
            return;
        case FABRIC_NAK_RNR:
            qp.counters.rnr_nak_retry_err++;
            if (qp.params.rnr_retry != 7 && qp.rnr_retries >= qp.params.rnr_retry) {
                fail_oldest(qp, SNIC_WC_RNR_RETRY_EXC_ERR, false);
                return;
            }
            qp.rnr_until = host_.now_ns() + (config_.rnr_delay << std::min(qp.rnr_retries, 4u));
            qp.rnr_retries++;
            qp.send_psn = qp.una_psn;
            qp.ack_due = 0;
            arm_timer(qp);
            return;
        default: break;
    }
    snic_wc_status status = msg.syndrome == FABRIC_NAK_INVALID  ? SNIC_WC_REM_INV_REQ_ERR
                            : msg.syndrome == FABRIC_NAK_ACCESS ? SNIC_WC_REM_ACCESS_ERR
                                                                : SNIC_WC_REM_OP_ERR;
    if (status == SNIC_WC_REM_ACCESS_ERR) qp.counters.req_remote_access_errors++;
    for (SendOp &op : qp.ops)
        if (op.segments && seq_diff(msg.psn, op.first_psn) >= 0 && seq_diff(msg.psn, op.end_psn()) < 0) op.status = status;
    enter_error(qp, status, SNIC_REASON_NONE, true);
}

void Nic::handle_read_response(Qp &qp, const fabric_msg &msg, std::span<const std::byte> payload) {
    auto op = std::find_if(qp.ops.begin(), qp.ops.end(), [](const SendOp &o) { return o.is_read() && o.answered < o.segments; });
    if (op == qp.ops.end()) return;
    uint32_t segment = op->answered;
    // Only the one that is next in line: anything else is a repetition, or follows one that was lost.
    if (msg.psn != op->first_psn + segment || seq_diff(msg.psn, qp.max_sent_psn) >= 0) return;
    uint32_t offset = segment * op->segment_size;
    uint32_t len = std::min(op->segment_size, op->length - offset);
    bool direct = msg.flags & FABRIC_FLAG_DIRECT;
    if (direct != op->direct || msg.length != len || payload.size() != (direct ? 0 : len)) {
        counters_.bad_records++;
        return;
    }
    if (!direct) {
        Pieces to, from;
        from.add(const_cast<std::byte *>(payload.data()), len);
        if (!local_pieces(op->wqe, op->regions, offset, len, true, to)) {
            op->status = SNIC_WC_LOC_PROT_ERR;
            enter_error(qp, SNIC_WC_LOC_PROT_ERR, SNIC_REASON_NONE, false);
            return;
        }
        copy_pieces(to, from);
    }
    qp.counters.rx_bytes += len;
    op->answered++;
    acknowledge_to(qp, msg.psn + 1);
}

// Completes what is done, oldest first.
void Nic::retire_ops(Qp &qp) {
    while (!qp.ops.empty() && qp.state == SNIC_QP_RTS) {
        SendOp &op = qp.ops.front();
        if (op.segments && seq_diff(qp.una_psn, op.end_psn()) < 0) return;
        if (op.status != SNIC_WC_SUCCESS) {
            enter_error(qp, op.status, SNIC_REASON_NONE, false);
            return;
        }
        complete_send(qp, op, SNIC_WC_SUCCESS);
        qp.ops.pop_front();
    }
}

void Nic::complete_send(Qp &qp, SendOp &op, snic_wc_status status) {
    // The memory is given back before anybody is told.
    drop_regions(op.regions, op.held);
    qp.sq_done = op.index + 1;
    guest_store(host_, qp.params.record + offsetof(snic_qp_record, sq_ci), qp.sq_done);
    if (status == SNIC_WC_WR_FLUSH_ERR) qp.counters.req_cqe_flush_error++;
    if (status == SNIC_WC_SUCCESS && !(op.wqe.flags & SNIC_WQE_SIGNALED)) return;
    snic_cqe cqe = {};
    cqe.wr_id = op.wqe.wr_id;
    cqe.byte_len = status == SNIC_WC_SUCCESS ? op.length : 0;
    cqe.qpn = qp.handle;
    cqe.opcode = op.wqe.opcode;
    cqe.status = static_cast<uint8_t>(status);
    cqe.wqe_index = op.index;
    post_cqe(qp.params.send_cqn, cqe);
}

void Nic::go_back(Qp &qp) {
    qp.send_psn = qp.una_psn;
    qp.ack_due = 0;  // set again by the first segment
    schedule(qp);
}

void Nic::ack_timed_out(Qp &qp) {
    qp.ack_due = 0;
    if (qp.state != SNIC_QP_RTS || qp.una_psn == qp.max_sent_psn || qp.rnr_until) return;
    qp.counters.local_ack_timeout_err++;
    if (qp.retries >= qp.params.retry_count) {
        fail_oldest(qp, SNIC_WC_RETRY_EXC_ERR, false);
        return;
    }
    qp.retries++;
    go_back(qp);
    qp.ack_due = host_.now_ns() + round_trip() + (config_.ack_timeout << std::min(qp.retries, 3u));
    arm_timer(qp);
}

void Nic::fail_oldest(Qp &qp, snic_wc_status status, bool peer_stopped) {
    if (!qp.ops.empty() && qp.ops.front().status == SNIC_WC_SUCCESS) qp.ops.front().status = status;
    enter_error(qp, status, peer_stopped ? SNIC_REASON_LINK_DOWN : SNIC_REASON_NONE, peer_stopped);
}

}  // namespace snic
