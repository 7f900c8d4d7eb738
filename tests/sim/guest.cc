// SPDX-License-Identifier: GPL-2.0-or-later
#include "guest.h"

#include <atomic>
#include <stdexcept>

namespace sim {

uint64_t Guest::alloc(size_t bytes) {
    uint64_t at = next_;
    next_ += (bytes + 4095) & ~size_t{4095};
    if (next_ - machine.ram_base() > machine.ram_size()) throw std::runtime_error("the RAM of the machine is used up");
    std::memset(machine.at<char>(at), 0, bytes);
    return at;
}

void Guest::start() {
    aq_ = alloc(kAqEntries * sizeof(snic_cmd));
    acq_ = alloc(kAqEntries * sizeof(snic_cpl));
    machine.write_register(SNIC_REG_AQ_SIZE, kAqEntries, 4);
    machine.write_register(SNIC_REG_AQ_BASE, aq_, 8);
    machine.write_register(SNIC_REG_ACQ_BASE, acq_, 8);
    machine.write_register(SNIC_REG_CTRL, SNIC_CTRL_ENABLE, 4);
    aq_posted_ = 0;
    eq_ci = 0;
    events.clear();
    snic_cmd_pd none = {};
    pd = static_cast<uint32_t>(command(SNIC_CMD_CREATE_PD, none).result[0]);
    eq_ring = alloc(kEqEntries * sizeof(snic_eqe));
    eq_record = alloc(sizeof(snic_eq_record));
    snic_cmd_create_eq eq = {};
    eq.entries = kEqEntries;
    eq.vector = 1;
    eq.pages = {eq_ring, 0, 12, 0, 0};
    eq.record = eq_record;
    eqn = static_cast<uint32_t>(command(SNIC_CMD_CREATE_EQ, eq).result[0]);
}

uint32_t Guest::post_command(uint8_t opcode, const void *body, size_t size) {
    snic_cmd cmd = {};
    cmd.opcode = opcode;
    cmd.cookie = 0xC0000000u + aq_posted_;
    if (size) std::memcpy(cmd.body, body, std::min(size, sizeof cmd.body));
    *machine.at<snic_cmd>(aq_ + aq_posted_ % kAqEntries * sizeof cmd) = cmd;
    uint32_t number = aq_posted_++;
    machine.write_register(SNIC_REG_AQ_DOORBELL, aq_posted_, 4);
    return number;
}

bool Guest::completed(uint32_t number, Completion &out) {
    auto *slot = machine.at<snic_cpl>(acq_ + number % kAqEntries * sizeof(snic_cpl));
    if (std::atomic_ref(slot->phase).load(std::memory_order_acquire) != number / kAqEntries + 1) return false;
    snic_cpl cpl = *slot;
    if (cpl.cookie != 0xC0000000u + number) throw std::runtime_error("completion carries another command's cookie");
    out.status = static_cast<snic_status>(cpl.status);
    out.detail = cpl.detail;
    std::copy(std::begin(cpl.result), std::end(cpl.result), out.result);
    return true;
}

Completion Guest::command(uint8_t opcode, const void *body, size_t size) {
    uint32_t number = post_command(opcode, body, size);
    Completion c = {};
    if (!machine.run([&] { return completed(number, c); })) throw std::runtime_error("admin command did not complete");
    return c;
}

Completion Guest::handle_command(uint8_t opcode, uint32_t handle) {
    snic_cmd_handle b = {};
    b.handle = handle;
    return command(opcode, b);
}

uint64_t Guest::register_mr(uint64_t bus, uint64_t length, uint32_t access, uint32_t bound_qpn, uint32_t in_pd) {
    snic_cmd_register_mr b = {};
    b.pd = in_pd ? in_pd : pd;
    b.access = access;
    b.va = bus;  // tests use bus addresses as virtual ones
    b.length = length;
    b.pages = {bus & ~uint64_t{4095}, static_cast<uint32_t>(bus & 4095), 12, 0, 0};
    b.bound_qpn = bound_qpn;
    Completion c = command(SNIC_CMD_REGISTER_MR, b);
    return c.status == SNIC_OK ? c.result[0] : 0;
}

GuestCq Guest::create_cq(uint32_t entries) {
    GuestCq cq;
    cq.entries = entries;
    cq.ring = alloc(entries * sizeof(snic_cqe));
    cq.record = alloc(sizeof(snic_cq_record));
    snic_cmd_create_cq b = {};
    b.entries = entries;
    b.eqn = eqn;
    b.pages = {cq.ring, 0, 12, 0, 0};
    b.record = cq.record;
    cq.cqn = static_cast<uint32_t>(command(SNIC_CMD_CREATE_CQ, b).result[0]);
    return cq;
}

snic_qp_params Guest::qp_params(GuestCq &send, GuestCq &recv, GuestQp &qp, uint32_t entries, uint32_t stride) {
    qp.sq_entries = qp.rq_entries = entries;
    qp.stride = stride;
    qp.sq = alloc(entries * stride);
    qp.rq = alloc(entries * stride);
    qp.record = alloc(sizeof(snic_qp_record));
    qp.send_cq = &send;
    qp.recv_cq = &recv;
    machine.at<snic_qp_record>(qp.record)->kick = 1;
    snic_qp_params p = {};
    p.pd = pd;
    p.send_cqn = send.cqn;
    p.recv_cqn = recv.cqn;
    p.eqn = eqn;
    p.sq_entries = p.rq_entries = entries;
    p.sq_stride = p.rq_stride = stride;
    p.rnr_retry = 7;
    p.retry_count = 7;
    p.access = SNIC_ACCESS_REMOTE_READ | SNIC_ACCESS_REMOTE_WRITE;
    p.record = qp.record;
    p.sq_pages = {qp.sq, 0, 12, 0, 0};
    p.rq_pages = {qp.rq, 0, 12, 0, 0};
    return p;
}

GuestQp Guest::create_qp(GuestCq &send, GuestCq &recv, uint32_t entries, uint32_t stride) {
    GuestQp qp;
    uint64_t params = alloc(sizeof(snic_qp_params));
    *machine.at<snic_qp_params>(params) = qp_params(send, recv, qp, entries, stride);
    snic_cmd_create_qp b = {};
    b.params = params;
    qp.qpn = static_cast<uint32_t>(command(SNIC_CMD_CREATE_QP, b).result[0]);
    return qp;
}

void Guest::write_wqe(uint64_t at, const snic_wqe &wqe) {
    std::memcpy(machine.at<char>(at), &wqe, SNIC_WQE_HEADER_SIZE + wqe.num_sge * sizeof(snic_sge));
}

void Guest::post_send(GuestQp &qp, uint8_t opcode, uint64_t wr_id, const std::vector<Sge> &sges, uint64_t remote_va,
                      uint64_t rkey, uint8_t flags, uint32_t imm) {
    snic_wqe w = {};
    w.opcode = opcode;
    w.flags = flags;
    w.num_sge = static_cast<uint16_t>(sges.size());
    w.rkey = rkey;
    w.remote_va = remote_va;
    w.wr_id = wr_id;
    w.imm = imm;
    for (size_t i = 0; i < sges.size() && i < SNIC_MAX_SGE; i++)
        w.sge[i] = {sges[i].va, sges[i].key, sges[i].length, 0};
    write_wqe(qp.sq + qp.sq_pi % qp.sq_entries * qp.stride, w);
    auto *record = machine.at<snic_qp_record>(qp.record);
    std::atomic_ref(record->sq_pi).store(++qp.sq_pi, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (std::atomic_ref(record->kick).load()) machine.doorbell(0, SNIC_DB_SQ, qp.qpn);
}

void Guest::post_recv(GuestQp &qp, uint64_t wr_id, const std::vector<Sge> &sges) {
    snic_wqe w = {};
    w.opcode = SNIC_WR_RECV;
    w.num_sge = static_cast<uint16_t>(sges.size());
    w.wr_id = wr_id;
    for (size_t i = 0; i < sges.size() && i < SNIC_MAX_SGE; i++)
        w.sge[i] = {sges[i].va, sges[i].key, sges[i].length, 0};
    write_wqe(qp.rq + qp.rq_pi % qp.rq_entries * qp.stride, w);
    std::atomic_ref(machine.at<snic_qp_record>(qp.record)->rq_pi).store(++qp.rq_pi, std::memory_order_release);
}

bool Guest::poll(GuestCq &cq, snic_cqe &out) {
    auto *slot = machine.at<snic_cqe>(cq.ring + cq.ci % cq.entries * sizeof(snic_cqe));
    if (std::atomic_ref(slot->phase).load(std::memory_order_acquire) != cq.ci / cq.entries + 1) return false;
    out = *slot;
    std::atomic_ref(machine.at<snic_cq_record>(cq.record)->ci).store(++cq.ci, std::memory_order_release);
    return true;
}

bool Guest::wait(GuestCq &cq, snic_cqe &out) {
    return machine.run([&] { return poll(cq, out); });
}

void Guest::poll_events() {
    for (;;) {
        auto *slot = machine.at<snic_eqe>(eq_ring + eq_ci % kEqEntries * sizeof(snic_eqe));
        if (std::atomic_ref(slot->phase).load(std::memory_order_acquire) != eq_ci / kEqEntries + 1) return;
        events.push_back(*slot);
        std::atomic_ref(machine.at<snic_eq_record>(eq_record)->ci).store(++eq_ci, std::memory_order_release);
    }
}

bool Guest::take_event(uint8_t type, snic_eqe &out) {
    poll_events();
    for (auto it = events.begin(); it != events.end(); ++it) {
        if (it->type != type) continue;
        out = *it;
        events.erase(it);
        return true;
    }
    return false;
}

bool Guest::wait_event(uint8_t type, snic_eqe &out, const std::function<bool()> &or_else) {
    return machine.run([&] { return take_event(type, out) || (or_else && or_else()); });
}

bool connect(Guest &a, GuestQp &qa, Guest &b, GuestQp &qb, uint16_t port) {
    snic_cmd_listen l = {};
    l.port = port;
    l.backlog = 8;
    l.eqn = b.eqn;
    Completion lc = b.command(SNIC_CMD_LISTEN, l);
    if (lc.status != SNIC_OK) return false;
    snic_cmd_connect c = {};
    c.qpn = qa.qpn;
    c.dst_ip = b.machine.ip();
    c.dst_port = port;
    c.src_port = 1;
    c.timeout_ms = 60000;
    if (a.command(SNIC_CMD_CONNECT, c).status != SNIC_OK) return false;
    snic_eqe e;
    bool refused = false;
    if (!b.wait_event(SNIC_EV_CONN_REQUEST, e, [&] { return refused = a.take_event(SNIC_EV_CONN_FAILED, e); }) ||
        refused) {
        b.handle_command(SNIC_CMD_UNLISTEN, static_cast<uint32_t>(lc.result[0]));
        return false;
    }
    snic_cmd_reply r = {};
    r.request = e.request;
    r.qpn = qb.qpn;
    if (b.command(SNIC_CMD_ACCEPT, r).status != SNIC_OK) return false;
    if (!a.wait_event(SNIC_EV_CONN_ESTABLISHED, e) || !b.wait_event(SNIC_EV_CONN_ESTABLISHED, e)) return false;
    return b.handle_command(SNIC_CMD_UNLISTEN, static_cast<uint32_t>(lc.result[0])).status == SNIC_OK;
}

bool carries_data(Guest &a, GuestCq &acq, Guest &b, GuestCq &bcq, uint16_t port) {
    constexpr uint32_t kBytes = 8192;
    GuestQp qa = a.create_qp(acq, acq), qb = b.create_qp(bcq, bcq);
    if (!qa.qpn || !qb.qpn || !connect(a, qa, b, qb, port)) return false;
    uint64_t from = a.alloc(kBytes), to = b.alloc(kBytes);
    std::memset(a.machine.ram(from), 0x5A, kBytes);
    uint64_t key = a.register_mr(from, kBytes, SNIC_ACCESS_LOCAL_READ);
    uint64_t rkey = b.register_mr(to, kBytes, SNIC_ACCESS_ALL, qb.qpn);
    a.post_send(qa, SNIC_WR_RDMA_WRITE, 7, {{from, key, kBytes}}, to, rkey);
    snic_cqe c;
    while (a.wait(acq, c))
        if (c.qpn == qa.qpn)
            return c.status == SNIC_WC_SUCCESS && std::memcmp(a.machine.ram(from), b.machine.ram(to), kBytes) == 0;
    return false;
}

}  // namespace sim
