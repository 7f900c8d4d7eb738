// SPDX-License-Identifier: GPL-2.0-or-later
// Registers, the admin queue, and the commands about PDs, doorbell pages, EQs and CQs.
#include <algorithm>
#include <cstring>

#include "nic.h"

namespace snic {

namespace {

uint64_t half(uint64_t reg, uint64_t value, unsigned size, bool high) {
    if (size == 8) return value;
    return high ? (reg & 0xFFFFFFFFu) | value << 32 : (reg & ~uint64_t{0xFFFFFFFFu}) | (value & 0xFFFFFFFFu);
}

}  // namespace

// --- registers ---------------------------------------------------------------------------------------------------------------

uint64_t Nic::read_register(uint32_t offset, unsigned size) const {
    auto wide = [&](uint64_t value, uint32_t base) { return size == 8 ? value : offset == base ? value & 0xFFFFFFFFu : value >> 32; };
    switch (offset) {
        case SNIC_REG_VERSION: return SNIC_VERSION_MAJOR << 16 | SNIC_VERSION_MINOR;
        case SNIC_REG_CAPS: return config_.caps();
        case SNIC_REG_CTRL: return ctrl_;
        case SNIC_REG_STATUS:
            return (ready_ ? SNIC_STATUS_READY : farewells_.empty() ? 0 : SNIC_STATUS_RESETTING) | (link_up_ ? SNIC_STATUS_LINK_UP : 0) | (error_ ? SNIC_STATUS_FATAL : 0);
        case SNIC_REG_ERROR: return error_;
        case SNIC_REG_VECTORS: return config_.vectors;
        case SNIC_REG_GUID:
        case SNIC_REG_GUID + 4: return wide(config_.guid, SNIC_REG_GUID);
        case SNIC_REG_IP_ADDR: return config_.ip;
        case SNIC_REG_IP_PREFIX: return config_.prefix;
        case SNIC_REG_DOORBELL_PAGES: return config_.doorbell_pages;
        case SNIC_REG_AQ_SIZE: return aq_size_;
        case SNIC_REG_AQ_BASE:
        case SNIC_REG_AQ_BASE + 4: return wide(aq_base_, SNIC_REG_AQ_BASE);
        case SNIC_REG_ACQ_BASE:
        case SNIC_REG_ACQ_BASE + 4: return wide(acq_base_, SNIC_REG_ACQ_BASE);
        case SNIC_REG_IRQ_MODERATION: return moderation_us_;
        default: return 0;
    }
}

void Nic::write_register(uint32_t offset, uint64_t value, unsigned size) {
    bool pair = offset == SNIC_REG_AQ_BASE || offset == SNIC_REG_ACQ_BASE;
    if (size != 4 && !(size == 8 && pair)) return;
    // The rings must not move under the engine: their registers are read-only while ENABLE is set.
    if (ctrl_ & SNIC_CTRL_ENABLE && offset >= SNIC_REG_AQ_SIZE && offset < SNIC_REG_AQ_DOORBELL) return;
    switch (offset) {
        case SNIC_REG_CTRL:
            if (value & SNIC_CTRL_RESET || (!(value & SNIC_CTRL_ENABLE) && ctrl_ & SNIC_CTRL_ENABLE)) {
                reset();
            } else if (value & SNIC_CTRL_ENABLE && !(ctrl_ & SNIC_CTRL_ENABLE)) {
                ctrl_ = SNIC_CTRL_ENABLE;
                enable();
            }
            break;
        case SNIC_REG_AQ_SIZE: aq_size_ = static_cast<uint32_t>(value); break;
        case SNIC_REG_AQ_BASE: aq_base_ = half(aq_base_, value, size, false); break;
        case SNIC_REG_AQ_BASE + 4: aq_base_ = half(aq_base_, value, size, true); break;
        case SNIC_REG_ACQ_BASE: acq_base_ = half(acq_base_, value, size, false); break;
        case SNIC_REG_ACQ_BASE + 4: acq_base_ = half(acq_base_, value, size, true); break;
        case SNIC_REG_AQ_DOORBELL:
            if (!ready_) break;
            if (static_cast<uint32_t>(value) - aq_next_ > aq_size_) return fatal(SNIC_FATAL_AQ_INDEX);
            aq_doorbell_ = static_cast<uint32_t>(value);
            break;
        case SNIC_REG_IRQ_MODERATION: moderation_us_ = std::min<uint32_t>(static_cast<uint32_t>(value), 1000); break;
        default: break;
    }
}

void Nic::enable() {
    if (!power_of_two(aq_size_, 2, SNIC_AQ_MAX_ENTRIES) || aq_base_ % 64 || acq_base_ % 64) return fatal(SNIC_FATAL_AQ_CONFIG);
    aq_doorbell_ = aq_next_ = 0;
    ready_ = true;
}

void Nic::fatal(snic_fatal cause) {
    if (error_) return;
    error_ = cause;
    ready_ = false;
    char text[64];
    std::snprintf(text, sizeof text, "device stopped: fatal error %d", static_cast<int>(cause));
    host_.log(1, text);
    raise_vector(SNIC_VECTOR_ADMIN);
}

// --- admin queue ---------------------------------------------------------------------------------------------------------------

bool Nic::run_commands(unsigned budget) {
    while (ready_ && aq_next_ != aq_doorbell_ && budget-- > 0) {
        uint32_t number = aq_next_++;
        snic_cmd cmd;
        if (!guest_read(host_, aq_base_ + uint64_t{number & (aq_size_ - 1)} * sizeof cmd, &cmd, sizeof cmd)) {
            fatal(SNIC_FATAL_AQ_DMA);
            return false;
        }
        counters_.commands++;
        if (++commands_taken_ == config_.fail_command) {
            fail_on_purpose(number, cmd);
            continue;
        }
        Outcome o = execute(number, cmd);
        if (!o.deferred) finish_command(number, cmd.cookie, o);
    }
    return ready_ && aq_next_ != aq_doorbell_;
}

void Nic::fail_on_purpose(uint32_t number, const snic_cmd &cmd) {
    bool answered = config_.fail_status != Config::no_answer;
    char text[96];
    std::snprintf(text, sizeof text, "fail-command: command %u (opcode %u) %s", config_.fail_command, cmd.opcode,
                  answered ? "fails" : "is never answered");
    host_.log(1, text);
    if (answered) finish_command(number, cmd.cookie, Outcome::error(static_cast<snic_status>(config_.fail_status)));
}

void Nic::finish_command(uint32_t number, uint64_t cookie, const Outcome &o) {
    snic_cpl cpl = {};
    cpl.status = static_cast<uint16_t>(o.status);
    cpl.detail = o.status == SNIC_OK ? 0 : o.detail;
    cpl.cookie = cookie;
    if (o.status == SNIC_OK)
        std::copy(std::begin(o.result), std::end(o.result), cpl.result);
    else
        counters_.command_errors++;
    uint64_t at = acq_base_ + uint64_t{number & (aq_size_ - 1)} * sizeof cpl;
    bool ok = guest_write(host_, at + sizeof cpl.phase, reinterpret_cast<char *>(&cpl) + sizeof cpl.phase, sizeof cpl - sizeof cpl.phase) &&
              guest_store(host_, at, number / aq_size_ + 1);
    if (!ok) return fatal(SNIC_FATAL_AQ_DMA);
    raise_vector(SNIC_VECTOR_ADMIN);
}

Nic::Outcome Nic::execute(uint32_t number, const snic_cmd &cmd) {
    switch (cmd.opcode) {
        case SNIC_CMD_QUERY_DEVICE: return cmd_query_device(cmd);
        case SNIC_CMD_CREATE_PD: return cmd_create_pd(cmd);
        case SNIC_CMD_DESTROY_PD: return cmd_destroy_pd(cmd);
        case SNIC_CMD_REGISTER_MR: return cmd_register_mr(cmd);
        case SNIC_CMD_MODIFY_MR: return cmd_modify_mr(cmd);
        case SNIC_CMD_DEREGISTER_MR: return cmd_deregister_mr(number, cmd);
        case SNIC_CMD_CREATE_EQ: return cmd_create_eq(cmd);
        case SNIC_CMD_DESTROY_EQ: return cmd_destroy_eq(cmd);
        case SNIC_CMD_CREATE_CQ: return cmd_create_cq(cmd);
        case SNIC_CMD_DESTROY_CQ: return cmd_destroy_cq(cmd);
        case SNIC_CMD_CREATE_QP: return cmd_create_qp(cmd);
        case SNIC_CMD_DESTROY_QP: return cmd_destroy_qp(number, cmd);
        case SNIC_CMD_MODIFY_QP: return cmd_modify_qp(number, cmd);
        case SNIC_CMD_QUERY_QP: return cmd_query_qp(cmd);
        case SNIC_CMD_REBIND_QP: return cmd_rebind_qp(cmd);
        case SNIC_CMD_LISTEN: return cmd_listen(cmd);
        case SNIC_CMD_UNLISTEN: return cmd_unlisten(cmd);
        case SNIC_CMD_CONNECT: return cmd_connect(cmd);
        case SNIC_CMD_GET_REQUEST: return cmd_get_request(cmd);
        case SNIC_CMD_ACCEPT: return cmd_accept(cmd);
        case SNIC_CMD_REJECT: return cmd_reject(cmd);
        case SNIC_CMD_DISCONNECT: return cmd_disconnect(cmd);
        case SNIC_CMD_ATTACH_DOORBELL: return cmd_attach_doorbell();
        case SNIC_CMD_DETACH_DOORBELL: return cmd_detach_doorbell(cmd);
        default: return Outcome::error(SNIC_ERR_OPCODE);
    }
}

// Deferred commands: each names an object and waits for a condition of it.
void Nic::run_waiters() {
    for (size_t i = 0; i < waiters_.size() && ready_;) {
        Waiter w = waiters_[i];
        bool done = false;
        if (w.opcode == SNIC_CMD_DEREGISTER_MR) {
            Mr *mr = mrs_.find(w.handle);
            done = !mr || mr->uses == 0;
            if (mr && done) release_mr(*mr);
        } else {
            Qp *qp = qps_.find(static_cast<uint32_t>(w.handle));
            done = !qp || (drained(*qp) && (w.opcode == SNIC_CMD_MODIFY_QP || qp->cm == Cm::gone));
            if (qp && done && w.opcode == SNIC_CMD_DESTROY_QP) destroy_qp(*qp);
        }
        if (!done) {
            i++;
            continue;
        }
        waiters_.erase(waiters_.begin() + static_cast<ptrdiff_t>(i));
        finish_command(w.slot_number, w.cookie, {});
    }
}

// --- device, protection domains, doorbell pages ------------------------------------------------------------------------------

Nic::Outcome Nic::cmd_query_device(const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_query_device>(cmd);
    snic_device_info info = {};
    info.version = SNIC_VERSION_MAJOR << 16 | SNIC_VERSION_MINOR;
    info.caps = config_.caps();
    info.guid = config_.guid;
    info.ip_addr = config_.ip;
    info.ip_prefix = config_.prefix;
    info.max_pd = config_.max_pd;
    info.max_mr = config_.max_mr;
    info.max_cq = config_.max_cq;
    info.max_qp = config_.max_qp;
    info.max_eq = config_.max_eq;
    info.max_listen = config_.max_listen;
    info.max_sge = SNIC_MAX_SGE;
    info.max_wqe = config_.max_wqe;
    info.max_cqe = config_.max_cqe;
    info.max_eqe = config_.max_eqe;
    info.max_rd_atomic = config_.max_rd_atomic;
    info.doorbell_pages = config_.doorbell_pages;
    info.max_mr_size = config_.max_mr_size;
    info.max_msg_size = config_.max_msg_size;
    info.max_private_data = SNIC_MAX_PRIVATE_DATA;
    info.vectors = config_.vectors;
    if ((b.out & (SNIC_PAGE_SIZE - 1)) + sizeof info > SNIC_PAGE_SIZE)
        return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_query_device, out));
    if (!guest_write(host_, b.out, &info, sizeof info))
        return Outcome::error(SNIC_ERR_DMA, SNIC_FIELD(snic_cmd_query_device, out));
    return {};
}

