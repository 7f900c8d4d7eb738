// SPDX-License-Identifier: GPL-2.0-or-later
#include "port.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "nic/nic.h"
#include "system.h"

namespace fabric {

namespace {

constexpr uint64_t kRetry = 200'000'000;     // between attempts to reach the manager
constexpr uint64_t kConfirm = 3'000'000'000; // for the other NICs to find a new manager
constexpr uint32_t kAttached = 1, kMapsPeer = 2;  // bits of fabric_ring::attached

std::atomic_ref<uint32_t> attached(fabric_ring *ring) { return std::atomic_ref<uint32_t>(ring->attached); }

}  // namespace

Port::Port(PortConfig config, Log log)
    : config_(std::move(config)), log_(std::move(log)), epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

Port::~Port() = default;

Port::Peer *Port::find_peer(snic::PeerId id) {
    if (recent_ && recent_->id == id) return recent_;
    auto it = peers_.find(id);
    return it == peers_.end() ? nullptr : recent_ = it->second.get();
}

// --- the manager -----------------------------------------------------------------------------------------------------------

void Port::connect(snic::Nic &nic, uint64_t now) {
    next_try_ = now + kRetry;
    if (config_.path.empty()) return;
    std::string error;
    Fd fd = connect_unix(config_.path, &error);
    if (!fd) {
        if (!complained_) log_(1, "fabric: " + error + " (is sanfabricd running there?); trying on");
        complained_ = true;
        return;
    }
    manager_ = CtlSocket(std::move(fd));
    epoll_event ev = {};
    ev.events = EPOLLIN;
    ev.data.u64 = 0;
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, manager_.get(), &ev);
    fabric_ctl hello = ctl_message(FABRIC_CTL_HELLO);
    hello.nic.guid = config_.guid;
    hello.nic.instance = config_.instance;
    hello.nic.ip = config_.ip;
    hello.nic.prefix = config_.prefix;
    std::strncpy(hello.nic.name, config_.name.c_str(), sizeof hello.nic.name - 1);
    std::vector<int> fds;
    for (const auto &ram : config_.ram) {
        hello.nic.ram[hello.nic.nram].size = ram.size;
        hello.nic.ram[hello.nic.nram].fd_offset = ram.fd_offset;
        hello.nic.nram++;
        fds.push_back(ram.fd);
    }
    if (!manager_.send(hello, fds)) disconnected(nic, now);
}

void Port::disconnected(snic::Nic &nic, uint64_t now) {
    if (welcomed_) log_(1, "fabric: lost the manager; links stay, trying to reach it again");
    manager_ = CtlSocket();
    welcomed_ = false;
    confirm_by_ = 0;
    next_try_ = now + kRetry;
    std::vector<snic::PeerId> relayed;
    for (auto &[id, peer] : peers_)
        if (peer->relayed) relayed.push_back(id);
    for (snic::PeerId id : relayed) drop(nic, id, "was reached through the manager");
}

bool Port::poll_control(snic::Nic &nic, uint64_t now) {
    bool busy = false;
    if (!manager_) {
        if (now < next_try_) return false;
        connect(nic, now);
        if (!manager_) return false;
    }
    fabric_ctl ctl;
    std::vector<Fd> fds;
    for (int n = 0; n < 64 && manager_; n++) {
        CtlSocket::Result r = manager_.receive(ctl, fds);
        if (r == CtlSocket::Result::nothing) break;
        if (r == CtlSocket::Result::closed) {
            disconnected(nic, now);
            break;
        }
        busy = true;
        handle(nic, ctl, std::move(fds), now);
    }
    if (confirm_by_ && now >= confirm_by_) {
        confirm_by_ = 0;
        std::vector<snic::PeerId> dead;
        for (auto &[id, peer] : peers_)
            if (!peer->confirmed) dead.push_back(id);
        for (snic::PeerId id : dead) drop(nic, id, "did not come back to the fabric");
    }
    return busy;
}

uint64_t Port::deadline() const {
    uint64_t when = confirm_by_ ? confirm_by_ : UINT64_MAX;
    if (!manager_ && !config_.path.empty()) when = std::min(when, next_try_);
    for (auto &[id, peer] : peers_) when = std::min(when, peer->faults.due());
    return when;
}

