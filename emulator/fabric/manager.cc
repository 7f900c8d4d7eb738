// SPDX-License-Identifier: GPL-2.0-or-later
#include "manager.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "nic/ip_text.h"
#include "ring.h"
#include "system.h"

namespace fabric {

using nlohmann::json;
using snic::dotted;

namespace {

constexpr uint64_t kListener = 1, kControl = 2;

bool printable(const fabric_nic &nic) {
    size_t length = strnlen(nic.name, sizeof nic.name);
    if (length == 0 || length == sizeof nic.name) return false;
    return std::all_of(nic.name, nic.name + length, [](char c) { return c >= 33 && c <= 126; });
}

struct FaultField {
    const char *name;
    uint64_t most;
    uint64_t (*get)(const fabric_faults &);
    void (*set)(fabric_faults &, uint64_t);
};
#define FAULT_FIELD(field, most) \
    {#field, most, [](const fabric_faults &f) { return uint64_t{f.field}; }, \
     [](fabric_faults &f, uint64_t v) { f.field = static_cast<decltype(f.field)>(v); }}
constexpr FaultField kFaultFields[] = {
    FAULT_FIELD(link_down, 1),           FAULT_FIELD(loss_ppm, 1'000'000),    FAULT_FIELD(duplicate_ppm, 1'000'000),
    FAULT_FIELD(corrupt_ppm, 1'000'000), FAULT_FIELD(reorder_ppm, 1'000'000), FAULT_FIELD(seed, UINT64_MAX),
    FAULT_FIELD(delay_ns, 10'000'000'000), FAULT_FIELD(jitter_ns, 10'000'000'000)};

}  // namespace

std::unique_ptr<Manager> Manager::create(const std::string &path, std::string *error) {
    std::unique_ptr<Manager> m(new Manager);
    m->path_ = path;
    m->epoll_ = Fd(epoll_create1(EPOLL_CLOEXEC));
    m->listener_ = listen_unix(path, error);
    if (!m->listener_) return nullptr;
    m->control_ = listen_unix(path + ".ctl", error);
    if (!m->control_) return nullptr;
    m->fault_fd_ = make_memfd("sanlab-faults", 4096);
    m->fault_page_ = Mapping::of(m->fault_fd_, 0, 4096);
    if (!m->fault_page_.data()) {
        if (error) *error = std::string("cannot make shared memory: ") + std::strerror(errno);
        return nullptr;
    }
    auto *faults = reinterpret_cast<fabric_faults *>(m->fault_page_.data());
    faults->cookie = FABRIC_COOKIE;
    faults->version = FABRIC_VERSION;
    faults->seed = 1;
    m->watch(m->listener_.get(), kListener);
    m->watch(m->control_.get(), kControl);
    return m;
}

Manager::~Manager() {
    if (!listener_ || !control_) return;
    unlink(path_.c_str());
    unlink((path_ + ".ctl").c_str());
}

void Manager::watch(int fd, uint64_t key) {
    epoll_event ev = {};
    ev.events = EPOLLIN;
    ev.data.u64 = key;
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &ev);
}

bool Manager::set_secret(const std::string &secret, std::string *error) {
    if (secret.size() < 16) {
        *error = "the trunk's secret has " + std::to_string(secret.size()) + " bytes; at least 16 are needed";
        return false;
    }
    trunks_ = std::make_unique<Trunks>(static_cast<TrunkHost &>(*this), random64(), secret);
    return true;
}

void Manager::each_local_nic(const std::function<void(uint64_t, const fabric_nic &)> &f) {
    for (auto &[key, n] : nics_)
        if (n.hello) f(key, n.info);
}

bool Manager::tell_nic(uint64_t key, const fabric_ctl &ctl, const std::vector<int> &fds) {
    auto it = nics_.find(key);
    // One that does not read is dropped when its socket is served; here we may be inside a walk over the NICs.
    return it != nics_.end() && it->second.socket.send(ctl, fds);
}

uint64_t Manager::watch_trunk(int fd) {
    uint64_t key = next_key_++;
    watch(fd, key);
    return key;
}

void Manager::unwatch_trunk(int fd) { epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Manager::want_output(int fd, uint64_t number, bool output) { watch_for(fd, number, output ? EPOLLIN | EPOLLOUT : EPOLLIN); }

void Manager::watch_for(int fd, uint64_t key, uint32_t events) {
    epoll_event ev = {};
    ev.events = events;
    ev.data.u64 = key;
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &ev);
}