Nic::Outcome Nic::cmd_create_pd(const snic_cmd &) {
    Pd *pd = pds_.create();
    if (!pd) return Outcome::error(SNIC_ERR_LIMIT);
    Outcome o;
    o.result[0] = pd->handle;
    return o;
}

Nic::Outcome Nic::cmd_destroy_pd(const snic_cmd &cmd) {
    Pd *pd = pds_.find(body_of<snic_cmd_pd>(cmd).pd);
    if (!pd) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_pd, pd));
    if (pd->qps || pd->mrs) return Outcome::error(SNIC_ERR_IN_USE, SNIC_FIELD(snic_cmd_pd, pd));
    pds_.destroy(pd->handle);
    return {};
}

Nic::Outcome Nic::cmd_attach_doorbell() {
    for (uint32_t i = 1; i < doorbell_attached_.size(); i++) {
        if (doorbell_attached_[i]) continue;
        doorbell_attached_[i] = true;
        Outcome o;
        o.result[0] = i;
        return o;
    }
    return Outcome::error(SNIC_ERR_LIMIT);
}

Nic::Outcome Nic::cmd_detach_doorbell(const snic_cmd &cmd) {
    uint32_t page = body_of<snic_cmd_handle>(cmd).handle;
    if (page == 0 || page >= doorbell_attached_.size() || !doorbell_attached_[page])
        return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_handle, handle));
    if (doorbell_users_[page]) return Outcome::error(SNIC_ERR_IN_USE, SNIC_FIELD(snic_cmd_handle, handle));
    doorbell_attached_[page] = false;
    return {};
}