void Port::handle(snic::Nic &nic, const fabric_ctl &ctl, std::vector<Fd> fds, uint64_t now) {
    // A manager of another version refuses in its own words; what it says there is the same in all.
    bool refusal = ctl.type == FABRIC_CTL_WELCOME && ctl.status != FABRIC_CTL_OK;
    if (ctl.cookie != FABRIC_COOKIE || (ctl.version != FABRIC_VERSION && !refusal)) return disconnected(nic, now);
    switch (ctl.type) {
        case FABRIC_CTL_WELCOME:
            if (ctl.status != FABRIC_CTL_OK) {
                static const char *const why[] = {"", "it speaks another version of the protocol (build both from one tree)", "it found our HELLO malformed",
                                                  "another NIC with this IP, GUID or name is alive", "it is full"};
                if (!complained_)
                    log_(0, std::string("fabric: the manager refused this NIC: ") + (ctl.status < 5 ? why[ctl.status] : "unknown reason"));
                complained_ = true;
                return disconnected(nic, now);
            }
            fault_page_ = fds.empty() ? Mapping() : Mapping::of(fds[0], 0, 4096, false);
            welcomed_ = joined_ = true;
            complained_ = false;
            for (auto &[id, peer] : peers_) peer->confirmed = false;
            confirm_by_ = peers_.empty() ? 0 : now + kConfirm;
            nic.set_link(true);
            break;
        case FABRIC_CTL_LINK: handle_link(nic, ctl, std::move(fds)); break;
        case FABRIC_CTL_PEER_DOWN:
            for (auto &[id, peer] : peers_) {
                if (peer->link != ctl.link) continue;
                drop(nic, id, "is gone");
                break;
            }
            break;
        case FABRIC_CTL_STATE_REQUEST: tell_state(nic, ctl.link); break;
        default: break;
    }
}

void Port::tell_state(snic::Nic &nic, uint64_t number) {
    std::string text = nic.state_json();
    Fd fd = make_memfd("sanlab-state", text.size());
    if (!fd || pwrite(fd.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) return;
    fabric_ctl ctl = ctl_message(FABRIC_CTL_STATE);
    ctl.link = number;
    manager_.send(ctl, {fd.get()});
}

void Port::handle_link(snic::Nic &nic, const fabric_ctl &ctl, std::vector<Fd> fds) {
    if (fds.size() < 3 || ctl.end > 1 || ctl.nic.nram > FABRIC_MAX_RAM || fds.size() != 3 + ctl.nic.nram) {
        log_(1, "fabric: the manager sent a malformed link; ignored");
        return;
    }
    bool relayed = ctl.status == FABRIC_LINK_RELAYED;
    for (auto &[id, peer] : peers_) {
        if (peer->nic.guid != ctl.nic.guid) continue;
        // Both ends judge by the same thing, whether the other has attached to the link they share; so they agree.
        if (!relayed && peer->nic.instance == ctl.nic.instance && attached(peer->in.header()).load() & kAttached && !peer->in.broken()) {
            peer->confirmed = true;
            peer->link = ctl.link;
            return;
        }
        drop(nic, id, "was started anew");
        break;
    }
    auto peer = std::make_unique<Peer>();
    peer->memory = Mapping::of(fds[0], 0, FABRIC_LINK_BYTES);
    if (!peer->memory.data()) {
        log_(1, "fabric: cannot map the link to '" + name_of(ctl.nic) + "'");
        return;
    }
    std::byte *base = peer->memory.data();
    peer->out = RingWriter(base + (ctl.end == 0 ? 0 : FABRIC_RING_STRIDE));
    peer->in = RingReader(base + (ctl.end == 0 ? FABRIC_RING_STRIDE : 0));
    peer->wake_us = std::move(fds[1]);
    peer->wake_peer = std::move(fds[2]);
    peer->nic = ctl.nic;
    peer->link = ctl.link;
    peer->id = ++last_id_;
    peer->relayed = relayed;
    bool mapped = ctl.nic.nram > 0;
    for (uint32_t i = 0; i < ctl.nic.nram; i++) {
        peer->ram.push_back(Mapping::of(fds[3 + i], ctl.nic.ram[i].fd_offset, ctl.nic.ram[i].size));
        mapped &= peer->ram.back().data() != nullptr;
    }
    if (!mapped) peer->ram.clear();
    epoll_event ev = {};
    ev.events = EPOLLIN;
    ev.data.u64 = peer->id;
    epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, peer->wake_us.get(), &ev);
    attached(peer->out.header()).store(kAttached | (mapped ? kMapsPeer : 0));
    if (!mapped && ctl.nic.nram)
        log_(1, "fabric: the RAM of '" + name_of(ctl.nic) + "' cannot be mapped (not sealed against shrinking?); its data is copied twice");
    log_(2, "fabric: link to '" + name_of(ctl.nic) + "' is up");
    peers_[peer->id] = std::move(peer);
}

