// SPDX-License-Identifier: GPL-2.0-or-later
// Commands about queue pairs.
#include "nic.h"

namespace snic {

Nic::Outcome Nic::check_qp_params(const snic_qp_params &p) {
    auto bad = [](snic_status status, size_t field) { return Outcome::error(status, field); };
    if (!pds_.find(p.pd)) return bad(SNIC_ERR_HANDLE, offsetof(snic_qp_params, pd));
    if (!cqs_.find(p.send_cqn)) return bad(SNIC_ERR_HANDLE, offsetof(snic_qp_params, send_cqn));
    if (!cqs_.find(p.recv_cqn)) return bad(SNIC_ERR_HANDLE, offsetof(snic_qp_params, recv_cqn));
    if (!eqs_.find(p.eqn)) return bad(SNIC_ERR_HANDLE, offsetof(snic_qp_params, eqn));
    if (p.doorbell_page >= doorbell_attached_.size() || !doorbell_attached_[p.doorbell_page])
        return bad(SNIC_ERR_HANDLE, offsetof(snic_qp_params, doorbell_page));
    if (!power_of_two(p.sq_entries, 2, config_.max_wqe)) return bad(SNIC_ERR_PARAM, offsetof(snic_qp_params, sq_entries));
    if (!power_of_two(p.rq_entries, 2, config_.max_wqe)) return bad(SNIC_ERR_PARAM, offsetof(snic_qp_params, rq_entries));
    if (!power_of_two(p.sq_stride, SNIC_MIN_STRIDE, SNIC_MAX_STRIDE)) return bad(SNIC_ERR_PARAM, offsetof(snic_qp_params, sq_stride));
    if (!power_of_two(p.rq_stride, SNIC_MIN_STRIDE, SNIC_MAX_STRIDE)) return bad(SNIC_ERR_PARAM, offsetof(snic_qp_params, rq_stride));
    if (p.rnr_retry > 7) return bad(SNIC_ERR_PARAM, offsetof(snic_qp_params, rnr_retry));
    if (p.retry_count > 7) return bad(SNIC_ERR_PARAM, offsetof(snic_qp_params, retry_count));
    if (p.access & ~(SNIC_ACCESS_REMOTE_READ | SNIC_ACCESS_REMOTE_WRITE)) return bad(SNIC_ERR_PARAM, offsetof(snic_qp_params, access));
    if (p.record % 64) return bad(SNIC_ERR_PARAM, offsetof(snic_qp_params, record));
    if (p.sq_pages.offset % 64) return bad(SNIC_ERR_PARAM, offsetof(snic_qp_params, sq_pages));
    if (p.rq_pages.offset % 64) return bad(SNIC_ERR_PARAM, offsetof(snic_qp_params, rq_pages));
    return {};
}

// Reads and checks the parameters at `addr`, and the page lists that they name.
Nic::Outcome Nic::load_qp_params(uint64_t addr, size_t field, snic_qp_params &p, PageMap &sq, PageMap &rq) {
    if ((addr & (SNIC_PAGE_SIZE - 1)) + sizeof p > SNIC_PAGE_SIZE) return Outcome::error(SNIC_ERR_PARAM, field);
    if (!guest_read(host_, addr, &p, sizeof p)) return Outcome::error(SNIC_ERR_DMA, field);
    if (Outcome o = check_qp_params(p); o.status != SNIC_OK) return o;
    if (snic_status st = sq.load(host_, p.sq_pages, uint64_t{p.sq_entries} * p.sq_stride, &page_budget_); st != SNIC_OK)
        return Outcome::error(st, offsetof(snic_qp_params, sq_pages));
    if (snic_status st = rq.load(host_, p.rq_pages, uint64_t{p.rq_entries} * p.rq_stride, &page_budget_); st != SNIC_OK)
        return Outcome::error(st, offsetof(snic_qp_params, rq_pages));
    if (!guest_store(host_, p.record + offsetof(snic_qp_record, kick), 1))
        return Outcome::error(SNIC_ERR_DMA, offsetof(snic_qp_params, record));
    return {};
}

// Counts the QP at everything that its parameters name: by 1 at its creation, by -1 at its end.
void Nic::count_qp_users(const snic_qp_params &p, int change) {
    uint32_t by = static_cast<uint32_t>(change);
    if (Pd *pd = pds_.find(p.pd)) pd->qps += by;
    if (Cq *cq = cqs_.find(p.send_cqn)) cq->users += by;
    if (Cq *cq = cqs_.find(p.recv_cqn)) cq->users += by;
    if (Eq *eq = eqs_.find(p.eqn)) eq->users += by;
    doorbell_users_[p.doorbell_page] += by;
}

Nic::Outcome Nic::cmd_create_qp(const snic_cmd &cmd) {
    snic_qp_params p;
    PageMap sq, rq;
    Outcome o = load_qp_params(body_of<snic_cmd_create_qp>(cmd).params, SNIC_FIELD(snic_cmd_create_qp, params), p, sq, rq);
    if (o.status != SNIC_OK) return o;
    Qp *qp = qps_.create();
    if (!qp) return Outcome::error(SNIC_ERR_LIMIT);
    qp->params = p;
    qp->sq = std::move(sq);
    qp->rq = std::move(rq);
    count_qp_users(p, 1);
    o.result[0] = qp->handle;
    return o;
}

Nic::Outcome Nic::cmd_rebind_qp(const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_rebind_qp>(cmd);
    Qp *qp = qps_.find(b.qpn);
    if (!qp) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_rebind_qp, qpn));
    bool idle = (qp->state == SNIC_QP_INIT || qp->state == SNIC_QP_RTS) && qp->ops.empty() && !qp->recv.active;
    uint32_t pi;
    if (!idle || !guest_load(host_, qp->params.record + offsetof(snic_qp_record, sq_pi), pi) || pi != qp->sq_ci)
        return Outcome::error(SNIC_ERR_STATE, SNIC_FIELD(snic_cmd_rebind_qp, qpn));
    snic_qp_params p;
    PageMap sq, rq;
    Outcome o = load_qp_params(b.params, SNIC_FIELD(snic_cmd_rebind_qp, params), p, sq, rq);
    if (o.status != SNIC_OK) return o;
    unwatch(*qp);
    count_qp_users(qp->params, -1);
    count_qp_users(p, 1);
    qp->params = p;
    qp->sq = std::move(sq);
    qp->rq = std::move(rq);
    qp->sq_ci = qp->sq_done = qp->rq_ci = 0;
    o.result[0] = qp->handle;
    return o;
}

