// SPDX-License-Identifier: GPL-2.0-or-later
// Connection management, and the end of a QP. Every message that expects an answer is repeated until the answer, a limit, or the
// end of the link; every handler tolerates repetitions.
//
//   connector: REQ ->            acceptor: CONN_REQUEST, ACCEPT
//                     <- REP
//              RTU ->                      CONN_ESTABLISHED on both sides
//   either:    DREQ ->  <- DREP            the peer's QP is in ERROR and touches nothing of ours any more
//   either:    REJ  ->                     refused (acceptor), or given up (connector)
#include <algorithm>
#include <cstring>

#include "nic.h"

namespace snic {

bool Nic::send_cm(PeerId peer, fabric_type type, uint32_t dst_qpn, uint32_t src_qpn, uint32_t psn, const fabric_cm &cm,
                  std::span<const std::byte> private_data, snic_conn_reason reason) {
    fabric_msg msg = {};
    msg.type = static_cast<uint8_t>(type);
    msg.syndrome = static_cast<uint8_t>(reason);
    msg.dst_qpn = dst_qpn;
    msg.src_qpn = src_qpn;
    msg.psn = psn;
    if (type == FABRIC_CM_DREQ)
        if (Qp *qp = qps_.find(src_qpn); qp && qp->refused) {
            msg.imm = qp->refused;
            msg.psn = qp->refused_psn;
        }
    fabric_cm body = cm;
    body.private_len = static_cast<uint32_t>(private_data.size());
    std::span<std::byte> record = start_message(peer, msg, sizeof body + private_data.size());
    if (record.empty()) return false;
    std::memcpy(record.data() + sizeof msg, &body, sizeof body);
    if (!private_data.empty())
        std::memcpy(record.data() + sizeof msg + sizeof body, private_data.data(), private_data.size());
    finish_message(peer, record);
    return true;
}

void Nic::connection_event(Qp &qp, snic_event_type type, snic_conn_reason reason, snic_wc_status status) {
    snic_eqe e = {};
    e.type = static_cast<uint8_t>(type);
    e.reason = static_cast<uint8_t>(reason);
    e.status = static_cast<uint8_t>(status);
    e.handle = qp.handle;
    e.cookie = qp.params.cookie;
    e.request = qp.reply_request;
    if (Request *r = requests_.find(qp.reply_request)) e.private_len = static_cast<uint32_t>(r->private_data.size());
    bool src_is_ours = qp.initiator;
    e.local_ip = src_is_ours ? qp.address.src_ip : qp.address.dst_ip;
    e.peer_ip = src_is_ours ? qp.address.dst_ip : qp.address.src_ip;
    e.local_port = src_is_ours ? qp.address.src_port : qp.address.dst_port;
    e.peer_port = src_is_ours ? qp.address.dst_port : qp.address.src_port;
    post_event(qp.params.eqn, e);
}

// --- commands --------------------------------------------------------------------------------------------------------------

Nic::Outcome Nic::cmd_listen(const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_listen>(cmd);
    if (b.backlog == 0 || b.backlog > 1024) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_listen, backlog));
    if (b.listener) {
        Listener *old = listeners_.find(b.listener);
        if (!old) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_listen, listener));
        old->backlog = b.backlog;
        Outcome o;
        o.result[0] = old->handle;
        return o;
    }
    if (b.port == 0) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_listen, port));
    if (b.ip && b.ip != config_.ip) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_listen, ip));
    Eq *eq = eqs_.find(b.eqn);
    if (!eq) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_listen, eqn));
    Listener *l = listeners_.create();
    if (!l) return Outcome::error(SNIC_ERR_LIMIT);
    l->ip = b.ip;
    l->port = b.port;
    l->backlog = b.backlog;
    l->eqn = b.eqn;
    l->cookie = b.cookie;
    eq->users++;
    Outcome o;
    o.result[0] = l->handle;
    return o;
}

