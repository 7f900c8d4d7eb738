// SPDX-License-Identifier: GPL-2.0-or-later
// Commands about memory regions.
#include "nic.h"

namespace snic {

Nic::Outcome Nic::cmd_register_mr(const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_register_mr>(cmd);
    Pd *pd = pds_.find(b.pd);
    if (!pd) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_register_mr, pd));
    if (b.access & ~SNIC_ACCESS_ALL) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_register_mr, access));
    if (b.length == 0 || b.length > config_.max_mr_size || b.va + b.length < b.va)
        return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_register_mr, length));
    if (b.pages.page_shift < 64 && b.pages.offset != (b.va & ((uint64_t{1} << b.pages.page_shift) - 1)))
        return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_register_mr, pages));
    if (b.bound_qpn != SNIC_QPN_ANY && !qps_.find(b.bound_qpn))
        return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_register_mr, bound_qpn));
    PageMap pages;
    if (snic_status st = pages.load(host_, b.pages, b.length, &page_budget_); st != SNIC_OK)
        return Outcome::error(st, SNIC_FIELD(snic_cmd_register_mr, pages));
    Mr *mr = mrs_.create();
    if (!mr) return Outcome::error(SNIC_ERR_LIMIT);
    mr->pd = b.pd;
    mr->access = b.access;
    mr->bound_qpn = b.bound_qpn;
    mr->va = b.va;
    mr->length = b.length;
    mr->pages = std::move(pages);
    pd->mrs++;
    Outcome o;
    o.result[0] = mr->key;
    return o;
}

Nic::Outcome Nic::cmd_modify_mr(const snic_cmd &cmd) {
    auto b = body_of<snic_cmd_modify_mr>(cmd);
    if (config_.revoke_by_deregister) return Outcome::error(SNIC_ERR_UNSUPPORTED);
    Mr *mr = mrs_.find(b.key);
    if (!mr || mr->dying) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_modify_mr, key));
    if (b.access & ~SNIC_ACCESS_ALL) return Outcome::error(SNIC_ERR_PARAM, SNIC_FIELD(snic_cmd_modify_mr, access));
    if (b.bound_qpn != SNIC_QPN_ANY && !qps_.find(b.bound_qpn))
        return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_modify_mr, bound_qpn));
    mr->access = b.access;
    mr->bound_qpn = b.bound_qpn;
    mrs_.rekey(*mr);
    Outcome o;
    o.result[0] = mr->key;
    return o;
}

void Nic::release_mr(Mr &mr) {
    if (Pd *pd = pds_.find(mr.pd)) pd->mrs--;
    mrs_.destroy(mr);
}

Nic::Outcome Nic::cmd_deregister_mr(uint32_t number, const snic_cmd &cmd) {
    Mr *mr = mrs_.find(body_of<snic_cmd_deregister_mr>(cmd).key);
    if (!mr || mr->dying) return Outcome::error(SNIC_ERR_HANDLE, SNIC_FIELD(snic_cmd_deregister_mr, key));
    if (mr->uses == 0) {
        release_mr(*mr);
        return {};
    }
    mr->dying = true;
    waiters_.push_back({number, cmd.cookie, SNIC_CMD_DEREGISTER_MR, mr->key});
    Outcome o;
    o.deferred = true;
    return o;
}

}  // namespace snic
