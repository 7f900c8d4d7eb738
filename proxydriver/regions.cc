// SPDX-License-Identifier: GPL-2.0-or-later
//
// regions.cc: memory of a process that the NIC may use. A region passes through: locked; registered; with remote rights also
// exposed to the peer of one QP, revoked, exposed again. Order of release: the NIC forgets it (and has finished with it),
// then the pages are unlocked, then the range is unsecured.
#include "context.h"

namespace sanproxy {

namespace {

constexpr uint32_t remote_rights = SNIC_ACCESS_REMOTE_READ | SNIC_ACCESS_REMOTE_WRITE;
constexpr uint32_t write_rights = SNIC_ACCESS_LOCAL_WRITE | SNIC_ACCESS_REMOTE_WRITE;

uint32_t nic_register(Region &region, uint32_t access, uint32_t bound_qpn, sanproxy_header &header) {
    Context &context = *region.context;
    PageList list;
    if (!region.range.describe(list)) return SANPROXY_NO_RESOURCES;
    Command command(SNIC_CMD_REGISTER_MR);
    auto &body = command.body<snic_cmd_register_mr>();
    body.pd = context.pd;
    body.access = access;
    body.va = region.va;
    body.length = region.length;
    body.pages = list.list();
    body.bound_qpn = bound_qpn;
    const uint32_t result = run(context, command, header);
    if (result == SANPROXY_OK) region.key = command.cpl.result[0];
    return result;
}

uint32_t nic_modify(Region &region, uint32_t access, uint32_t bound_qpn, sanproxy_header &header) {
    Command command(SNIC_CMD_MODIFY_MR);
    auto &body = command.body<snic_cmd_modify_mr>();
    body.key = region.key;
    body.access = access;
    body.bound_qpn = bound_qpn;
    const uint32_t result = run(*region.context, command, header);
    if (result == SANPROXY_OK) region.key = command.cpl.result[0];
    return result;
}

// Afterwards the NIC does not know the region, in any case: if need be it has been reset.
void nic_deregister(Region &region) {
    if (region.key == 0) return;
    Command command(SNIC_CMD_DEREGISTER_MR);
    command.body<snic_cmd_deregister_mr>().key = region.key;
    hardware_release(*region.context->device, command);
    region.key = 0;
}

// The QP number that remote rights are bound to; 0 (which no QP has) if `id` names none that is alive.
uint32_t binding(Context &context, uint32_t id) {
    Ref<QueuePair> qp(context, id);
    if (!qp) return 0;
    MutexGuard guard(qp->mutex);
    return qp->dead || qp->context != &context ? 0 : qp->qpn;
}

} // namespace

uint32_t do_register(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_register *>(request);
    const bool remote = r.access & remote_rights;
    if (r.access == 0 || (r.access & ~SNIC_ACCESS_ALL) || remote != (r.qp != 0)) return SANPROXY_BAD_PARAMETER;
    if (r.length > context.device->info.max_mr_size) return SANPROXY_NO_RESOURCES;
    uint32_t bound = SNIC_QPN_ANY;
    if (remote && (bound = binding(context, r.qp)) == 0) return SANPROXY_NOT_FOUND;

    auto *region = pool_new<Region>();
    if (!region) return SANPROXY_NO_RESOURCES;
    region->context = &context;
    region->access = r.access;
    region->va = r.va;
    region->length = r.length;
    uint32_t result = SANPROXY_OK;
    switch (region->range.lock(context.writers, r.va, r.length, r.access & write_rights)) {
    case LockResult::ok: break;
    case LockResult::bad_address: result = SANPROXY_BAD_ADDRESS; break;
    case LockResult::no_resources: result = SANPROXY_NO_RESOURCES; break;
    }
    if (result == SANPROXY_OK) result = nic_register(*region, r.access, bound, r.header);
    if (result == SANPROXY_OK) {
        region->exposed = remote;
        r.key = region->key;
        if (object_publish(context, region)) {
            r.id = region->id;
            return SANPROXY_OK;
        }
        result = SANPROXY_NO_RESOURCES;
    }
    close_region(*region);
    pool_delete(region);
    return result;
}

uint32_t do_expose(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_expose *>(request);
    Ref<Region> region(context, r.id);
    if (!region) return SANPROXY_NOT_FOUND;
    if (!(r.access & remote_rights) || (r.access & ~region->access)) return SANPROXY_BAD_PARAMETER;
    const uint32_t bound = binding(context, r.qp);
    if (bound == 0) return SANPROXY_NOT_FOUND;
    MutexGuard guard(region->mutex);
    if (region->dead) return SANPROXY_GONE;
    if (region->exposed) return SANPROXY_BAD_STATE;
    const uint32_t result = region->key ? nic_modify(*region.get(), r.access, bound, r.header)
                                        : nic_register(*region.get(), r.access, bound, r.header);
    if (result != SANPROXY_OK) return result;
    region->exposed = true;
    r.key = region->key;
    return SANPROXY_OK;
}

uint32_t do_revoke(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_object *>(request);
    Ref<Region> region(context, r.id);
    if (!region) return SANPROXY_NOT_FOUND;
    MutexGuard guard(region->mutex);
    if (region->dead) return SANPROXY_GONE;
    if (!region->exposed) return SANPROXY_OK;
    const uint32_t local = region->access & ~remote_rights;
    uint32_t result = SANPROXY_UNSUPPORTED;
    if (local && (context.device->info.caps & SNIC_CAP_REKEY))
        result = nic_modify(*region.get(), local, SNIC_QPN_ANY, r.header);
    // The kind of NIC without a cheap way, or a failure of the cheap way: access must end in any case.
    if (result != SANPROXY_OK) nic_deregister(*region.get());
    r.header.nic_status = 0;
    region->exposed = false;
    return SANPROXY_OK;
}

// In the process, with the region's mutex held or before it was published.
void close_region(Region &region) {
    // A locked page cannot outlive its process. Where the NIC does not answer, a reset, which makes it forget all memory, is the
    // only way to be sure that it writes no more.
    nic_deregister(region);
    region.range.unlock();
}

} // namespace sanproxy
