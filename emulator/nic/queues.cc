// SPDX-License-Identifier: GPL-2.0-or-later
#include <algorithm>
#include <atomic>

#include "nic.h"

namespace snic {

// --- event queues ------------------------------------------------------------------------------------------------------

bool Nic::write_eqe(Eq &eq, const snic_eqe &eqe) {
    if (eq.pi - eq.ci >= eq.entries) {
        uint32_t ci;
        if (!guest_load(host_, eq.record, ci)) {
            fatal(SNIC_FATAL_EQ_DMA);
            return true;
        }
        // A consumer index outside [ci, pi] is the guest's mistake: believe the old one.
        if (eq.pi - ci <= eq.entries) eq.ci = ci;
        if (eq.pi - eq.ci >= eq.entries) return false;
    }
    uint64_t at = uint64_t{eq.pi & (eq.entries - 1)} * sizeof(snic_eqe);
    bool ok = guest_write(host_, eq.ring, at, &eqe, offsetof(snic_eqe, phase)) &&
              guest_store(host_, eq.ring, at + offsetof(snic_eqe, phase), eq.pi / eq.entries + 1);
    if (!ok) {
        fatal(SNIC_FATAL_EQ_DMA);
        return true;
    }
    eq.pi++;
    counters_.events++;
    raise_vector(eq.vector);
    return true;
}

void Nic::post_event(uint32_t eqn, snic_eqe eqe) {
    Eq *eq = eqs_.find(eqn);
    if (!eq) return;
    if (eq->held.empty() && write_eqe(*eq, eqe)) return;
    if (eq->held.size() >= kMaxHeldEvents) {
        counters_.events_lost++;
        return;
    }
    eq->held.push_back(eqe);
    if (!held_events_) held_retry_ = host_.now_ns() + 1'000'000;
    held_events_ = true;
}

void Nic::drain_held_events() {
    if (!held_events_ || host_.now_ns() < held_retry_) return;
    held_events_ = false;
    eqs_.each([&](Eq &eq) {
        while (!eq.held.empty() && write_eqe(eq, eq.held.front())) eq.held.pop_front();
        held_events_ |= !eq.held.empty();
    });
    held_retry_ = host_.now_ns() + 1'000'000;
}

void Nic::fire_vectors() {
    if (!pending_vectors_) return;
    uint64_t now = moderation_us_ ? host_.now_ns() : 0;
    for (uint32_t v = 0; v < config_.vectors; v++) {
        if (!(pending_vectors_ >> v & 1)) continue;
        if (moderation_us_) {
            if (now < vector_next_[v]) continue;  // deadline() brings us back
            vector_next_[v] = now + moderation_us_ * 1000ull;
        }
        pending_vectors_ &= ~(1u << v);
        counters_.interrupts++;
        host_.interrupt(v);
    }
}

// --- completion queues ---------------------------------------------------------------------------------------------------

void Nic::fire_cq(Cq &cq) {
    cq.armed = false;
    if (!cq.eqn) return;
    snic_eqe e = {};
    e.type = SNIC_EV_CQ;
    e.handle = cq.handle;
    e.cookie = cq.cookie;
    post_event(cq.eqn, e);
}

void Nic::fail_cq(Cq &cq) {
    if (cq.failed) return;
    cq.failed = true;
    snic_eqe e = {};
    e.type = SNIC_EV_CQ_ERROR;
    e.handle = cq.handle;
    e.cookie = cq.cookie;
    if (cq.eqn) post_event(cq.eqn, e);
    broken_cqs_.push_back(cq.handle);
}

// The QPs of CQs that have failed. Not done where the CQ fails: that is in the middle of completing something of such a QP.
void Nic::fail_qps_of_broken_cqs() {
    while (!broken_cqs_.empty()) {
        uint32_t cqn = broken_cqs_.back();
        broken_cqs_.pop_back();
        std::vector<Qp *> victims;
        qps_.each([&](Qp &qp) {
            if (qp.state != SNIC_QP_ERROR && (qp.params.send_cqn == cqn || qp.params.recv_cqn == cqn)) victims.push_back(&qp);
        });
        for (Qp *qp : victims) enter_error(*qp, SNIC_WC_LOC_QP_OP_ERR, SNIC_REASON_NONE, false);
    }
}

void Nic::post_cqe(uint32_t cqn, const snic_cqe &cqe) {
    Cq *cq = cqs_.find(cqn);
    if (!cq || cq->failed) return;
    if (cq->pi - cq->ci >= cq->entries) {
        uint32_t ci;
        if (!guest_load(host_, cq->record, ci)) return fail_cq(*cq);
        if (cq->pi - ci <= cq->entries) cq->ci = ci;
        if (cq->pi - cq->ci >= cq->entries) return fail_cq(*cq);
    }
    uint64_t at = uint64_t{cq->pi & (cq->entries - 1)} * sizeof(snic_cqe);
    bool ok = guest_write(host_, cq->ring, at, &cqe, offsetof(snic_cqe, phase)) &&
              guest_store(host_, cq->ring, at + offsetof(snic_cqe, phase), cq->pi / cq->entries + 1);
    if (!ok) return fail_cq(*cq);
    cq->pi++;
    if (cq->armed) fire_cq(*cq);
}

// --- doorbells and the watch list ----------------------------------------------------------------------------------------

void Nic::doorbell(uint32_t page, uint32_t offset, uint32_t value) {
    if (!ready_) return;
    if (offset == SNIC_DB_SQ) {
        Qp *qp = qps_.find(value);
        if (!qp || qp->params.doorbell_page != page) {
            counters_.bad_doorbells++;
            return;
        }
        if (qp->state == SNIC_QP_ERROR) {
            if (drained(*qp)) flush(*qp);  // what was posted since
            return;
        }
        watch(*qp);
        schedule(*qp);
    } else if (offset == SNIC_DB_CQ_ARM) {
        Cq *cq = cqs_.find(value);
        if (!cq || cq->doorbell_page != page) {
            counters_.bad_doorbells++;
            return;
        }
        uint32_t ci;
        if (!guest_load(host_, cq->record, ci)) return fail_cq(*cq);
        if (cq->pi - ci <= cq->entries) cq->ci = ci;
        cq->armed = true;
        if (cq->pi != cq->ci || cq->failed) fire_cq(*cq);
    }
}

void Nic::rescan() {
    if (!ready_) return;
    std::vector<Qp *> failed;
    qps_.each([&](Qp &qp) {
        if (qp.state == SNIC_QP_ERROR)
            failed.push_back(&qp);
        else
            schedule(qp);
    });
    for (Qp *qp : failed)
        if (drained(*qp)) flush(*qp);
    cqs_.each([&](Cq &cq) {
        if (cq.pi != cq.ci || cq.failed) fire_cq(cq);
        cq.armed = true;
    });
}

void Nic::watch(Qp &qp) {
    if (qp.watched) return;
    if (watched_.size() >= kMaxWatched) {
        uint32_t oldest = watched_.front();
        watched_.erase(watched_.begin());
        if (Qp *old = qps_.find(oldest)) {
            old->watched = false;
            guest_store(host_, old->params.record + offsetof(snic_qp_record, kick), 1);
            std::atomic_thread_fence(std::memory_order_seq_cst);
            schedule(*old);  // looks at sq_pi once more
        }
    }
    qp.watched = true;
    watched_.push_back(qp.handle);
    guest_store(host_, qp.params.record + offsetof(snic_qp_record, kick), 0);
}

void Nic::unwatch(Qp &qp) {
    if (!qp.watched) return;
    qp.watched = false;
    watched_.erase(std::remove(watched_.begin(), watched_.end(), qp.handle), watched_.end());
    guest_store(host_, qp.params.record + offsetof(snic_qp_record, kick), 1);
}

void Nic::poll_watched() {
    for (uint32_t qpn : watched_) {
        Qp *qp = qps_.find(qpn);
        uint32_t pi;
        if (qp && !qp->scheduled && guest_load(host_, qp->params.record + offsetof(snic_qp_record, sq_pi), pi) &&
            pi != qp->sq_ci)
            schedule(*qp);
    }
}

bool Nic::prepare_sleep() {
    if (active_.size() > blocked_ || !broken_cqs_.empty() || (ready_ && aq_next_ != aq_doorbell_)) return false;
    for (uint32_t qpn : watched_) {
        Qp *qp = qps_.find(qpn);
        if (!qp) continue;
        qp->watched = false;
        guest_store(host_, qp->params.record + offsetof(snic_qp_record, kick), 1);
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (uint32_t qpn : watched_) {
        Qp *qp = qps_.find(qpn);
        uint32_t pi;
        if (qp && guest_load(host_, qp->params.record + offsetof(snic_qp_record, sq_pi), pi) && pi != qp->sq_ci) {
            // Not all of it may begin now (window full, not connected): schedule only what can.
            if (qp->state == SNIC_QP_RTS && qp->ops.size() < config_.window_ops && !qp->stalled) schedule(*qp);
        }
    }
    watched_.clear();
    return active_.size() == blocked_;
}

}  // namespace snic