void Port::drop(snic::Nic &nic, snic::PeerId id, const char *why) {
    auto it = peers_.find(id);
    if (it == peers_.end()) return;
    log_(2, "fabric: '" + name_of(it->second->nic) + "' " + why);
    // The NIC first: it may still want to say something to the peer, and must not find the id dangling.
    nic.peer_down(id);
    recent_ = nullptr;
    // The peer has this descriptor, too: our closing it would not end the watch, and whoever writes it could keep us from sleeping.
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second->wake_us.get(), nullptr);
    peers_.erase(it);
}

void Port::send_counters(const fabric_counters &counters) {
    if (!welcomed_) return;
    fabric_ctl ctl = ctl_message(FABRIC_CTL_COUNTERS);
    ctl.counters = counters;
    manager_.send(ctl);
}

// --- data ------------------------------------------------------------------------------------------------------------------

bool Port::poll(snic::Nic &nic, uint64_t now, unsigned budget) {
    bool busy = false;
    snic::PeerId broken = 0;
    for (auto &[id, held] : peers_) {
        Peer &peer = *held;
        auto deliver = [&](std::span<const std::byte> record) { nic.receive(peer.id, record); };
        peer.faults.refresh(reinterpret_cast<const fabric_faults *>(fault_page_.data()), peer.link);
        if (peer.faults.active()) {
            if (peer.faults.due() <= now) peer.faults.release(now, deliver), busy = true;
        }
        unsigned taken = 0;
        for (; taken < budget; taken++) {
            std::span<const std::byte> record = peer.in.front();
            if (record.empty()) break;
            if (peer.faults.active())
                peer.faults.take(record, now, deliver);
            else
                deliver(record);
            peer.in.pop();
        }
        if (taken) {
            busy = true;
            if (peer.in.take_starved()) wake(peer.wake_peer);
        }
        if (peer.in.broken() || peer.out.broken()) broken = id;
    }
    if (broken) drop(nic, broken, "broke the ring protocol");
    return busy;
}

bool Port::prepare_sleep() {
    for (auto &[id, peer] : peers_) peer->in.set_waiting(true);
    for (auto &[id, peer] : peers_)
        if (!peer->in.front().empty() || peer->in.broken() || peer->out.broken()) return false;
    return true;
}

void Port::woken() {
    for (auto &[id, peer] : peers_) {
        peer->in.set_waiting(false);
        uint64_t n;
        [[maybe_unused]] ssize_t r = read(peer->wake_us.get(), &n, sizeof n);
    }
}

std::span<std::byte> Port::reserve(snic::PeerId id, size_t size) {
    Peer *peer = find_peer(id);
    return peer ? peer->out.reserve(size) : std::span<std::byte>{};
}

void Port::commit(snic::PeerId id) {
    Peer *peer = find_peer(id);
    if (peer && peer->out.commit()) wake(peer->wake_peer);
}

bool Port::checksum(snic::PeerId id) {
    Peer *peer = find_peer(id);
    return peer && peer->faults.corrupts();
}

bool Port::direct(snic::PeerId id) {
    Peer *peer = find_peer(id);
    return peer && !config_.ram.empty() && attached(peer->in.header()).load(std::memory_order_relaxed) & kMapsPeer;
}

std::byte *Port::peer_ram(snic::PeerId id, uint16_t ram, uint64_t offset, size_t len) {
    Peer *peer = find_peer(id);
    if (!peer || ram >= peer->ram.size()) return nullptr;
    const Mapping &m = peer->ram[ram];
    if (offset > m.size() || len > m.size() - offset) return nullptr;
    return m.data() + offset;
}

snic::PeerId Port::find(uint32_t ip) {
    for (auto &[id, peer] : peers_)
        if (peer->nic.ip == ip && !peer->faults.link_down()) return id;
    return snic::kNoPeer;
}

}  // namespace fabric