Nic::Outcome Nic::cmd_unlisten(const snic_cmd &cmd) {
    Listener *l = listeners_.find(body_of<snic_cmd_handle>(cmd).handle);
    if (!l) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_handle, handle));
    std::vector<Request *> pending;
    requests_.each([&](Request &r) {
        if (r.listener == l->handle) pending.push_back(&r);
    });
    for (Request *r : pending) {
        send_cm(r->peer, FABRIC_CM_REJ, r->remote_qpn, 0, 0, r->address, {}, SNIC_REASON_REJECTED);
        incoming_.erase({r->peer, r->address.connection});
        requests_.destroy(r->handle);
    }
    if (Eq *eq = eqs_.find(l->eqn)) eq->users--;
    listeners_.destroy(l->handle);
    return {};
}

Nic::Outcome Nic::read_private_data(uint64_t addr, uint32_t len, size_t addr_field, size_t len_field,
                                    std::vector<std::byte> &out) {
    if (len > SNIC_MAX_PRIVATE_DATA) return Outcome::error(SNIC_ERR_PARAM, len_field);
    if (len && (addr & (SNIC_PAGE_SIZE - 1)) + len > SNIC_PAGE_SIZE) return Outcome::error(SNIC_ERR_PARAM, addr_field);
    out.resize(len);
    if (len && !guest_read(host_, addr, out.data(), len)) return Outcome::error(SNIC_ERR_DMA, addr_field);
    return {};
}

Nic::Outcome Nic::cmd_connect(const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_connect>(cmd);
    Qp *qp = qps_.find(b.qpn);
    if (!qp) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_connect, qpn));
    if (b.timeout_ms == 0 || b.timeout_ms > 60000) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_connect, timeout_ms));
    if (b.dst_port == 0) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_connect, dst_port));
    if (b.src_ip && b.src_ip != config_.ip) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_connect, src_ip));
    if (qp->state != SNIC_QP_INIT) return Outcome::error(SNIC_ERR_STATE, SNIC_FIELD(snic_cmd_connect, qpn));
    if (!link_up_) return Outcome::error(SNIC_ERR_LINK);
    Outcome o = read_private_data(b.private_data, b.private_len, SNIC_FIELD(snic_cmd_connect, private_data),
                                  SNIC_FIELD(snic_cmd_connect, private_len), qp->private_data);
    if (o.status != SNIC_OK) return o;
    qp->initiator = true;
    qp->address = {};
    qp->address.src_ip = config_.ip;
    qp->address.dst_ip = b.dst_ip;
    qp->address.src_port = b.src_port;
    qp->address.dst_port = b.dst_port;
    qp->connection = qp->address.connection = uint64_t{host_.random()} << 32 | host_.random();
    qp->peer = link_.find(b.dst_ip);
    if (qp->peer == kNoPeer) {
        connect_failed(*qp, SNIC_REASON_UNREACHABLE);
        return {};
    }
    qp->next_psn = qp->una_psn = qp->send_psn = qp->max_sent_psn = host_.random();
    qp->state = SNIC_QP_CONNECTING;
    qp->cm = Cm::requested;
    uint64_t now = host_.now_ns();
    qp->cm_deadline = now + b.timeout_ms * 1'000'000ull;
    cm_timer(*qp, now);  // sends REQ
    return {};
}

Nic::Outcome Nic::cmd_get_request(const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_get_request>(cmd);
    Request *r = requests_.find(b.request);
    if (!r) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_get_request, request));
    if (b.out_len > SNIC_MAX_PRIVATE_DATA) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_get_request, out_len));
    if (b.out_len && (b.out & (SNIC_PAGE_SIZE - 1)) + b.out_len > SNIC_PAGE_SIZE)
        return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_get_request, out));
    size_t n = std::min<size_t>(b.out_len, r->private_data.size());
    if (n && !guest_write(host_, b.out, r->private_data.data(), n))
        return Outcome::error(SNIC_ERR_DMA, SNIC_FIELD(snic_cmd_get_request, out));
    Outcome o;
    o.result[0] = r->private_data.size();
    return o;
}