void Nic::destroy_qp(Qp &qp) {
    unwatch(qp);
    count_qp_users(qp.params, -1);
    if (qp.reply_request) requests_.destroy(qp.reply_request);
    auto known = incoming_.find({qp.peer, qp.connection});
    if (known != incoming_.end() && known->second == qp.handle && !qp.initiator) incoming_.erase(known);
    qps_.destroy(qp.handle);
}

Nic::Outcome Nic::cmd_destroy_qp(uint32_t number, const snic_cmd &cmd) {
    Qp *qp = qps_.find(body_of<snic_cmd_handle>(cmd).handle);
    if (!qp) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_handle, handle));
    enter_error(*qp, SNIC_WC_SUCCESS, SNIC_REASON_NONE, false);
    if (drained(*qp) && qp->cm == Cm::gone) {
        destroy_qp(*qp);
        return {};
    }
    waiters_.push_back({number, cmd.cookie, SNIC_CMD_DESTROY_QP, qp->handle});
    Outcome o;
    o.deferred = true;
    return o;
}

Nic::Outcome Nic::cmd_modify_qp(uint32_t number, const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_modify_qp>(cmd);
    Qp *qp = qps_.find(b.qpn);
    if (!qp) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_modify_qp, qpn));
    if (b.state != SNIC_QP_ERROR) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_modify_qp, state));
    enter_error(*qp, SNIC_WC_SUCCESS, SNIC_REASON_NONE, false);
    if (drained(*qp)) return {};
    waiters_.push_back({number, cmd.cookie, SNIC_CMD_MODIFY_QP, qp->handle});
    Outcome o;
    o.deferred = true;
    return o;
}

Nic::Outcome Nic::cmd_query_qp(const snic_cmd &cmd) {
    Qp *qp = qps_.find(body_of<snic_cmd_handle>(cmd).handle);
    if (!qp) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_handle, handle));
    Outcome o;
    o.result[0] = qp->state;
    o.result[1] = qp->sq_done;
    o.result[2] = qp->rq_ci;
    o.result[3] = qp->remote_qpn;
    return o;
}

}  // namespace snic
