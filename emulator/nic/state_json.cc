// SPDX-License-Identifier: GPL-2.0-or-later
// The whole state as one JSON document, with the names of `rdma resource` and `rdma statistic`.
#include <nlohmann/json.hpp>

#include "ip_text.h"
#include "nic.h"

namespace snic {

namespace {

const char *state_name(snic_qp_state s) {
    switch (s) {
        case SNIC_QP_INIT: return "INIT";
        case SNIC_QP_CONNECTING: return "CONNECTING";
        case SNIC_QP_RTS: return "RTS";
        case SNIC_QP_ERROR: return "ERROR";
    }
    return "?";
}

const char *cm_name(Cm cm) {
    switch (cm) {
        case Cm::idle: return "IDLE";
        case Cm::requested: return "REQUESTED";
        case Cm::replied: return "REPLIED";
        case Cm::established: return "ESTABLISHED";
        case Cm::leaving: return "LEAVING";
        case Cm::gone: return "GONE";
    }
    return "?";
}

std::string hex(uint64_t v) {
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
    return text;
}

// At most this many objects of a kind are listed; "count" tells how many there are. A document takes some milliseconds
// of the engine's time, and 16 MiB, at most.
constexpr size_t kMostListed = 4096;

template <typename Table, typename F>
nlohmann::json list(Table &table, F &&describe) {
    nlohmann::json rows = nlohmann::json::array();
    table.each([&](auto &object) {
        if (rows.size() < kMostListed) rows.push_back(describe(object));
    });
    return rows;
}

}  // namespace

std::string Nic::state_json() {
    using nlohmann::json;
    json j;
    j["ip"] = dotted(config_.ip);
    j["guid"] = hex(config_.guid);
    j["ready"] = ready_;
    j["link"] = link_up_ ? "UP" : "DOWN";
    j["error"] = error_;
    j["counters"] = {{"commands", counters_.commands},
                     {"command_errors", counters_.command_errors},
                     {"events", counters_.events},
                     {"interrupts", counters_.interrupts},
                     {"bad_doorbells", counters_.bad_doorbells},
                     {"bad_records", counters_.bad_records},
                     {"stale_records", counters_.stale_records},
                     {"events_lost", counters_.events_lost}};
    j["count"] = {{"pd", pds_.count()},
                  {"mr", mrs_.count()},
                  {"cq", cqs_.count()},
                  {"qp", qps_.count()},
                  {"listener", listeners_.count()},
                  {"request", requests_.count()}};
    j["pd"] = list(pds_, [](Pd &p) { return json{{"pdn", p.handle}, {"qps", p.qps}, {"mrs", p.mrs}}; });
    j["mr"] = list(mrs_, [](Mr &m) {
        return json{{"key", hex(m.key)},  {"pdn", m.pd},         {"iova", hex(m.va)}, {"mrlen", m.length},
                    {"access", m.access}, {"lqpn", m.bound_qpn}, {"users", m.uses},   {"dying", m.dying}};
    });
    j["cq"] = list(cqs_, [](Cq &c) {
        return json{{"cqn", c.handle}, {"cqe", c.entries}, {"users", c.users},  {"pi", c.pi},
                    {"ci", c.ci},      {"armed", c.armed}, {"failed", c.failed}};
    });
    j["qp"] = list(qps_, [](Qp &q) {
        const QpCounters &c = q.counters;
        return json{{"lqpn", q.handle},
                    {"rqpn", q.remote_qpn},
                    {"type", "RC"},
                    {"state", state_name(q.state)},
                    {"cm", cm_name(q.cm)},
                    {"pdn", q.params.pd},
                    {"sq-psn", q.next_psn},
                    {"rq-psn", q.epsn},
                    {"una-psn", q.una_psn},
                    {"ops", q.ops.size()},
                    {"sq-ci", q.sq_done},
                    {"rq-ci", q.rq_ci},
                    {"src-addr", dotted(q.address.src_ip) + ':' + std::to_string(q.address.src_port)},
                    {"dst-addr", dotted(q.address.dst_ip) + ':' + std::to_string(q.address.dst_port)},
                    {"statistic",
                     {{"tx_bytes", c.tx_bytes},
                      {"rx_bytes", c.rx_bytes},
                      {"tx_segments", c.tx_segments},
                      {"rx_segments", c.rx_segments},
                      {"rx_write_requests", c.rx_write_requests},
                      {"rx_read_requests", c.rx_read_requests},
                      {"rx_send_requests", c.rx_send_requests},
                      {"duplicate_request", c.duplicate_request},
                      {"out_of_sequence", c.out_of_sequence},
                      {"packet_seq_err", c.packet_seq_err},
                      {"retransmits", c.retransmits},
                      {"local_ack_timeout_err", c.local_ack_timeout_err},
                      {"rnr_nak_retry_err", c.rnr_nak_retry_err},
                      {"out_of_buffer", c.out_of_buffer},
                      {"req_remote_access_errors", c.req_remote_access_errors},
                      {"resp_remote_access_errors", c.resp_remote_access_errors},
                      {"req_cqe_flush_error", c.req_cqe_flush_error},
                      {"resp_cqe_flush_error", c.resp_cqe_flush_error}}}};
    });
    j["listener"] = list(listeners_, [](Listener &l) {
        return json{{"listener", l.handle},
                    {"addr", dotted(l.ip) + ':' + std::to_string(l.port)},
                    {"backlog", l.backlog},
                    {"pending", l.pending}};
    });
    j["request"] = list(requests_, [](Request &r) { return json{{"request", r.handle}, {"listener", r.listener}}; });
    return j.dump();
}

}  // namespace snic