Nic::Outcome Nic::cmd_accept(const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_reply>(cmd);
    Request *r = requests_.find(b.request);
    if (!r || !r->listener) return Outcome::error(SNIC_ERR_STATE, SNIC_FIELD(snic_cmd_reply, request));
    Qp *qp = qps_.find(b.qpn);
    if (!qp) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_reply, qpn));
    if (qp->state != SNIC_QP_INIT) return Outcome::error(SNIC_ERR_STATE, SNIC_FIELD(snic_cmd_reply, qpn));
    Outcome o = read_private_data(b.private_data, b.private_len, SNIC_FIELD(snic_cmd_reply, private_data),
                                  SNIC_FIELD(snic_cmd_reply, private_len), qp->private_data);
    if (o.status != SNIC_OK) return o;
    qp->initiator = false;
    qp->peer = r->peer;
    qp->remote_qpn = r->remote_qpn;
    qp->address = r->address;
    qp->connection = r->address.connection;
    qp->epsn = r->remote_psn;
    qp->next_psn = qp->una_psn = qp->send_psn = qp->max_sent_psn = host_.random();
    qp->state = SNIC_QP_RTS;
    qp->cm = Cm::replied;
    qp->cm_tries = 0;
    incoming_[{qp->peer, qp->connection}] = qp->handle;
    if (Listener *l = listeners_.find(r->listener)) l->pending--;
    requests_.destroy(r->handle);
    cm_timer(*qp, host_.now_ns());  // sends REP
    schedule(*qp);
    return {};
}

Nic::Outcome Nic::cmd_reject(const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_reply>(cmd);
    Request *r = requests_.find(b.request);
    if (!r) return Outcome::error(SNIC_ERR_STATE, SNIC_FIELD(snic_cmd_reply, request));
    std::vector<std::byte> data;
    Outcome o = read_private_data(b.private_data, b.private_len, SNIC_FIELD(snic_cmd_reply, private_data),
                                  SNIC_FIELD(snic_cmd_reply, private_len), data);
    if (o.status != SNIC_OK) return o;
    if (r->listener) {
        send_cm(r->peer, FABRIC_CM_REJ, r->remote_qpn, 0, 0, r->address, data, SNIC_REASON_REJECTED);
        if (Listener *l = listeners_.find(r->listener)) l->pending--;
        incoming_.erase({r->peer, r->address.connection});
    }
    requests_.destroy(r->handle);
    return {};
}

Nic::Outcome Nic::cmd_disconnect(const snic_cmd &cmd) {
    Qp *qp = qps_.find(body_of<snic_cmd_handle>(cmd).handle);
    if (!qp) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_handle, handle));
    enter_error(*qp, SNIC_WC_SUCCESS, SNIC_REASON_NONE, false);
    return {};
}

// --- messages --------------------------------------------------------------------------------------------------------------

void Nic::handle_cm(PeerId peer, const fabric_msg &msg, std::span<const std::byte> tail) {
    CmView in;
    in.msg = msg;
    if (tail.size() < sizeof in.cm) {
        counters_.bad_records++;
        return;
    }
    std::memcpy(&in.cm, tail.data(), sizeof in.cm);
    if (in.cm.private_len > SNIC_MAX_PRIVATE_DATA || tail.size() != sizeof in.cm + in.cm.private_len) {
        counters_.bad_records++;
        return;
    }
    in.private_data.assign(tail.begin() + sizeof in.cm, tail.end());
    switch (msg.type) {
        case FABRIC_CM_REQ: return handle_cm_req(peer, in);
        case FABRIC_CM_REP: return handle_cm_rep(peer, in);
        case FABRIC_CM_REJ: return handle_cm_rej(peer, in);
        case FABRIC_CM_DREQ: return handle_cm_dreq(peer, in);
        default: break;
    }
    Qp *qp = qps_.find(msg.dst_qpn);
    if (!qp || qp->peer != peer || qp->connection != in.cm.connection) {
        bool awaited = msg.type == FABRIC_CM_DREP && std::erase_if(farewells_, [&](const Farewell &f) {
            return f.peer == peer && f.qpn == msg.dst_qpn && f.address.connection == in.cm.connection;
        });
        if (!awaited) counters_.stale_records++;
        return;
    }
    if (msg.type == FABRIC_CM_RTU && qp->cm == Cm::replied) confirm(*qp);
    if (msg.type == FABRIC_CM_DREP && qp->cm == Cm::leaving) {
        qp->cm = Cm::gone;
        qp->cm_next = 0;
        flush(*qp);
    }
}

