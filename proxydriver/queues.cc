// SPDX-License-Identifier: GPL-2.0-or-later
//
// queues.cc: completion queues and queue pairs: their memory, their mapping, their life at the NIC.
#include "context.h"

namespace sanproxy {

namespace {

constexpr size_t record_bytes = SNIC_PAGE_SIZE; // a page of its own, so that rings start at page boundaries

// The power of two that holds n, within [least, most]; 0: more than most.
uint32_t ring_size(uint32_t n, uint32_t least, uint32_t most) {
    uint32_t size = least;
    while (size < n && size <= most / 2) size *= 2;
    return size < n ? 0 : size;
}

uint32_t stride_for(uint32_t sges) {
    uint32_t stride = SNIC_MIN_STRIDE;
    while (stride < SNIC_WQE_HEADER_SIZE + sges * sizeof(snic_sge)) stride *= 2;
    return stride;
}

uint32_t create_cq(CompletionQueue &cq, sanproxy_create_cq &r) {
    Context &context = *cq.context;
    Device &dev = *context.device;
    const size_t ring_bytes = static_cast<size_t>(r.entries) * sizeof(snic_cqe);
    PageList list;
    if (!cq.pages.alloc(record_bytes + ring_bytes) || !cq.pages.describe(list, record_bytes, ring_bytes) ||
        !cq.pages.map_user())
        return SANPROXY_NO_RESOURCES;
    Command command(SNIC_CMD_CREATE_CQ);
    auto &body = command.body<snic_cmd_create_cq>();
    body.entries = r.entries;
    body.eqn = dev.eqn;
    body.pages = list.list();
    body.record = cq.pages.bus(0);
    body.doorbell_page = context.doorbell_page;
    body.cookie = cq.id;
    const uint32_t result = run(context, command, r.header);
    if (result != SANPROXY_OK) return result;
    cq.cqn = static_cast<uint32_t>(command.cpl.result[0]);
    r.id = cq.id;
    r.cqn = cq.cqn;
    r.record_va = cq.pages.user_va();
    r.ring_va = r.record_va + record_bytes;
    return SANPROXY_OK;
}

uint32_t create_qp(QueuePair &qp, sanproxy_create_qp &r) {
    Context &context = *qp.context;
    Rings rings = {context.pd, qp.send_cq->cqn, qp.recv_cq->cqn, context.doorbell_page, r.sq_entries, r.rq_entries,
                   r.sq_stride, r.rq_stride, r.remote_access, qp.id};
    RingLists lists;
    if (!build_rings(*context.device, rings, qp.pages, lists) || !qp.pages.map_user()) return SANPROXY_NO_RESOURCES;
    Command command(SNIC_CMD_CREATE_QP);
    command.body<snic_cmd_create_qp>().params = lists.params.bus();
    const uint32_t result = run(context, command, r.header);
    if (result != SANPROXY_OK) return result;
    qp.qpn = static_cast<uint32_t>(command.cpl.result[0]);
    qp.remote_access = r.remote_access;
    r.id = qp.id;
    r.qpn = qp.qpn;
    describe_rings(rings, qp.pages, r);
    return SANPROXY_OK;
}

// Ends an object that has been published but not finished.
void abandon(Context &context, Object *object) {
    if (!object_withdraw(context, object)) return;
    object_close(object);
    object_release(object);
}

} // namespace

bool use_cq(Context &context, CompletionQueue *cq) {
    SpinGuard guard(context.device->lock);
    if (context.device->table.find(cq->id) != cq) return false;
    ++cq->users;
    InterlockedIncrement(&cq->references);
    return true;
}

void unuse_cq(CompletionQueue *&cq) {
    if (!cq) return;
    {
        SpinGuard guard(cq->context->device->lock);
        --cq->users;
    }
    object_release(cq);
    cq = nullptr;
}

namespace {
size_t rq_offset(const Rings &rings) {
    return record_bytes + page_round_up(static_cast<size_t>(rings.sq_entries) * rings.sq_stride);
}
} // namespace

bool build_rings(Device &dev, const Rings &rings, SharedPages &pages, RingLists &lists) {
    const size_t sq_bytes = static_cast<size_t>(rings.sq_entries) * rings.sq_stride;
    const size_t rq_bytes = static_cast<size_t>(rings.rq_entries) * rings.rq_stride;
    if (!pages.alloc(rq_offset(rings) + rq_bytes) || !pages.describe(lists.sq, record_bytes, sq_bytes) ||
        !pages.describe(lists.rq, rq_offset(rings), rq_bytes) || !lists.params.alloc(sizeof(snic_qp_params)) ||
        !pages.poke(offsetof(snic_qp_record, kick), 1))
        return false;
    auto &p = *lists.params.as<snic_qp_params>();
    p.pd = rings.pd;
    p.send_cqn = rings.send_cqn;
    p.recv_cqn = rings.recv_cqn;
    p.doorbell_page = rings.doorbell_page;
    p.eqn = dev.eqn;
    p.sq_entries = rings.sq_entries;
    p.rq_entries = rings.rq_entries;
    p.sq_stride = rings.sq_stride;
    p.rq_stride = rings.rq_stride;
    p.rnr_retry = 7; // a message for which no receive is posted yet waits: it must never end the connection
    p.retry_count = 7;
    p.access = rings.access;
    p.record = pages.bus(0);
    p.cookie = rings.cookie;
    p.sq_pages = lists.sq.list();
    p.rq_pages = lists.rq.list();
    return true;
}

void describe_rings(const Rings &rings, const SharedPages &pages, sanproxy_create_qp &r) {
    r.record_va = pages.user_va();
    r.sq_va = r.record_va + record_bytes;
    r.rq_va = r.record_va + rq_offset(rings);
}

bool check_rings(Context &context, sanproxy_create_qp &r) {
    const snic_device_info &info = context.device->info;
    r.sq_entries = ring_size(r.sq_entries, 2, info.max_wqe);
    r.rq_entries = ring_size(r.rq_entries, 2, info.max_wqe);
    const uint32_t max_sge = info.max_sge < SNIC_MAX_SGE ? info.max_sge : SNIC_MAX_SGE;
    if (r.sq_entries == 0 || r.rq_entries == 0 || r.max_send_sge == 0 || r.max_send_sge > max_sge ||
        r.max_recv_sge == 0 || r.max_recv_sge > max_sge ||
        (r.remote_access & ~(SNIC_ACCESS_REMOTE_READ | SNIC_ACCESS_REMOTE_WRITE)))
        return false;
    r.sq_stride = stride_for(r.max_send_sge);
    r.rq_stride = stride_for(r.max_recv_sge);
    return true;
}

uint32_t do_create_cq(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_create_cq *>(request);
    r.entries = ring_size(r.entries, 16, context.device->info.max_cqe);
    if (r.entries == 0) return SANPROXY_BAD_PARAMETER;
    auto *cq = pool_new<CompletionQueue>();
    if (!cq) return SANPROXY_NO_RESOURCES;
    cq->cookie = r.cookie;
    // Published first, since the id is the NIC's cookie for it; its mutex keeps a close waiting until it is complete.
    cq->mutex.acquire();
    InterlockedIncrement(&cq->references);
    if (!object_publish(context, cq)) {
        cq->mutex.release();
        pool_delete(cq);
        return SANPROXY_NO_RESOURCES;
    }
    const uint32_t result = create_cq(*cq, r);
    cq->mutex.release();
    if (result != SANPROXY_OK) abandon(context, cq);
    object_release(cq);
    return result;
}

uint32_t do_create_qp(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_create_qp *>(request);
    if (!check_rings(context, r)) return SANPROXY_BAD_PARAMETER;
    Ref<CompletionQueue> send_cq(context, r.send_cq), recv_cq(context, r.recv_cq);
    if (!send_cq || !recv_cq) return SANPROXY_NOT_FOUND;
    auto *qp = pool_new<QueuePair>();
    if (!qp) return SANPROXY_NO_RESOURCES;
    qp->cookie = r.cookie;
    qp->mutex.acquire();
    InterlockedIncrement(&qp->references);
    if (!object_publish(context, qp)) {
        qp->mutex.release();
        pool_delete(qp);
        return SANPROXY_NO_RESOURCES;
    }
    uint32_t result = SANPROXY_NOT_FOUND;
    if (use_cq(context, send_cq.get())) {
        qp->send_cq = send_cq.get();
        if (use_cq(context, recv_cq.get())) {
            qp->recv_cq = recv_cq.get();
            result = create_qp(*qp, r);
        }
    }
    qp->mutex.release();
    if (result != SANPROXY_OK) abandon(context, qp);
    object_release(qp);
    return result;
}

// With qp.mutex held. The peer sees a closed connection; when this returns the NIC uses no memory through the QP.
void stop_qp(QueuePair &qp) {
    if (qp.dead || qp.qpn == 0) return;
    Device &dev = *qp.context->device;
    Command modify(SNIC_CMD_MODIFY_QP);
    modify.body<snic_cmd_modify_qp>() = {qp.qpn, SNIC_QP_ERROR, {}};
    hardware_release(dev, modify);
    Command destroy(SNIC_CMD_DESTROY_QP);
    destroy.body<snic_cmd_handle>().handle = qp.qpn;
    hardware_release(dev, destroy);
    qp.dead = true;
}

void close_qp(QueuePair &qp) {
    stop_qp(qp);
    qp.pages.unmap_user();
    unuse_cq(qp.send_cq);
    unuse_cq(qp.recv_cq);
}

void close_cq(CompletionQueue &cq) {
    if (cq.cqn) {
        Command command(SNIC_CMD_DESTROY_CQ);
        command.body<snic_cmd_handle>().handle = cq.cqn;
        hardware_release(*cq.context->device, command);
    }
    cq.pages.unmap_user();
}

uint32_t do_stop_qp(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_object *>(request);
    Ref<QueuePair> qp(context, r.id);
    if (!qp) return SANPROXY_NOT_FOUND;
    MutexGuard guard(qp->mutex);
    if (qp->context != &context) return SANPROXY_NOT_FOUND; // handed over meanwhile
    stop_qp(*qp.get());
    return SANPROXY_OK;
}

} // namespace sanproxy