// --- event and completion queues -----------------------------------------------------------------------------------------------

Nic::Outcome Nic::cmd_create_eq(const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_create_eq>(cmd);
    if (!power_of_two(b.entries, 16, config_.max_eqe)) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_create_eq, entries));
    if (b.vector >= config_.vectors) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_create_eq, vector));
    if (b.record % 64) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_create_eq, record));
    if (b.pages.offset % 64) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_create_eq, pages));
    PageMap ring;
    if (snic_status st = ring.load(host_, b.pages, uint64_t{b.entries} * sizeof(snic_eqe), &page_budget_); st != SNIC_OK)
        return Outcome::error(st, SNIC_FIELD(snic_cmd_create_eq, pages));
    Eq *eq = eqs_.create();
    if (!eq) return Outcome::error(SNIC_ERR_LIMIT);
    eq->entries = b.entries;
    eq->vector = b.vector;
    eq->ring = std::move(ring);
    eq->record = b.record;
    Outcome o;
    o.result[0] = eq->handle;
    return o;
}

Nic::Outcome Nic::cmd_destroy_eq(const snic_cmd &cmd) {
    Eq *eq = eqs_.find(body_of<snic_cmd_handle>(cmd).handle);
    if (!eq) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_handle, handle));
    if (eq->users) return Outcome::error(SNIC_ERR_IN_USE, SNIC_FIELD(snic_cmd_handle, handle));
    eqs_.destroy(eq->handle);
    return {};
}