void Nic::handle_cm_req(PeerId peer, const CmView &in) {
    if (auto known = incoming_.find({peer, in.cm.connection}); known != incoming_.end()) {
        Qp *qp = qps_.find(known->second);
        if (qp && qp->connection == in.cm.connection && qp->cm == Cm::replied) cm_timer(*qp, host_.now_ns());  // REP was lost
        return;
    }
    auto refuse_with = [&](snic_conn_reason reason) {
        send_cm(peer, FABRIC_CM_REJ, in.msg.src_qpn, 0, 0, in.cm, {}, reason);
    };
    if (in.cm.dst_ip != config_.ip) return refuse_with(SNIC_REASON_NO_LISTENER);
    Listener *best = nullptr;
    listeners_.each([&](Listener &l) {
        if (l.port != in.cm.dst_port) return;
        if (!best || (best->pending >= best->backlog && l.pending < l.backlog)) best = &l;
    });
    if (!best) return refuse_with(SNIC_REASON_NO_LISTENER);
    Request *r = best->pending < best->backlog ? requests_.create() : nullptr;
    if (!r) return refuse_with(SNIC_REASON_BACKLOG);
    r->listener = best->handle;
    r->peer = peer;
    r->remote_qpn = in.msg.src_qpn;
    r->remote_psn = in.msg.psn;
    r->address = in.cm;
    r->private_data = in.private_data;
    best->pending++;
    incoming_[{peer, in.cm.connection}] = r->handle;
    snic_eqe e = {};
    e.type = SNIC_EV_CONN_REQUEST;
    e.handle = best->handle;
    e.cookie = best->cookie;
    e.request = r->handle;
    e.private_len = in.cm.private_len;
    e.peer_ip = in.cm.src_ip;
    e.local_ip = in.cm.dst_ip;
    e.peer_port = in.cm.src_port;
    e.local_port = in.cm.dst_port;
    post_event(best->eqn, e);
}

void Nic::handle_cm_rep(PeerId peer, const CmView &in) {
    Qp *qp = qps_.find(in.msg.dst_qpn);
    bool ours = qp && qp->peer == peer && qp->connection == in.cm.connection && qp->initiator;
    if (!ours || qp->cm == Cm::gone || qp->cm == Cm::idle) {
        // We gave up long ago; the acceptor's QP must not wait for us.
        send_cm(peer, FABRIC_CM_REJ, in.msg.src_qpn, 0, 0, in.cm, {}, SNIC_REASON_PEER_CLOSED);
        return;
    }
    if (qp->cm == Cm::requested) {
        qp->remote_qpn = in.msg.src_qpn;
        qp->epsn = in.msg.psn;
        qp->state = SNIC_QP_RTS;
        qp->cm = Cm::established;
        qp->cm_next = 0;
        if (!in.private_data.empty()) {
            if (Request *r = requests_.create()) {
                r->private_data = in.private_data;
                qp->reply_request = r->handle;
            }
        }
        connection_event(*qp, SNIC_EV_CONN_ESTABLISHED, SNIC_REASON_NONE, SNIC_WC_SUCCESS);
        schedule(*qp);
        uint32_t pi;
        if (guest_load(host_, qp->params.record + offsetof(snic_qp_record, sq_pi), pi) && pi != qp->sq_ci) watch(*qp);
    }
    if (qp->cm == Cm::established)
        send_cm(peer, FABRIC_CM_RTU, qp->remote_qpn, qp->handle, qp->next_psn, qp->address, {}, SNIC_REASON_NONE);
}

void Nic::handle_cm_rej(PeerId peer, const CmView &in) {
    auto reason = in.msg.syndrome >= SNIC_REASON_NO_LISTENER && in.msg.syndrome <= SNIC_REASON_LINK_DOWN
                      ? static_cast<snic_conn_reason>(in.msg.syndrome)
                      : SNIC_REASON_REJECTED;
    Qp *qp = qps_.find(in.msg.dst_qpn);
    if (qp && qp->peer == peer && qp->connection == in.cm.connection && qp->cm == Cm::requested) {
        connect_failed(*qp, reason);
        return;
    }
    // The connector gave up.
    auto known = incoming_.find({peer, in.cm.connection});
    if (known == incoming_.end()) return;
    uint32_t handle = known->second;
    Request *r = requests_.find(handle);
    if (r && r->listener && r->address.connection == in.cm.connection) {
        drop_request(*r);
        return;
    }
    qp = qps_.find(handle);
    if (qp && qp->connection == in.cm.connection && (qp->cm == Cm::replied || qp->cm == Cm::established)) {
        qp->cm = Cm::gone;
        enter_error(*qp, SNIC_WC_WR_FLUSH_ERR, SNIC_REASON_PEER_CLOSED, true);
    }
}

