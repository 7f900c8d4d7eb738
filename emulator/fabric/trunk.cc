// SPDX-License-Identifier: GPL-2.0-or-later
#include "trunk.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <spdlog/spdlog.h>

#include "nic/ip_text.h"
#include "system.h"

namespace fabric {

namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kRejoin = kSecond / 2;
constexpr uint64_t kSilence = 5 * kSecond;
constexpr size_t kMaxOutput = 8u << 20;   // bytes waiting for the connection: beyond that rings are not read
constexpr size_t kMaxBacklog = 4u << 20;  // bytes waiting for one local NIC: beyond that records are lost

bool parse_address(const std::string &text, sockaddr_in &addr, std::string *error) {
    size_t colon = text.rfind(':');
    addr = {};
    addr.sin_family = AF_INET;
    char *end = nullptr;
    unsigned long port = colon == std::string::npos ? 0 : std::strtoul(text.c_str() + colon + 1, &end, 10);
    if (!end || end == text.c_str() + colon + 1 || port > 65535 || *end || inet_pton(AF_INET, text.substr(0, colon).c_str(), &addr.sin_addr) != 1) {
        *error = "trunk address '" + text + "' is not of the form 10.0.0.1:7471";
        return false;
    }
    addr.sin_port = htons(static_cast<uint16_t>(port));
    return true;
}

std::string text_of(const sockaddr_in &addr) {
    return snic::dotted(ntohl(addr.sin_addr.s_addr)) + ':' + std::to_string(ntohs(addr.sin_port));
}

}  // namespace

// A NIC of the other host.
struct Trunks::Remote {
    fabric_nic nic = {};
    std::map<uint64_t, std::unique_ptr<Relay>> relays;  // by the local NIC's key
};

// One relayed link; our end is end 1.
struct Trunks::Relay {
    TrunkHost *watcher = nullptr;  // of wake_us, which the NIC has, too
    Relay() = default;
    Relay(const Relay &) = delete;
    ~Relay() {
        if (watcher) watcher->unwatch_trunk(wake_us.get());
    }
    uint64_t local = 0, remote = 0, link = 0, number = 0;
    Fd memory, wake_us, wake_nic;
    Mapping map;
    RingReader from_nic;
    RingWriter to_nic;
    std::deque<std::vector<std::byte>> backlog;
    size_t backlog_bytes = 0;
};

struct Trunks::Trunk {
    std::string address;
    sockaddr_in target = {};
    bool joins = false;
    enum class State { down, connecting, greeting, proving, up } state = State::down;
    Fd fd;
    uint64_t number = 0, next_try = 0, heard = 0, pinged = 0;
    trunk_hello ours = {}, theirs = {};
    std::vector<std::byte> in, out;
    size_t out_done = 0;
    bool wants_output = false;
    std::map<uint64_t, Remote> remotes;
    std::string refused;  // why we are about to close it
    std::string error;    // why it was closed last
};

Trunks::Trunks(TrunkHost &host, uint64_t manager_id, std::string secret)
    : host_(host), manager_id_(manager_id), secret_(std::move(secret)) {}
Trunks::~Trunks() = default;

bool Trunks::listen(const std::string &address, std::string *error) {
    sockaddr_in addr;
    if (!parse_address(address, addr, error)) return false;
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int on = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd.get(), reinterpret_cast<sockaddr *>(&addr), sizeof addr) < 0 || ::listen(fd.get(), 8) < 0) {
        *error = "cannot listen on " + address + ": " + std::strerror(errno);
        return false;
    }
    socklen_t len = sizeof addr;
    getsockname(fd.get(), reinterpret_cast<sockaddr *>(&addr), &len);
    listening_ = text_of(addr);
    spdlog::info("trunks are taken at {}", listening_);
    listener_ = std::move(fd);
    listener_number_ = host_.watch_trunk(listener_.get());
    return true;
}