void Manager::serve(int timeout_ms) {
    epoll_event events[16];
    // Trunks need a look now and then: pings, reconnection, what waits for room in a ring.
    if (trunks_ && (timeout_ms < 0 || timeout_ms > 2)) timeout_ms = 2;
    if (!questions_.empty() && (timeout_ms < 0 || timeout_ms > 100)) timeout_ms = 100;
    int n = epoll_wait(epoll_.get(), events, 16, timeout_ms);
    uint64_t now = monotonic_ns();
    if (trunks_) trunks_->tick(now);
    give_up_questions(now);
    for (int i = 0; i < n; i++) {
        uint64_t key = events[i].data.u64;
        if (key == kListener) accept_nic();
        else if (key == kControl) accept_client();
        else if (nics_.count(key)) serve_nic(key);
        else if (clients_.count(key)) serve_client(key);
        else if (trunks_) trunks_->serve(key);
    }
}

// --- NICs ------------------------------------------------------------------------------------------------------------------

void Manager::accept_nic() {
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    if (nics_.size() >= FABRIC_MAX_NICS) {
        fabric_ctl full = ctl_message(FABRIC_CTL_WELCOME);
        full.status = FABRIC_CTL_FULL;
        CtlSocket(std::move(fd)).send(full);
        return;
    }
    uint64_t key = next_key_++;
    watch(fd.get(), key);
    nics_[key].socket = CtlSocket(std::move(fd));
}

void Manager::serve_nic(uint64_t key) {
    fabric_ctl ctl;
    std::vector<Fd> fds;
    for (int n = 0; n < 16; n++) {
        auto it = nics_.find(key);
        if (it == nics_.end()) return;
        switch (it->second.socket.receive(ctl, fds)) {
            case CtlSocket::Result::nothing: return;
            case CtlSocket::Result::closed: return drop_nic(key);
            case CtlSocket::Result::message: break;
        }
        bool ok = ctl.cookie == FABRIC_COOKIE;
        if (ok && ctl.type == FABRIC_CTL_HELLO && !it->second.hello) {
            if (hello(key, ctl, std::move(fds))) continue;
            return drop_nic(key);
        }
        if (ok && ctl.type == FABRIC_CTL_COUNTERS && it->second.hello) it->second.counters = ctl.counters;
        else if (ok && ctl.type == FABRIC_CTL_STATE && it->second.hello) ok = take_state(key, ctl.link, fds);
        else ok = false;
        if (!ok) {
            spdlog::warn("a NIC sent a message that does not belong there; closing its connection");
            return drop_nic(key);
        }
    }
}

bool Manager::hello(uint64_t key, const fabric_ctl &ctl, std::vector<Fd> fds) {
    Nic &nic = nics_[key];
    fabric_ctl answer = ctl_message(FABRIC_CTL_WELCOME);
    if (ctl.version != FABRIC_VERSION) answer.status = FABRIC_CTL_BAD_VERSION;
    else if (ctl.nic.nram > FABRIC_MAX_RAM || fds.size() != ctl.nic.nram || !printable(ctl.nic) || ctl.nic.ip == 0)
        answer.status = FABRIC_CTL_BAD_HELLO;
    else
        for (auto &[other, n] : nics_)
            if (n.hello && (n.info.ip == ctl.nic.ip || n.info.guid == ctl.nic.guid || name_of(n.info) == name_of(ctl.nic)))
                answer.status = FABRIC_CTL_DUPLICATE;
    if (answer.status != FABRIC_CTL_OK) {
        static const char *const why[] = {"", "it speaks another version of the protocol", "its HELLO is malformed",
                                          "another NIC with this IP, GUID or name is there"};
        // It asks again and again: said once.
        std::string text = fmt::format("refused NIC '{}' {}: {}", name_of(ctl.nic), dotted(ctl.nic.ip), why[answer.status]);
        if (text != last_refusal_) spdlog::warn("{}", text);
        last_refusal_ = text;
        nic.socket.send(answer);
        return false;
    }
    if (!nic.socket.send(answer, {fault_fd_.get()})) return false;
    nic.hello = true;
    nic.info = ctl.nic;
    nic.ram = std::move(fds);
    spdlog::info("NIC '{}' joined: {}/{} guid {:#x}, {} shared RAM pieces", name_of(nic.info), dotted(nic.info.ip), nic.info.prefix,
                 nic.info.guid, nic.info.nram);
    std::vector<uint64_t> others;
    for (auto &[other, n] : nics_)
        if (other != key && n.hello) others.push_back(other);
    for (uint64_t other : others)
        if (nics_.count(key)) make_link(key, other);
    if (trunks_ && nics_.count(key)) trunks_->nic_joined(key, nic.info);
    return nics_.count(key);
}