void Nic::handle_cm_dreq(PeerId peer, const CmView &in) {
    Qp *qp = qps_.find(in.msg.dst_qpn);
    bool ours = qp && qp->peer == peer && qp->connection == in.cm.connection;
    if (ours && qp->cm != Cm::gone) {
        // The peer's NAK may have been lost; what it refused must still be told apart from what it flushed.
        if (qp->state == SNIC_QP_RTS && in.msg.imm) {
            fabric_msg nak = in.msg;
            nak.syndrome = static_cast<uint8_t>(in.msg.imm);
            if (nak.syndrome >= FABRIC_NAK_INVALID && nak.syndrome <= FABRIC_NAK_OPERATIONAL) handle_nak(*qp, nak);
        }
        qp->cm = Cm::gone;
        qp->cm_next = 0;
        if (qp->state == SNIC_QP_ERROR)
            flush(*qp);
        else
            enter_error(*qp, SNIC_WC_WR_FLUSH_ERR, SNIC_REASON_PEER_CLOSED, true);
    }
    send_cm(peer, FABRIC_CM_DREP, in.msg.src_qpn, in.msg.dst_qpn, 0, in.cm, {}, SNIC_REASON_NONE);
}

void Nic::confirm(Qp &qp) {
    qp.cm = Cm::established;
    qp.cm_next = 0;
    connection_event(qp, SNIC_EV_CONN_ESTABLISHED, SNIC_REASON_NONE, SNIC_WC_SUCCESS);
}

void Nic::connect_failed(Qp &qp, snic_conn_reason reason) {
    qp.cm = Cm::idle;
    qp.cm_next = 0;
    if (qp.state == SNIC_QP_CONNECTING) qp.state = SNIC_QP_INIT;
    connection_event(qp, SNIC_EV_CONN_FAILED, reason, SNIC_WC_SUCCESS);
    qp.peer = kNoPeer;
}

void Nic::drop_request(Request &r) {
    if (Listener *l = listeners_.find(r.listener)) {
        l->pending--;
        snic_eqe e = {};
        e.type = SNIC_EV_REQUEST_GONE;
        e.handle = l->handle;
        e.cookie = l->cookie;
        e.request = r.handle;
        post_event(l->eqn, e);
    }
    incoming_.erase({r.peer, r.address.connection});
    requests_.destroy(r.handle);
}

void Nic::cm_timer(Qp &qp, uint64_t now) {
    qp.cm_next = now + config_.cm_retransmit;
    switch (qp.cm) {
        case Cm::requested:
            if (now >= qp.cm_deadline) {
                send_cm(qp.peer, FABRIC_CM_REJ, 0, qp.handle, 0, qp.address, {}, SNIC_REASON_TIMEOUT);
                connect_failed(qp, SNIC_REASON_TIMEOUT);
                return;
            }
            qp.cm_next = std::min(qp.cm_next, qp.cm_deadline);
            send_cm(qp.peer, FABRIC_CM_REQ, 0, qp.handle, qp.next_psn, qp.address, qp.private_data, SNIC_REASON_NONE);
            break;
        case Cm::replied:
            if (qp.cm_tries++ >= config_.cm_disconnect_tries) {
                qp.cm = Cm::gone;
                qp.cm_next = 0;
                enter_error(qp, SNIC_WC_WR_FLUSH_ERR, SNIC_REASON_TIMEOUT, true);
                return;
            }
            send_cm(qp.peer, FABRIC_CM_REP, qp.remote_qpn, qp.handle, qp.next_psn, qp.address, qp.private_data,
                    SNIC_REASON_NONE);
            break;
        case Cm::leaving:
            if (qp.cm_tries++ >= config_.cm_disconnect_tries) {
                qp.cm = Cm::gone;
                qp.cm_next = 0;
                flush(qp);
                return;
            }
            send_cm(qp.peer, FABRIC_CM_DREQ, qp.remote_qpn, qp.handle, 0, qp.address, {}, SNIC_REASON_PEER_CLOSED);
            break;
        case Cm::idle:
        case Cm::established:
        case Cm::gone: qp.cm_next = 0; return;
    }
    arm_timer(qp);
}