Nic::Outcome Nic::cmd_create_cq(const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_create_cq>(cmd);
    if (!power_of_two(b.entries, 16, config_.max_cqe)) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_create_cq, entries));
    if (b.record % 64) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_create_cq, record));
    if (b.pages.offset % 64) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_create_cq, pages));
    Eq *eq = eqs_.find(b.eqn);
    if (b.eqn && !eq) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_create_cq, eqn));
    if (b.doorbell_page >= doorbell_attached_.size() || !doorbell_attached_[b.doorbell_page])
        return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_create_cq, doorbell_page));
    PageMap ring;
    if (snic_status st = ring.load(host_, b.pages, uint64_t{b.entries} * sizeof(snic_cqe), &page_budget_); st != SNIC_OK)
        return Outcome::error(st, SNIC_FIELD(snic_cmd_create_cq, pages));
    Cq *cq = cqs_.create();
    if (!cq) return Outcome::error(SNIC_ERR_LIMIT);
    cq->entries = b.entries;
    cq->eqn = b.eqn;
    cq->ring = std::move(ring);
    cq->record = b.record;
    cq->doorbell_page = b.doorbell_page;
    cq->cookie = b.cookie;
    if (eq) eq->users++;
    doorbell_users_[b.doorbell_page]++;
    Outcome o;
    o.result[0] = cq->handle;
    return o;
}

Nic::Outcome Nic::cmd_destroy_cq(const snic_cmd &cmd) {
    Cq *cq = cqs_.find(body_of<snic_cmd_handle>(cmd).handle);
    if (!cq) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_handle, handle));
    if (cq->users) return Outcome::error(SNIC_ERR_IN_USE, SNIC_FIELD(snic_cmd_handle, handle));
    if (Eq *eq = eqs_.find(cq->eqn)) eq->users--;
    doorbell_users_[cq->doorbell_page]--;
    cqs_.destroy(cq->handle);
    return {};
}

}  // namespace snic
