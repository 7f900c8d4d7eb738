// SPDX-License-Identifier: GPL-2.0-or-later
#include "nic.h"

#include <algorithm>
#include <cstring>

#include "crc32c.h"

namespace snic {

Nic::Nic(Host &host, Link &link, const Config &config)
    : host_(host),
      link_(link),
      config_(config),
      page_budget_(config.max_pages),
      pds_(config.max_pd),
      mrs_(host, config.max_mr),
      eqs_(config.max_eq),
      cqs_(config.max_cq),
      qps_(config.max_qp),
      listeners_(config.max_listen),
      requests_(config.max_requests),
      doorbell_attached_(config.doorbell_pages),
      doorbell_users_(config.doorbell_pages) {
    if (!doorbell_attached_.empty()) doorbell_attached_[0] = true;
}

bool Nic::step(unsigned budget) {
    bool more = deliver_held_records();
    if (ready_) {
        more |= run_commands(budget);
        poll_watched();
        // One round over the QPs that are active now; each may queue itself again.
        blocked_ = 0;
        for (size_t n = active_.size(); n > 0 && budget > 0 && !active_.empty(); n--) {
            Qp *qp = qps_.find(active_.front());
            active_.pop_front();
            if (!qp) continue;
            qp->scheduled = false;
            link_full_ = false;
            unsigned before = budget;
            if (!run_requester(*qp, budget)) continue;
            schedule(*qp);
            blocked_ += link_full_ && budget == before;
        }
        run_timers();
        if (!broken_cqs_.empty()) fail_qps_of_broken_cqs();
        if (!waiters_.empty()) run_waiters();
        drain_held_events();
    }
    if (!farewells_.empty()) repeat_farewells();
    fire_vectors();
    return more || active_.size() > blocked_;
}

uint64_t Nic::deadline() const {
    uint64_t when = timers_.empty() ? kNever : timers_.top().when;
    if (!held_records_.empty()) when = std::min(when, held_records_.front().due);
    if (held_events_) when = std::min(when, held_retry_);
    for (const Farewell &f : farewells_) when = std::min(when, f.next);
    for (uint32_t v = 0; pending_vectors_ >> v; v++)
        if (pending_vectors_ >> v & 1) when = std::min(when, vector_next_[v]);
    return when;
}

// One entry for each QP is enough: when it fires, every reason is looked at again and the next entry is made.
void Nic::arm_timer(Qp &qp) {
    uint64_t when = kNever;
    for (uint64_t reason : {qp.rnr_until, qp.ack_due, qp.cm_next, qp.pace_until})
        if (reason) when = std::min(when, reason);
    if (when == kNever || (qp.timer_at && qp.timer_at <= when)) return;
    qp.timer_at = when;
    timers_.push({when, qp.handle});
}

void Nic::run_timers() {
    if (timers_.empty()) return;
    uint64_t now = host_.now_ns();
    while (!timers_.empty() && timers_.top().when <= now) {
        Timer timer = timers_.top();
        timers_.pop();
        Qp *qp = qps_.find(timer.qpn);
        if (!qp || qp->timer_at != timer.when) continue;
        qp->timer_at = 0;
        if (qp->rnr_until && now >= qp->rnr_until) {
            qp->rnr_until = 0;
            schedule(*qp);
        }
        if (qp->pace_until && now >= qp->pace_until) {
            qp->pace_until = 0;
            schedule(*qp);
        }
        if (qp->ack_due && now >= qp->ack_due) ack_timed_out(*qp);
        if (qp->cm_next && now >= qp->cm_next) cm_timer(*qp, now);
        arm_timer(*qp);
    }
}

void Nic::set_link(bool up) {
    if (up == link_up_) return;
    link_up_ = up;
    eqs_.each([&](Eq &eq) {
        snic_eqe e = {};
        e.type = SNIC_EV_LINK;
        e.handle = up;
        post_event(eq.handle, e);
    });
}

void Nic::peer_down(PeerId peer) {
    std::erase_if(farewells_, [&](const Farewell &f) { return f.peer == peer; });
    std::vector<Qp *> hit;
    qps_.each([&](Qp &qp) {
        if (qp.peer == peer) hit.push_back(&qp);
    });
    for (Qp *qp : hit) {
        switch (qp->cm) {
            case Cm::requested: connect_failed(*qp, SNIC_REASON_LINK_DOWN); break;
            case Cm::leaving:
                qp->cm = Cm::gone;
                flush(*qp);
                break;
            case Cm::replied:
            case Cm::established:
                if (!qp->ops.empty())
                    fail_oldest(*qp, SNIC_WC_RETRY_EXC_ERR, true);
                else
                    enter_error(*qp, SNIC_WC_RETRY_EXC_ERR, SNIC_REASON_LINK_DOWN, true);
                break;
            case Cm::idle:
            case Cm::gone: break;
        }
        qp->peer = kNoPeer;
    }
    std::vector<uint32_t> gone;
    requests_.each([&](Request &r) {
        if (r.peer == peer && r.listener) gone.push_back(r.handle);
    });
    std::erase_if(held_records_, [&](const HeldRecord &r) { return r.peer == peer; });
    for (uint32_t handle : gone)
        if (Request *r = requests_.find(handle)) drop_request(*r);
    for (auto it = incoming_.begin(); it != incoming_.end();)
        it = it->first.first == peer ? incoming_.erase(it) : std::next(it);
}

void Nic::reset() {
    // The peers learn at once. Those that have direct requests of ours, which name our RAM, must answer (farewells_).
    std::vector<Qp *> all;
    qps_.each([&](Qp &qp) { all.push_back(&qp); });
    for (Qp *qp : all) {
        if (qp->peer != kNoPeer && (qp->cm == Cm::established || qp->cm == Cm::replied))
            send_cm(qp->peer, FABRIC_CM_DREQ, qp->remote_qpn, qp->handle, 0, qp->address, {}, SNIC_REASON_PEER_CLOSED);
        bool exposed = std::any_of(qp->ops.begin(), qp->ops.end(), [](SendOp &op) { return op.direct && op.segments; });
        if (exposed && (qp->cm == Cm::established || qp->cm == Cm::replied || qp->cm == Cm::leaving))
            farewells_.push_back({qp->peer, qp->handle, qp->remote_qpn, qp->address, 0,
                                  host_.now_ns() + config_.cm_retransmit});
        drop_regions(qp->recv.regions, qp->recv.held);
        for (SendOp &op : qp->ops) drop_regions(op.regions, op.held);
    }
    ready_ = false;
    ctrl_ = error_ = aq_size_ = moderation_us_ = 0;
    aq_base_ = acq_base_ = 0;
    aq_doorbell_ = aq_next_ = 0;
    waiters_.clear();
    qps_.clear();
    cqs_.clear();
    eqs_.clear();
    pds_.clear();
    listeners_.clear();
    requests_.clear();
    incoming_.clear();
    std::vector<Mr *> regions;
    mrs_.each([&](Mr &mr) { regions.push_back(&mr); });
    for (Mr *mr : regions) mrs_.destroy(*mr);
    std::fill(doorbell_attached_.begin(), doorbell_attached_.end(), false);
    std::fill(doorbell_users_.begin(), doorbell_users_.end(), 0);
    if (!doorbell_attached_.empty()) doorbell_attached_[0] = true;
    broken_cqs_.clear();
    active_.clear();
    blocked_ = 0;
    watched_.clear();
    timers_ = {};
    held_records_.clear();
    tx_free_ = 0;
    held_events_ = false;
    pending_vectors_ = 0;
}

// The DREQ may have been lost.
void Nic::repeat_farewells() {
    uint64_t now = host_.now_ns();
    for (Farewell &f : farewells_) {
        if (now < f.next || f.tries++ >= config_.cm_disconnect_tries) continue;
        f.next = now + config_.cm_retransmit;
        send_cm(f.peer, FABRIC_CM_DREQ, f.remote_qpn, f.qpn, 0, f.address, {}, SNIC_REASON_PEER_CLOSED);
    }
    std::erase_if(farewells_, [&](const Farewell &f) { return f.tries > config_.cm_disconnect_tries; });
}

// --- records -------------------------------------------------------------------------------------------------------------

// Reserves a record and writes its header; the caller fills `extra` bytes behind it and calls finish_message.
std::span<std::byte> Nic::start_message(PeerId peer, const fabric_msg &msg, size_t extra) {
    size_t size = sizeof msg + extra;
    std::span<std::byte> record = link_.reserve(peer, size);
    if (record.size() < size) {
        link_full_ = true;
        return {};
    }
    record = record.first(size);
    fabric_msg out = msg;
    out.size = static_cast<uint32_t>(size);
    std::memcpy(record.data(), &out, sizeof out);
    return record;
}

void Nic::finish_message(PeerId peer, std::span<std::byte> record) {
    if (link_.checksum(peer)) {
        uint32_t crc = crc32c(record, offsetof(fabric_msg, crc));
        std::memcpy(record.data() + offsetof(fabric_msg, crc), &crc, sizeof crc);
    }
    link_.commit(peer);
}

void Nic::receive(PeerId peer, std::span<const std::byte> record) {
    if (config_.delay || config_.jitter) return hold_record(peer, record);
    dispatch(peer, record);
}

void Nic::dispatch(PeerId peer, std::span<const std::byte> record) {
    fabric_msg msg;
    if (!ready_ && farewells_.empty()) return;
    if (record.size() < sizeof msg) {
        counters_.bad_records++;
        return;
    }
    std::memcpy(&msg, record.data(), sizeof msg);
    if (msg.size != record.size() || (msg.crc && crc32c(record, offsetof(fabric_msg, crc)) != msg.crc)) {
        counters_.bad_records++;
        return;
    }
    if (!ready_ && msg.type != FABRIC_CM_DREP) return;  // all that a reset still waits for
    std::span<const std::byte> tail = record.subspan(sizeof msg);
    if (msg.type >= FABRIC_CM_REQ && msg.type <= FABRIC_CM_DREP) return handle_cm(peer, msg, tail);

    Qp *qp = qps_.find(msg.dst_qpn);
    bool ours = qp && qp->peer == peer && qp->remote_qpn == msg.src_qpn && qp->state == SNIC_QP_RTS;
    if (!ours) {
        counters_.stale_records++;
        return;
    }
    switch (msg.type) {
        case FABRIC_SEND:
        case FABRIC_WRITE:
        case FABRIC_READ: handle_request(*qp, msg, tail); break;
        case FABRIC_READ_RESPONSE: handle_read_response(*qp, msg, tail); break;
        case FABRIC_ACK: handle_ack(*qp, msg.psn); break;
        case FABRIC_NAK: handle_nak(*qp, msg); break;
        default: counters_.bad_records++; break;
    }
}

fabric_counters Nic::fabric_totals() {
    fabric_counters t = {};
    qps_.each([&](Qp &qp) {
        t.tx_bytes += qp.counters.tx_bytes;
        t.rx_bytes += qp.counters.rx_bytes;
        t.tx_segments += qp.counters.tx_segments;
        t.rx_segments += qp.counters.rx_segments;
        t.retransmits += qp.counters.retransmits;
        t.rnr_naks += qp.counters.out_of_buffer;
    });
    t.qps = qps_.count();
    t.mrs = mrs_.count();
    return t;
}

}  // namespace snic