// --- the end of a QP -----------------------------------------------------------------------------------------------------------

bool Nic::drained(const Qp &qp) const {
    return qp.state == SNIC_QP_ERROR && qp.ops.empty() && !qp.recv.active;
}

// peer_stopped: the peer is known to touch nothing of ours any more on behalf of this QP.
void Nic::enter_error(Qp &qp, snic_wc_status status, snic_conn_reason reason, bool peer_stopped) {
    if (qp.state == SNIC_QP_ERROR) return;
    snic_qp_state was = qp.state;
    qp.state = SNIC_QP_ERROR;
    unwatch(qp);
    qp.ack_due = qp.rnr_until = 0;
    qp.ack_owed = false;
    qp.reads.clear();
    if (was == SNIC_QP_CONNECTING) {
        send_cm(qp.peer, FABRIC_CM_REJ, 0, qp.handle, 0, qp.address, {}, SNIC_REASON_PEER_CLOSED);
        qp.cm = Cm::gone;
        qp.cm_next = 0;
    }
    if (reason != SNIC_REASON_NONE)
        connection_event(qp, SNIC_EV_DISCONNECTED, reason, status);
    else if (status != SNIC_WC_SUCCESS)
        connection_event(qp, SNIC_EV_QP_FATAL, reason, status);
    if (qp.cm == Cm::established || qp.cm == Cm::replied) {
        if (reason == SNIC_REASON_LINK_DOWN) {
            qp.cm = Cm::gone;
            qp.cm_next = 0;
        } else {
            leave(qp);
        }
    } else if (qp.cm == Cm::idle) {
        qp.cm = Cm::gone;
    }
    flush_receives(qp);
    bool exposed = std::any_of(qp.ops.begin(), qp.ops.end(), [](const SendOp &op) { return op.direct && op.segments; });
    if (peer_stopped || qp.cm == Cm::gone || !exposed) flush(qp);
}

void Nic::leave(Qp &qp) {
    qp.cm = Cm::leaving;
    qp.cm_tries = 0;
    cm_timer(qp, host_.now_ns());
}

void Nic::flush_receives(Qp &qp) {
    if (qp.recv.active) {
        qp.recv.active = false;
        drop_regions(qp.recv.regions, qp.recv.held);
        complete_recv(qp, qp.recv.wqe, qp.recv.index, 0, 0, SNIC_WC_WR_FLUSH_ERR);
    }
    for (;;) {
        snic_wqe wqe;
        uint32_t index;
        if (fetch_recv(qp, wqe, index) != Posted::some) return;
        complete_recv(qp, wqe, index, 0, 0, SNIC_WC_WR_FLUSH_ERR);
    }
}

// Completes everything that is posted. Called when nothing of it is in flight any more; and again for what was posted later.
void Nic::flush(Qp &qp) {
    while (!qp.ops.empty()) {
        SendOp op = std::move(qp.ops.front());
        qp.ops.pop_front();
        complete_send(qp, op, op.status == SNIC_WC_SUCCESS ? SNIC_WC_WR_FLUSH_ERR : op.status);
    }
    uint32_t pi;
    if (guest_load(host_, qp.params.record + offsetof(snic_qp_record, sq_pi), pi) && pi - qp.sq_ci <= qp.params.sq_entries) {
        while (qp.sq_ci != pi) {
            SendOp op;
            op.index = qp.sq_ci;
            if (!read_wqe(qp.sq, qp.params.sq_entries, qp.params.sq_stride, qp.sq_ci, op.wqe)) break;
            qp.sq_ci++;
            complete_send(qp, op, SNIC_WC_WR_FLUSH_ERR);
        }
    }
    flush_receives(qp);
    if (!qp.reported_drained) {
        qp.reported_drained = true;
        connection_event(qp, SNIC_EV_QP_DRAINED, SNIC_REASON_NONE, SNIC_WC_SUCCESS);
    }
}

}  // namespace snic