bool Trunks::join(const std::string &address, std::string *error) {
    auto t = std::make_unique<Trunk>();
    t->address = address;
    t->joins = true;
    if (!parse_address(address, t->target, error)) return false;
    if (t->target.sin_port == 0) {
        *error = "trunk address '" + address + "' has port 0; only a manager that listens may leave the choice to the system";
        return false;
    }
    trunks_.push_back(std::move(t));
    return true;
}

void Trunks::start(std::unique_ptr<Trunk> trunk, Fd fd) {
    trunk->fd = std::move(fd);
    trunk->number = host_.watch_trunk(trunk->fd.get());
    trunk->heard = now_;
    trunks_.push_back(std::move(trunk));
}

bool Trunks::serve(uint64_t number) {
    if (listener_ && number == listener_number_) {
        sockaddr_in from = {};
        socklen_t len = sizeof from;
        Fd fd(accept4(listener_.get(), reinterpret_cast<sockaddr *>(&from), &len, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!fd || trunks_.size() >= 16) return true;
        auto t = std::make_unique<Trunk>();
        t->address = text_of(from);
        t->state = Trunk::State::greeting;
        start(std::move(t), std::move(fd));
        established(*trunks_.back());
        return true;
    }
    for (auto &t : trunks_) {
        if (t->fd && t->number == number) {
            serve_trunk(*t);
            return true;
        }
        for (auto &[key, remote] : t->remotes)
            for (auto &[local, relay] : remote.relays)
                if (relay->number == number) {
                    pump(*t, *relay);
                    flush(*t);
                    return true;
                }
    }
    return false;
}

void Trunks::tick(uint64_t now) {
    now_ = now;
    for (auto &t : trunks_) {
        if (t->joins && t->state == Trunk::State::down && now >= t->next_try) {
            t->next_try = now + kRejoin;
            Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
            int r = connect(fd.get(), reinterpret_cast<sockaddr *>(&t->target), sizeof t->target);
            if (r < 0 && errno != EINPROGRESS) continue;
            t->fd = std::move(fd);
            t->number = host_.watch_trunk(t->fd.get());
            t->state = Trunk::State::connecting;
            t->heard = now;
            host_.want_output(t->fd.get(), t->number, t->wants_output = true);
        }
        if (!t->fd) continue;
        if (now - t->heard > kSilence) {
            close(*t, "silent for five seconds");
            continue;
        }
        if (t->state == Trunk::State::up && now - t->pinged > kSecond) {
            t->pinged = now;
            send(*t, TRUNK_PING, 0, 0, nullptr, 0);
        }
        for (auto &[key, remote] : t->remotes)
            for (auto &[local, relay] : remote.relays) {
                deliver(*relay);
                pump(*t, *relay);
            }
        if (t->fd) flush(*t);
    }
    std::erase_if(trunks_, [](const auto &t) { return !t->joins && !t->fd; });
}

// --- the connection -----------------------------------------------------------------------------------------------------------

// Both sides greet; what the peer says before it has proved itself is not believed.
void Trunks::established(Trunk &t) {
    int on = 1;
    setsockopt(t.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    t.ours = {FABRIC_COOKIE, FABRIC_VERSION, manager_id_, {}};
    if (getrandom(t.ours.nonce, sizeof t.ours.nonce, 0) != sizeof t.ours.nonce) return close(t, "no randomness");
    t.state = Trunk::State::greeting;
    send(t, TRUNK_HELLO, 0, 0, &t.ours, sizeof t.ours);
}

std::string Trunks::proof(const Trunk &t, bool ours) const {
    const trunk_hello &own = ours ? t.ours : t.theirs, &peer = ours ? t.theirs : t.ours;
    std::string text = "sanlab trunk";
    text += (t.joins == ours) ? 'J' : 'L';
    text.append(reinterpret_cast<const char *>(own.nonce), sizeof own.nonce);
    text.append(reinterpret_cast<const char *>(peer.nonce), sizeof peer.nonce);
    unsigned char mac[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    HMAC(EVP_sha256(), secret_.data(), static_cast<int>(secret_.size()), reinterpret_cast<const unsigned char *>(text.data()), text.size(), mac, &length);
    return std::string(reinterpret_cast<char *>(mac), length);
}

void Trunks::send(Trunk &t, uint16_t type, uint64_t from, uint64_t to, const void *payload, size_t length) {
    if (!t.fd) return;
    trunk_frame head = {static_cast<uint32_t>(sizeof(trunk_frame) + length), type, 0, from, to};
    auto *h = reinterpret_cast<const std::byte *>(&head), *p = static_cast<const std::byte *>(payload);
    t.out.insert(t.out.end(), h, h + sizeof head);
    if (length) t.out.insert(t.out.end(), p, p + length);
}

void Trunks::flush(Trunk &t) {
    while (t.out_done < t.out.size()) {
        ssize_t n = ::send(t.fd.get(), t.out.data() + t.out_done, t.out.size() - t.out_done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (n <= 0) return close(t, std::strerror(errno));
        t.out_done += static_cast<size_t>(n);
    }
    if (t.out_done == t.out.size()) t.out.clear(), t.out_done = 0;
    bool wants = !t.out.empty();
    if (wants != t.wants_output) host_.want_output(t.fd.get(), t.number, t.wants_output = wants);
}

void Trunks::close(Trunk &t, const std::string &why) {
    if (t.state == Trunk::State::up || !t.joins) spdlog::warn("trunk to {} ended: {}", t.address, why);
    while (!t.remotes.empty()) drop_remote(t, t.remotes.begin()->first);
    if (t.state != Trunk::State::up && t.state != Trunk::State::connecting && t.refused.empty())
        t.refused = why + ", before it believed us: is the secret the same?";
    t.error = t.refused.empty() ? why : t.refused;
    t.refused.clear();
    t.fd.reset();
    t.state = Trunk::State::down;
    t.next_try = now_ + kRejoin;
    t.in.clear();
    t.out.clear();
    t.out_done = 0;
    t.wants_output = false;
}

void Trunks::serve_trunk(Trunk &t) {
    if (t.state == Trunk::State::connecting) {
        int error = 0;
        socklen_t len = sizeof error;
        getsockopt(t.fd.get(), SOL_SOCKET, SO_ERROR, &error, &len);
        if (error) return close(t, std::strerror(error));
        established(t);
    }
    for (int n = 0; n < 16 && t.fd; n++) {
        std::byte buf[65536];
        ssize_t got = recv(t.fd.get(), buf, sizeof buf, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
        if (got <= 0) return close(t, got == 0 ? "the other side closed it" : std::strerror(errno));
        t.heard = now_;
        t.in.insert(t.in.end(), buf, buf + got);
        size_t used = 0;
        while (t.fd && t.in.size() - used >= sizeof(trunk_frame)) {
            trunk_frame head;
            std::memcpy(&head, t.in.data() + used, sizeof head);
            if (head.size < sizeof head || head.size > TRUNK_MAX_FRAME) return close(t, "malformed frame");
            if (t.in.size() - used < head.size) break;
            if (!frame(t, head, t.in.data() + used + sizeof head, head.size - sizeof head)) return;
            used += head.size;
        }
        if (t.fd) t.in.erase(t.in.begin(), t.in.begin() + static_cast<ptrdiff_t>(used));
    }
    if (t.fd) flush(t);
}

// False: the trunk is closed.
bool Trunks::frame(Trunk &t, const trunk_frame &head, const std::byte *payload, size_t length) {
    auto refuse = [&](const std::string &why) {
        spdlog::warn("trunk to {} refused: {}", t.address, why);
        t.refused = why;
        close(t, why);
        return false;
    };
    if (t.state == Trunk::State::greeting) {
        if (head.type != TRUNK_HELLO || length != sizeof t.theirs) return refuse("no greeting");
        std::memcpy(&t.theirs, payload, sizeof t.theirs);
        if (t.theirs.cookie != FABRIC_COOKIE) return refuse("the other side is no sanfabricd");
        if (t.theirs.version != FABRIC_VERSION)
            return refuse("it speaks version " + std::to_string(t.theirs.version) + ", this manager " + std::to_string(FABRIC_VERSION));
        if (t.theirs.manager == manager_id_) return refuse("a manager does not join itself");
        t.state = Trunk::State::proving;
        std::string mine = proof(t, true);
        send(t, TRUNK_AUTH, 0, 0, mine.data(), mine.size());
        return true;
    }
    if (t.state == Trunk::State::proving) {
        std::string wanted = proof(t, false);
        if (head.type != TRUNK_AUTH || length != wanted.size() || CRYPTO_memcmp(payload, wanted.data(), length) != 0)
            return refuse("the shared secrets differ");
        t.state = Trunk::State::up;
        spdlog::info("trunk to {} is up", t.address);
        host_.each_local_nic([&](uint64_t key, const fabric_nic &nic) { announce(t, key, nic); });
        return true;
    }
    switch (head.type) {
        case TRUNK_PING: return true;
        case TRUNK_NIC_UP: {
            fabric_nic nic;
            if (length != sizeof nic || t.remotes.size() >= FABRIC_MAX_NICS || t.remotes.count(head.from)) return refuse("malformed NIC_UP");
            std::memcpy(&nic, payload, sizeof nic);
            nic.nram = 0;
            nic.name[sizeof nic.name - 1] = 0;
            bool clash = false;
            std::vector<uint64_t> locals;
            host_.each_local_nic([&](uint64_t key, const fabric_nic &l) {
                clash |= l.ip == nic.ip || l.guid == nic.guid;
                locals.push_back(key);
            });
            if (clash) spdlog::warn("remote NIC '{}' has the address of a local one; it is not joined", name_of(nic));
            t.remotes[head.from].nic = nic;
            for (uint64_t key : locals)
                if (!clash) add_relay(t, head.from, key);
            return true;
        }
        case TRUNK_NIC_DOWN: drop_remote(t, head.from); return true;
        case TRUNK_RECORD: {
            auto r = t.remotes.find(head.from);
            if (r == t.remotes.end()) return true;  // it has just gone
            auto relay = r->second.relays.find(head.to);
            if (relay == r->second.relays.end() || length < sizeof(fabric_msg)) return true;
            if (relay->second->backlog_bytes + length > kMaxBacklog) return true;  // lost; the transport sends it again
            relay->second->backlog.emplace_back(payload, payload + length);
            relay->second->backlog_bytes += length;
            deliver(*relay->second);
            return true;
        }
        default: return refuse("unknown frame " + std::to_string(head.type));
    }
}

// --- relayed links --------------------------------------------------------------------------------------------------------------

// To the other host: a NIC of ours, without its RAM.
void Trunks::announce(Trunk &t, uint64_t key, const fabric_nic &nic) {
    fabric_nic bare = nic;
    bare.nram = 0;
    send(t, TRUNK_NIC_UP, key, 0, &bare, sizeof bare);
}

void Trunks::add_relay(Trunk &t, uint64_t number, uint64_t key) {
    Remote &remote = t.remotes[number];
    auto r = std::make_unique<Relay>();
    r->local = key;
    r->remote = number;
    r->link = random64();
    r->memory = make_memfd("sanlab-relay", FABRIC_LINK_BYTES);
    r->map = Mapping::of(r->memory, 0, FABRIC_LINK_BYTES);
    r->wake_us = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    r->wake_nic = Fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!r->map.data() || !r->wake_us || !r->wake_nic) {
        spdlog::error("cannot make a relayed link: {}", std::strerror(errno));
        return;
    }
    format_link(r->map.data());
    r->from_nic = RingReader(r->map.data());
    r->to_nic = RingWriter(r->map.data() + FABRIC_RING_STRIDE);
    std::atomic_ref<uint32_t>(r->to_nic.header()->attached).store(1);
    r->from_nic.set_waiting(true);
    r->number = host_.watch_trunk(r->wake_us.get());
    r->watcher = &host_;
    fabric_ctl ctl = ctl_message(FABRIC_CTL_LINK);
    ctl.status = FABRIC_LINK_RELAYED;
    ctl.link = r->link;
    ctl.nic = remote.nic;
    if (!host_.tell_nic(key, ctl, {r->memory.get(), r->wake_nic.get(), r->wake_us.get()})) return;
    remote.relays[key] = std::move(r);
}

void Trunks::drop_remote(Trunk &t, uint64_t number) {
    auto it = t.remotes.find(number);
    if (it == t.remotes.end()) return;
    Remote gone = std::move(it->second);
    t.remotes.erase(it);
    for (auto &[key, relay] : gone.relays) {
        fabric_ctl ctl = ctl_message(FABRIC_CTL_PEER_DOWN);
        ctl.link = relay->link;
        ctl.nic = gone.nic;
        host_.tell_nic(key, ctl, {});
    }
}

// From the local NIC's ring to what waits for the connection.
void Trunks::pump(Trunk &t, Relay &r) {
    uint64_t n;
    [[maybe_unused]] ssize_t got = read(r.wake_us.get(), &n, sizeof n);
    bool moved = false, full = false;
    for (;;) {
        full = t.out.size() - t.out_done > kMaxOutput;
        if (full) break;
        std::span<const std::byte> record = r.from_nic.front();
        if (record.empty()) break;
        send(t, TRUNK_RECORD, r.local, r.remote, record.data(), record.size());
        r.from_nic.pop();
        moved = true;
    }
    if (moved && r.from_nic.take_starved()) wake(r.wake_nic);
    if (!full) r.from_nic.set_waiting(true);  // else tick() comes back
}

// From the backlog to the local NIC's ring.
void Trunks::deliver(Relay &r) {
    while (!r.backlog.empty()) {
        const auto &record = r.backlog.front();
        std::span<std::byte> room = r.to_nic.reserve(record.size());
        if (room.empty()) return;
        std::memcpy(room.data(), record.data(), record.size());
        if (r.to_nic.commit()) wake(r.wake_nic);
        r.backlog_bytes -= record.size();
        r.backlog.pop_front();
    }
}

void Trunks::nic_joined(uint64_t key, const fabric_nic &nic) {
    for (auto &t : trunks_) {
        if (t->state != Trunk::State::up) continue;
        announce(*t, key, nic);
        for (auto &[number, remote] : t->remotes)
            if (remote.nic.ip != nic.ip && remote.nic.guid != nic.guid) add_relay(*t, number, key);
        flush(*t);
    }
}

void Trunks::nic_left(uint64_t key) {
    for (auto &t : trunks_) {
        for (auto &[number, remote] : t->remotes) remote.relays.erase(key);
        if (t->state != Trunk::State::up) continue;
        send(*t, TRUNK_NIC_DOWN, key, 0, nullptr, 0);
        flush(*t);
    }
}

nlohmann::json Trunks::status() const {
    static const char *const names[] = {"down", "connecting", "greeting", "proving", "up"};
    nlohmann::json j = nlohmann::json::array();
    if (listener_) j.push_back({{"address", listening_}, {"state", "listening"}, {"nics", 0}});
    for (const auto &t : trunks_) {
        j.push_back({{"address", t->address}, {"state", names[static_cast<int>(t->state)]}, {"nics", t->remotes.size()}});
        if (t->state != Trunk::State::up && !t->error.empty()) j.back()["error"] = t->error;
    }
    return j;
}

}  // namespace fabric
