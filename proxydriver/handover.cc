// SPDX-License-Identifier: GPL-2.0-or-later
//
// handover.cc: connections and listeners on their way from one process to another. An offered object belongs to limbo: a
// context without a process, with a protection domain and a completion queue of its own, so that nothing at the NIC leads
// back to the process that gave it up. A connection in limbo has no receives: messages wait at the peer. It stays there
// until the target process claims it with the token, or ends (then it is closed, and the peer sees a reset).
//
// Tokens pass through user mode, in the switch's structures. A token is good once, and only in the process that it was made
// for: the process itself is compared, not its number. That it cannot be guessed, either, is the second line of defence.
#include "context.h"

namespace sanproxy {

namespace {

constexpr uint32_t max_offers = 256;
constexpr uint32_t limbo_entries = 2, limbo_cq_entries = 16; // nothing is ever posted or completed there

struct Offer {
    LIST_ENTRY link;
    uint32_t token;
    uint32_t kind;
    PEPROCESS target; // referenced
    HANDLE target_id;
    Object *object; // referenced
    uint64_t connection;
    uint8_t state[SANPROXY_HANDOVER_STATE];
};

uint64_t mix(uint64_t n) {
    n = (n ^ (n >> 30)) * 0xBF58476D1CE4E5B9ull;
    n = (n ^ (n >> 27)) * 0x94D049BB133111EBull;
    return n ^ (n >> 31);
}

} // namespace

struct Limbo {
    Context context;
    uint32_t pd = 0, cqn = 0;
    SharedPages cq_pages;
    // Under the device's lock:
    LIST_ENTRY offers;
    uint32_t count = 0;
    uint64_t connections = 0;
    uint64_t secret = 0;
};

namespace {

// Under the device's lock.
uint32_t make_token(Limbo &limbo) {
    for (;;) {
        limbo.secret = mix(limbo.secret + static_cast<uint64_t>(KeQueryPerformanceCounter(nullptr).QuadPart));
        const uint32_t token = static_cast<uint32_t>(mix(limbo.secret ^ 0x9E3779B97F4A7C15ull) >> 32);
        bool taken = token == 0;
        for (LIST_ENTRY *e = limbo.offers.Flink; e != &limbo.offers && !taken; e = e->Flink)
            taken = CONTAINING_RECORD(e, Offer, link)->token == token;
        if (!taken) return token;
    }
}

// Under the device's lock. The offer that this process may look at.
Offer *find_offer(Limbo &limbo, uint32_t token) {
    for (LIST_ENTRY *e = limbo.offers.Flink; e != &limbo.offers; e = e->Flink) {
        auto *offer = CONTAINING_RECORD(e, Offer, link);
        if (offer->token == token && offer->target == PsGetCurrentProcess()) return offer;
    }
    return nullptr;
}

// Under the device's lock.
void take_offer(Limbo &limbo, Offer *offer) {
    RemoveEntryList(&offer->link);
    --limbo.count;
}

// Taken off the list before.
void free_offer(Offer *offer) {
    ObDereferenceObject(offer->target);
    object_release(offer->object);
    pool_free(offer);
}

// What nobody wants any more: the peer sees a reset.
void end_object(Limbo &limbo, Object *object) {
    if (!object_withdraw(limbo.context, object)) return;
    object_close(object);
    object_release(object);
}

uint32_t rebind(Context &context, QueuePair &qp, const RingLists &lists, sanproxy_header &header) {
    Command command(SNIC_CMD_REBIND_QP);
    auto &body = command.body<snic_cmd_rebind_qp>();
    body.qpn = qp.qpn;
    body.params = lists.params.bus();
    return run(context, command, header);
}

// With qp.mutex held, in the process that gives it up. Afterwards the NIC knows nothing of that process through the QP.
uint32_t qp_to_limbo(Context &context, QueuePair &qp, sanproxy_header &header) {
    Device &dev = *context.device;
    Limbo &limbo = *dev.limbo;
    SharedPages pages;
    RingLists lists;
    const Rings rings = {limbo.pd, limbo.cqn, limbo.cqn, 0, limbo_entries, limbo_entries, SNIC_MIN_STRIDE, SNIC_MIN_STRIDE,
                         0, qp.id};
    if (!build_rings(dev, rings, pages, lists)) return SANPROXY_NO_RESOURCES;
    const uint32_t result = rebind(context, qp, lists, header);
    if (result != SANPROXY_OK) return result;
    qp.pages.swap(pages);
    pages.unmap_user();
    unuse_cq(qp.send_cq);
    unuse_cq(qp.recv_cq);
    return SANPROXY_OK;
}

// With qp.mutex held, in the process that takes it.
uint32_t qp_from_limbo(Context &context, QueuePair &qp, sanproxy_create_qp &r) {
    Device &dev = *context.device;
    if (!check_rings(context, r)) return SANPROXY_BAD_PARAMETER;
    Ref<CompletionQueue> send_cq(context, r.send_cq), recv_cq(context, r.recv_cq);
    if (!send_cq || !recv_cq) return SANPROXY_NOT_FOUND;
    CompletionQueue *send = use_cq(context, send_cq.get()) ? send_cq.get() : nullptr;
    CompletionQueue *recv = use_cq(context, recv_cq.get()) ? recv_cq.get() : nullptr;
    SharedPages pages;
    RingLists lists;
    uint32_t result = SANPROXY_NOT_FOUND;
    if (send && recv) {
        const Rings rings = {context.pd, send->cqn, recv->cqn, context.doorbell_page, r.sq_entries, r.rq_entries,
                             r.sq_stride, r.rq_stride, r.remote_access, qp.id};
        result = build_rings(dev, rings, pages, lists) && pages.map_user() ? rebind(context, qp, lists, r.header)
                                                                            : SANPROXY_NO_RESOURCES;
        if (result == SANPROXY_OK) describe_rings(rings, pages, r);
    }
    if (result != SANPROXY_OK) {
        pages.unmap_user();
        unuse_cq(send);
        unuse_cq(recv);
        return result == SANPROXY_BAD_STATE ? SANPROXY_GONE : result; // the peer has gone while it was on its way
    }
    qp.pages.swap(pages);
    qp.send_cq = send;
    qp.recv_cq = recv;
    qp.remote_access = r.remote_access;
    r.id = qp.id;
    r.qpn = qp.qpn;
    return SANPROXY_OK;
}

// Takes the first offer that `wanted` accepts off the list.
template <typename Wanted> Offer *take_first(Device &dev, Wanted wanted) {
    Limbo &limbo = *dev.limbo;
    SpinGuard guard(dev.lock);
    for (LIST_ENTRY *e = limbo.offers.Flink; e != &limbo.offers; e = e->Flink) {
        auto *offer = CONTAINING_RECORD(e, Offer, link);
        if (!wanted(*offer)) continue;
        take_offer(limbo, offer);
        return offer;
    }
    return nullptr;
}

template <typename Wanted> void drop_offers(Device &dev, Wanted wanted) {
    while (Offer *offer = take_first(dev, wanted)) {
        end_object(*dev.limbo, offer->object);
        free_offer(offer);
    }
}

} // namespace

NTSTATUS limbo_start(Device &dev) {
    auto *limbo = pool_new<Limbo>();
    if (!limbo) return STATUS_INSUFFICIENT_RESOURCES;
    InitializeListHead(&limbo->offers);
    limbo->context.device = &dev;
    KeInitializeEvent(&limbo->context.teardown_done, NotificationEvent, FALSE);
    InitializeListHead(&limbo->context.objects);
    InitializeListHead(&limbo->context.ready);
    LARGE_INTEGER time;
    KeQuerySystemTime(&time);
    limbo->secret = mix(static_cast<uint64_t>(time.QuadPart)) ^ mix(reinterpret_cast<uint64_t>(limbo)) ^ mix(dev.info.guid);
    dev.limbo = limbo;

    Command pd(SNIC_CMD_CREATE_PD);
    if (dev.admin.execute(pd) != SNIC_OK) return STATUS_IO_DEVICE_ERROR;
    limbo->pd = static_cast<uint32_t>(pd.cpl.result[0]);
    PageList list;
    constexpr size_t ring_bytes = limbo_cq_entries * sizeof(snic_cqe);
    if (!limbo->cq_pages.alloc(page_size + ring_bytes) || !limbo->cq_pages.describe(list, page_size, ring_bytes))
        return STATUS_INSUFFICIENT_RESOURCES;
    Command cq(SNIC_CMD_CREATE_CQ);
    auto &body = cq.body<snic_cmd_create_cq>();
    body.entries = limbo_cq_entries;
    body.pages = list.list();
    body.record = limbo->cq_pages.bus(0);
    if (dev.admin.execute(cq) != SNIC_OK) return STATUS_IO_DEVICE_ERROR;
    limbo->cqn = static_cast<uint32_t>(cq.cpl.result[0]);
    return STATUS_SUCCESS;
}

// While the NIC still takes commands. What limbo has at the NIC goes by destroying it here, so that its memory is free.
void limbo_stop(Device &dev) {
    Limbo *limbo = dev.limbo;
    if (!limbo) return;
    drop_offers(dev, [](const Offer &) { return true; });
    if (limbo->cqn) {
        Command cq(SNIC_CMD_DESTROY_CQ);
        cq.body<snic_cmd_handle>().handle = limbo->cqn;
        hardware_release(dev, cq);
    }
    if (limbo->pd) {
        Command pd(SNIC_CMD_DESTROY_PD);
        pd.body<snic_cmd_pd>().pd = limbo->pd;
        hardware_release(dev, pd);
    }
    dev.limbo = nullptr;
    pool_delete(limbo);
}

void limbo_process_ended(Device &dev, HANDLE process_id) {
    if (dev.limbo) drop_offers(dev, [process_id](const Offer &offer) { return offer.target_id == process_id; });
}

uint32_t do_offer(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_offer *>(request);
    Device &dev = *context.device;
    Limbo &limbo = *dev.limbo;
    Object *object = object_lookup(dev, &context, r.id);
    if (!object) return SANPROXY_NOT_FOUND;
    auto *offer = static_cast<Offer *>(pool_alloc(sizeof(Offer)));
    uint32_t result = offer ? SANPROXY_NOT_FOUND : SANPROXY_NO_RESOURCES;
    const bool right_kind = object->kind == Kind::qp || object->kind == Kind::listener;
    if (!offer || !right_kind ||
        !NT_SUCCESS(PsLookupProcessByProcessId(reinterpret_cast<HANDLE>(static_cast<uintptr_t>(r.process)), &offer->target))) {
        pool_free(offer);
        object_release(object);
        return result;
    }
    offer->object = object;
    offer->target_id = reinterpret_cast<HANDLE>(static_cast<uintptr_t>(r.process));
    offer->kind = static_cast<uint32_t>(object->kind);
    memcpy(offer->state, r.state, sizeof offer->state);

    MutexGuard guard(object->mutex);
    result = object->dead || object->context != &context ? SANPROXY_GONE : SANPROXY_OK;
    if (result == SANPROXY_OK && limbo.count >= max_offers) result = SANPROXY_NO_RESOURCES;
    if (result == SANPROXY_OK && object->kind == Kind::qp)
        result = qp_to_limbo(context, *static_cast<QueuePair *>(object), r.header);
    if (result == SANPROXY_OK && !object_move(object, limbo.context, object->cookie)) result = SANPROXY_GONE;
    if (result != SANPROXY_OK) {
        free_offer(offer);
        return result;
    }
    SpinGuard spin(dev.lock);
    if (object->connection == 0) object->connection = ++limbo.connections;
    r.connection = offer->connection = object->connection;
    r.token = offer->token = make_token(limbo);
    r.kind = offer->kind;
    InsertTailList(&limbo.offers, &offer->link);
    ++limbo.count;
    return SANPROXY_OK;
}

uint32_t do_look(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_offer *>(request);
    SpinGuard guard(context.device->lock);
    const Offer *offer = find_offer(*context.device->limbo, r.token);
    if (!offer) return SANPROXY_NOT_FOUND;
    r.kind = offer->kind;
    r.connection = offer->connection;
    memcpy(r.state, offer->state, sizeof r.state);
    return SANPROXY_OK;
}

uint32_t do_claim(Context &context, void *request) {
    auto &r = *static_cast<sanproxy_claim *>(request);
    Limbo &limbo = *context.device->limbo;
    Offer *offer = take_first(*context.device, [&r](const Offer &o) {
        return o.token == r.token && o.target == PsGetCurrentProcess();
    });
    if (!offer) return SANPROXY_NOT_FOUND;
    Object *object = offer->object;
    uint32_t result = SANPROXY_OK;
    {
        MutexGuard guard(object->mutex);
        if (object->dead) result = SANPROXY_GONE;
        else if (object->kind == Kind::qp) result = qp_from_limbo(context, *static_cast<QueuePair *>(object), r.queues);
        else if (r.queues.cookie == 0) result = SANPROXY_BAD_PARAMETER; // an offer given up
        if (result == SANPROXY_OK && !object_move(object, context, r.queues.cookie)) result = SANPROXY_GONE;
    }
    if (result == SANPROXY_OK) r.id = object->id;
    else end_object(limbo, object);
    r.header.nic_status = r.queues.header.nic_status;
    free_offer(offer);
    return result;
}

} // namespace sanproxy
