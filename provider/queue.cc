// SPDX-License-Identifier: GPL-2.0-or-later
//
// queue.cc: the queue pair of a connection, as snic_hw.h section 9 describes it: creation through the driver, posting without
// it. Operations beyond the depth of a ring wait here, in order.
#include "provider.h"

namespace sanprov {

namespace {

constexpr uint32_t queue_depth = 64;
constexpr uint32_t operations_per_block = 16;

struct OperationBlock {
    OperationBlock *next;
    Operation operations[operations_per_block];
};

bool ring_init(Ring &ring, uint64_t base, uint32_t entries, uint32_t stride, volatile uint32_t *pi_record) {
    ring.base = reinterpret_cast<uint8_t *>(base);
    ring.entries = entries;
    ring.stride = stride;
    ring.pi_record = pi_record;
    ring.slots = static_cast<Operation **>(heap_alloc(entries * sizeof(Operation *)));
    return ring.slots != nullptr;
}

void write_wqe(Ring &ring, Operation *op) {
    const uint32_t index = ring.pi & (ring.entries - 1);
    auto *wqe = reinterpret_cast<snic_wqe *>(ring.base + static_cast<size_t>(index) * ring.stride);
    wqe->opcode = op->opcode;
    wqe->flags = op->wqe_flags;
    wqe->num_sge = op->sges;
    wqe->imm = 0;
    wqe->wr_id = op->serial;
    wqe->remote_va = op->remote_va;
    wqe->rkey = op->rkey;
    wqe->reserved = 0;
    for (uint16_t i = 0; i < op->sges; ++i) wqe->sge[i] = op->sge[i];
    ring.slots[index] = op;
    ++ring.pi;
}

// Moves waiting operations into the ring as far as it has room, and tells the NIC once.
void pump(Socket &s, Ring &ring) {
    bool moved = false;
    while (!ring.full() && !ring.waiting.empty()) {
        write_wqe(ring, ring.waiting.pop());
        moved = true;
    }
    if (!moved) return;
    __atomic_store_n(ring.pi_record, ring.pi, __ATOMIC_RELEASE);
    const bool lost = s.state == State::disconnected;
    if (&ring != &s.sq && !lost) return; // receives need no doorbell while there is a connection
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (lost || __atomic_load_n(&s.qp_record->kick, __ATOMIC_RELAXED)) process->nic.ring(SNIC_DB_SQ, s.qpn);
}

void release_holds(Operation *op) {
    for (uint16_t i = 0; i < op->sges; ++i) --op->registrations[i]->in_use;
    op->sges = 0;
}

void take(Ring &ring, Queue<Operation> &out) {
    for (; ring.retired != ring.pi; ++ring.retired) {
        Operation *&slot = ring.slots[ring.retired & (ring.entries - 1)];
        if (slot) {
            release_holds(slot);
            out.push(slot);
        }
        slot = nullptr;
    }
    while (Operation *op = ring.waiting.pop()) {
        release_holds(op);
        out.push(op);
    }
}

} // namespace

namespace {

int create_cq(Socket &s) {
    sanproxy_create_cq cq = {};
    cq.entries = 2 * queue_depth;
    cq.cookie = s.handle;
    const uint32_t result = process->nic.request(SANPROXY_IOCTL_CREATE_CQ, cq);
    if (result != SANPROXY_OK) return winsock_error(result);
    Guard guard(s.lock);
    s.cq_id = cq.id;
    s.cqn = cq.cqn;
    s.cq_entries = cq.entries;
    s.cq_ci = 0;
    s.armed = false;
    s.cq_ring = reinterpret_cast<const snic_cqe *>(cq.ring_va);
    s.cq_record = reinterpret_cast<snic_cq_record *>(cq.record_va);
    return 0;
}

sanproxy_create_qp wanted_qp(const Socket &s) {
    const sanproxy_query &limits = process->nic.limits();
    sanproxy_create_qp qp = {};
    qp.send_cq = qp.recv_cq = s.cq_id;
    qp.sq_entries = qp.rq_entries = queue_depth;
    qp.max_send_sge = qp.max_recv_sge = limits.max_sge < SNIC_MAX_SGE ? limits.max_sge : SNIC_MAX_SGE;
    qp.remote_access = SNIC_ACCESS_REMOTE_READ | SNIC_ACCESS_REMOTE_WRITE;
    qp.cookie = s.handle;
    return qp;
}

bool use_qp(Socket &s, const sanproxy_create_qp &qp) {
    s.qp_id = qp.id;
    s.qpn = qp.qpn;
    s.owner.tag = qp.id;
    s.qp_record = reinterpret_cast<snic_qp_record *>(qp.record_va);
    return ring_init(s.sq, qp.sq_va, qp.sq_entries, qp.sq_stride, &s.qp_record->sq_pi) &&
           ring_init(s.rq, qp.rq_va, qp.rq_entries, qp.rq_stride, &s.qp_record->rq_pi);
}

} // namespace

int queues_create(Socket &s) {
    int error = create_cq(s);
    if (error) return error;
    sanproxy_create_qp qp = wanted_qp(s);
    const uint32_t result = process->nic.request(SANPROXY_IOCTL_CREATE_QP, qp);
    if (result != SANPROXY_OK) error = winsock_error(result);
    else if (!use_qp(s, qp)) error = WSAENOBUFS;
    if (error) queues_destroy(s);
    return error;
}

int queues_claim(Socket &s, uint32_t token) {
    int error = create_cq(s);
    sanproxy_claim claim = {};
    claim.token = token;
    // Also when that has failed: the token is used up, and the peer learns that the connection has ended.
    if (!error) claim.queues = wanted_qp(s);
    const uint32_t result = process->nic.request(SANPROXY_IOCTL_CLAIM, claim);
    if (!error && result != SANPROXY_OK) error = result == SANPROXY_GONE ? WSAECONNRESET : winsock_error(result);
    if (!error && !use_qp(s, claim.queues)) error = WSAENOBUFS;
    if (error) queues_destroy(s);
    return error;
}

void queues_destroy(Socket &s) {
    process->nic.close_object(s.qp_id);
    process->nic.close_object(s.cq_id);
    s.qp_id = s.cq_id = s.qpn = s.cqn = 0;
    s.qp_record = nullptr;
    s.cq_ring = nullptr;
    s.cq_record = nullptr;
    heap_free(s.sq.slots);
    heap_free(s.rq.slots);
    s.sq = s.rq = {};
    for (auto *block = static_cast<OperationBlock *>(s.operation_blocks); block;) {
        OperationBlock *next = block->next;
        heap_free(block);
        block = next;
    }
    s.operation_blocks = nullptr;
    s.free_operations = nullptr;
}

Operation *operation_new(Socket &s) {
    if (!s.free_operations) {
        auto *block = static_cast<OperationBlock *>(heap_alloc(sizeof(OperationBlock)));
        if (!block) return nullptr;
        block->next = static_cast<OperationBlock *>(s.operation_blocks);
        s.operation_blocks = block;
        for (Operation &op : block->operations) operation_free(s, &op);
    }
    Operation *op = s.free_operations;
    s.free_operations = op->next;
    op->next = nullptr;
    op->overlapped = nullptr;
    op->serial = ++s.serial;
    op->remote_va = op->rkey = 0;
    op->bytes = op->flags = 0;
    op->wqe_flags = SNIC_WQE_SIGNALED;
    op->sges = 0;
    op->notified = false;
    return op;
}

void operation_free(Socket &s, Operation *op) {
    release_holds(op);
    op->next = s.free_operations;
    s.free_operations = op;
}

void post(Socket &s, Ring &ring, Operation *op) {
    if (op->notified) ++s.notified_pending;
    ring.waiting.push(op);
    pump(s, ring);
}

void flush_late(Socket &s) {
    if (!s.qp_record) return;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    process->nic.ring(SNIC_DB_SQ, s.qpn);
}

Operation *retire(Socket &s, Ring &ring, uint32_t index, uint64_t serial) {
    if (index - ring.retired >= ring.pi - ring.retired) return nullptr; // of before take_all, or nonsense
    Operation *&slot = ring.slots[index & (ring.entries - 1)];
    Operation *op = slot;
    if (!op || op->serial != serial) return nullptr;
    slot = nullptr;
    while (ring.retired != ring.pi && !ring.slots[ring.retired & (ring.entries - 1)]) ++ring.retired;
    pump(s, ring);
    return op;
}

void hold_back(Socket &s, Queue<Operation> &waiting) {
    waiting = s.rq.waiting;
    s.rq.waiting = {};
}

void take_all(Socket &s, Queue<Operation> &sends, Queue<Operation> &receives) {
    take(s.sq, sends);
    take(s.rq, receives);
    s.notified_pending = 0;
}

} // namespace sanprov