void Manager::make_link(uint64_t a, uint64_t b) {
    Fd memory = make_memfd("sanlab-link", FABRIC_LINK_BYTES);
    Mapping map = Mapping::of(memory, 0, FABRIC_LINK_BYTES);
    Fd wake[2] = {Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
    if (!map.data() || !wake[0] || !wake[1]) {
        spdlog::error("cannot make a link: {}", std::strerror(errno));
        return;
    }
    format_link(map.data());
    uint64_t id = random64();
    links_[id] = {a, b};
    for (uint32_t end = 0; end < 2; end++) {
        uint64_t self = end == 0 ? a : b, other = end == 0 ? b : a;
        if (!nics_.count(self) || !nics_.count(other)) return;
        fabric_ctl ctl = ctl_message(FABRIC_CTL_LINK);
        ctl.end = end;
        ctl.link = id;
        ctl.nic = nics_[other].info;
        std::vector<int> fds = {memory.get(), wake[end].get(), wake[1 - end].get()};
        for (const Fd &fd : nics_[other].ram) fds.push_back(fd.get());
        if (!nics_[self].socket.send(ctl, fds)) drop_nic(self);
    }
}

void Manager::drop_nic(uint64_t key) {
    auto it = nics_.find(key);
    if (it == nics_.end()) return;
    Nic gone = std::move(it->second);
    nics_.erase(it);  // first: what follows may drop others
    if (!gone.hello) return;
    end_questions_to(key);
    if (trunks_) trunks_->nic_left(key);
    spdlog::info("NIC '{}' left", name_of(gone.info));
    std::vector<std::pair<uint64_t, uint64_t>> tell;  // (NIC, link)
    for (auto l = links_.begin(); l != links_.end();) {
        if (l->second.a != key && l->second.b != key) {
            ++l;
            continue;
        }
        tell.emplace_back(l->second.a == key ? l->second.b : l->second.a, l->first);
        l = links_.erase(l);
    }
    for (auto &[other, link] : tell) {
        if (!nics_.count(other)) continue;
        fabric_ctl ctl = ctl_message(FABRIC_CTL_PEER_DOWN);
        ctl.link = link;
        ctl.nic = gone.info;
        if (!nics_[other].socket.send(ctl)) drop_nic(other);
    }
}

// --- commands -----------------------------------------------------------------------------------------------------------------

std::string Manager::status_json() {
    json nics = json::array(), faults = json::object();
    for (auto &[key, n] : nics_) {
        if (!n.hello) continue;
        nics.push_back({{"name", name_of(n.info)}, {"ip", dotted(n.info.ip)}, {"prefix", n.info.prefix}, {"guid", n.info.guid},
                        {"direct", n.info.nram > 0}, {"tx_bytes", n.counters.tx_bytes}, {"rx_bytes", n.counters.rx_bytes},
                        {"tx_segments", n.counters.tx_segments}, {"rx_segments", n.counters.rx_segments},
                        {"retransmits", n.counters.retransmits}, {"rnr_naks", n.counters.rnr_naks}, {"qps", n.counters.qps},
                        {"mrs", n.counters.mrs}});
    }
    const auto *page = reinterpret_cast<const fabric_faults *>(fault_page_.data());
    for (const FaultField &f : kFaultFields) faults[f.name] = f.get(*page);
    return json{{"ok", true}, {"nics", nics}, {"links", links_.size()}, {"faults", faults},
                {"trunks", trunks_ ? trunks_->status() : json::array()}}
        .dump();
}

std::optional<std::string> Manager::command(const std::string &line, uint64_t client) {
    auto error = [](const std::string &text) { return json{{"ok", false}, {"error", text}}.dump(); };
    json request = json::parse(line, nullptr, false);
    if (!request.is_object()) return error("not a JSON object; send one object a line, like {\"cmd\":\"status\"}");
    std::string cmd = request.contains("cmd") && request["cmd"].is_string() ? request["cmd"].get<std::string>() : "";
    if (cmd == "status") return status_json();
    if (cmd == "state") {
        if (!request.contains("nic") || !request["nic"].is_string()) return error("state needs \"nic\": the name of a NIC");
        return ask_state(request["nic"].get<std::string>(), client);
    }
    auto *page = reinterpret_cast<fabric_faults *>(fault_page_.data());
    fabric_faults next = *page;
    if (cmd == "reset-faults") {
        for (const FaultField &f : kFaultFields) f.set(next, std::string(f.name) == "seed" ? 1 : 0);
    } else if (cmd == "faults") {
        for (auto &[name, value] : request.items()) {
            if (name == "cmd") continue;
            const FaultField *field = nullptr;
            for (const FaultField &f : kFaultFields)
                if (name == f.name) field = &f;
            if (!field) return error("unknown fault '" + name + "'");
            if (!value.is_number_unsigned() || value.get<uint64_t>() > field->most)
                return error("fault '" + name + "' takes a whole number from 0 to " + std::to_string(field->most));
            field->set(next, value.get<uint64_t>());
        }
    } else {
        return error("unknown cmd '" + cmd + "' (accepted: status, state, faults, reset-faults)");
    }
    // Odd while the fields change: a reader that sees it keeps the old policy.
    std::atomic_ref<uint32_t> generation(page->generation);
    uint32_t g = generation.load();
    generation.store(g + 1);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    next.generation = g + 1;
    std::memcpy(page, &next, sizeof next);
    generation.store(g + 2, std::memory_order_release);
    return json{{"ok", true}}.dump();
}

}  // namespace fabric
