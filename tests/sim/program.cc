// SPDX-License-Identifier: GPL-2.0-or-later
#include "program.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "guest.h"

namespace sim {

namespace {

constexpr uint32_t kSlot = 8 * 1024;  // bytes of one operation's buffer
constexpr uint32_t kSlots = 12;       // operations in flight in one direction
constexpr uint32_t kGuard = 4096;
constexpr uint8_t kCanary = 0xC7;

// Memory of one direction of a connection: sources and receive slots, the window the peer may write, the window it may
// read.
struct Side {
    Guest *guest = nullptr;
    uint32_t machine = 0;
    GuestQp qp;
    GuestCq cq;
    uint64_t local = 0, window = 0, library = 0, receive = 0;  // each kSlot * kSlots, guards around
    uint64_t local_key = 0, window_key = 0, library_key = 0, receive_key = 0;
    std::vector<uint8_t> window_model;  // what the peer's writes must have made of it
    struct Posted {
        uint8_t opcode;
        uint32_t slot, length;
        uint64_t at;  // offset in the peer's window or library
        std::vector<uint8_t> data;
        bool bad;  // must fail
    };
    std::map<uint64_t, Posted> sends;       // by wr_id
    std::map<uint64_t, uint32_t> receives;  // by wr_id: slot
    std::set<uint32_t> free_slots, free_receives;
    std::vector<std::pair<uint64_t, std::vector<uint8_t>>> expected;  // messages that must arrive, in order
    size_t arrived = 0;
    uint64_t next_id = 1;
    uint32_t to_do = 0;
    bool broken = false;  // an error is legal from now on
};

struct Run {
    World world;
    Shape shape;
    std::vector<std::unique_ptr<SimBoard>> boards;
    std::vector<std::unique_ptr<Guest>> guests;
    std::vector<std::unique_ptr<std::pair<Side, Side>>> pairs;
    Verdict verdict;

    Run(uint64_t seed, const Shape &s) : world(seed), shape(s) {}
    uint64_t pick(uint64_t n) { return world.rng() % n; }
    bool fail(const std::string &what) {
        if (verdict.ok) verdict.what = what;
        return verdict.ok = false;
    }
    bool run();
    bool set_up();
    uint64_t area(Guest &g);
    bool make_side(Side &s, uint32_t machine);
    void post(Side &s, Side &peer);
    bool harvest(Side &s, Side &peer);
    bool check_memory(Side &s);
    bool tear_down();
};

bool same(const void *a, const void *b, size_t n) { return n == 0 || std::memcmp(a, b, n) == 0; }

uint64_t Run::area(Guest &g) {
    uint64_t at = g.alloc(kSlot * kSlots + 2 * kGuard);
    std::memset(g.machine.at<char>(at), kCanary, kGuard);
    std::memset(g.machine.at<char>(at + kGuard + kSlot * kSlots), kCanary, kGuard);
    return at + kGuard;
}

bool Run::make_side(Side &s, uint32_t machine) {
    s.machine = machine;
    s.guest = guests[machine].get();
    Guest &g = *s.guest;
    s.cq = g.create_cq(256);
    s.qp = g.create_qp(s.cq, s.cq, 32, 256);
    s.local = area(g);
    s.window = area(g);
    s.library = area(g);
    s.receive = area(g);
    s.window_model.assign(kSlot * kSlots, 0);
    for (uint32_t i = 0; i < kSlot * kSlots; i += 8) *g.machine.at<uint64_t>(s.library + i) = world.rng();
    for (uint32_t i = 0; i < kSlots; i++) s.free_slots.insert(i), s.free_receives.insert(i);
    s.local_key = g.register_mr(s.local, kSlot * kSlots, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
    s.receive_key = g.register_mr(s.receive, kSlot * kSlots, SNIC_ACCESS_LOCAL_WRITE);
    s.to_do = shape.ops;
    return s.qp.qpn && s.local_key && s.receive_key;
}

bool Run::set_up() {
    snic::Config config;
    config.revoke_by_deregister = pick(4) == 0;
    // Small segments: operations of many segments without much memory.
    config.direct_segment = static_cast<uint32_t>(600 + pick(6000));
    config.payload_segment = static_cast<uint32_t>(100 + pick(3000));
    for (uint32_t i = 0; i < shape.nics; i++) {
        Machine &m = world.add(config, size_t{3} << 19);
        m.share_ram = pick(2);
        m.link_capacity = 4 + pick(60);
        boards.push_back(std::make_unique<SimBoard>(world, m));
        guests.push_back(std::make_unique<Guest>(*boards.back()));
        guests.back()->start();
    }
    if (shape.faults && pick(3)) {
        // At most 2 % each: high enough for every kind of recovery, low enough that eight tries in a row do not fail by
        // chance.
        auto rate = [&] { return pick(2) ? static_cast<uint32_t>(pick(20'000)) : 0; };
        world.faults.loss_ppm = rate();
        world.faults.duplicate_ppm = rate();
        world.faults.corrupt_ppm = rate();
        world.faults.reorder_ppm = rate();
        world.faults.jitter_ns = pick(2) ? pick(200'000) : 0;
    }
    std::vector<uint32_t> load(shape.nics);
    for (uint32_t i = 0; i < shape.pairs; i++) {
        auto pair = std::make_unique<std::pair<Side, Side>>();
        uint32_t a = static_cast<uint32_t>(pick(shape.nics)), b = static_cast<uint32_t>(pick(shape.nics - 1));
        if (b >= a) b++;
        if (load[a] == 2 || load[b] == 2) continue;  // RAM of a machine holds two sides
        load[a]++, load[b]++;
        if (!make_side(pair->first, a) || !make_side(pair->second, b)) return fail("set-up of a side failed");
        if (!connect(*pair->first.guest, pair->first.qp, *pair->second.guest, pair->second.qp,
                     static_cast<uint16_t>(7000 + i)))
            return fail("connection " + std::to_string(i) + " was not established");
        for (Side *s : {&pair->first, &pair->second}) {
            s->window_key = s->guest->register_mr(s->window, kSlot * kSlots,
                                                  SNIC_ACCESS_REMOTE_WRITE | SNIC_ACCESS_LOCAL_WRITE, s->qp.qpn);
            s->library_key = s->guest->register_mr(s->library, kSlot * kSlots, SNIC_ACCESS_REMOTE_READ, s->qp.qpn);
            if (!s->window_key || !s->library_key) return fail("exposure failed");
        }
        pairs.push_back(std::move(pair));
    }
    return true;
}

void Run::post(Side &s, Side &peer) {
    while (!peer.free_receives.empty() && !peer.broken && pick(3)) {
        uint32_t slot = *peer.free_receives.begin();
        peer.free_receives.erase(peer.free_receives.begin());
        uint64_t id = peer.next_id++;
        peer.receives[id] = slot;
        uint64_t at = peer.receive + slot * kSlot;
        uint32_t head = static_cast<uint32_t>(pick(kSlot));
        peer.guest->post_recv(peer.qp, id, {{at, peer.receive_key, head}, {at + head, peer.receive_key, kSlot - head}});
    }
    if (s.to_do == 0 || s.free_slots.empty() || s.broken) return;
    s.to_do--;
    uint32_t slot = *s.free_slots.begin();
    s.free_slots.erase(s.free_slots.begin());
    Side::Posted op = {};
    op.opcode = static_cast<uint8_t>(SNIC_WR_SEND + pick(3));
    op.slot = slot;
    op.length = static_cast<uint32_t>(pick(4) ? pick(200) : pick(kSlot));
    op.at = pick(kSlot * kSlots - op.length);
    uint64_t local = s.local + slot * kSlot;
    auto *bytes = s.guest->machine.at<uint8_t>(local);
    for (uint32_t i = 0; i < op.length; i++) bytes[i] = static_cast<uint8_t>(world.rng());
    uint64_t key = op.opcode == SNIC_WR_RDMA_READ ? peer.library_key : peer.window_key;
    uint64_t remote = (op.opcode == SNIC_WR_RDMA_READ ? peer.library : peer.window) + op.at;
    if (shape.upsets && op.opcode != SNIC_WR_SEND && op.length && pick(200) == 0) {
        op.bad = s.broken = peer.broken = true;
        switch (pick(3)) {
            case 0: key ^= 1ull << (32 + pick(32)); break;
            case 1: remote += kSlot * kSlots; break;
            case 2: key = op.opcode == SNIC_WR_RDMA_READ ? peer.window_key : peer.library_key; break;
        }
    }
    op.data.assign(bytes, bytes + op.length);
    if (!op.bad && op.opcode == SNIC_WR_RDMA_WRITE)
        std::copy(op.data.begin(), op.data.end(), peer.window_model.begin() + static_cast<ptrdiff_t>(op.at));
    if (op.opcode == SNIC_WR_SEND) peer.expected.emplace_back(0, op.data);
    if (op.opcode == SNIC_WR_RDMA_READ)
        op.data.assign(peer.guest->machine.at<uint8_t>(peer.library + op.at),
                       peer.guest->machine.at<uint8_t>(peer.library + op.at) + op.length);
    // One to three elements.
    std::vector<Sge> sges;
    uint32_t left = op.length;
    for (uint32_t n = static_cast<uint32_t>(pick(3)); n > 0 && left; n--) {
        uint32_t part = static_cast<uint32_t>(pick(left));
        sges.push_back({local + (op.length - left), s.local_key, part});
        left -= part;
    }
    sges.push_back({local + (op.length - left), s.local_key, left});
    uint64_t id = s.next_id++;
    uint8_t flags = SNIC_WQE_SIGNALED | (pick(8) == 0 ? SNIC_WQE_FENCE : 0);
    s.guest->post_send(s.qp, op.opcode, id, sges, remote, key, flags);
    s.sends[id] = std::move(op);
}

bool Run::harvest(Side &s, Side &peer) {
    snic_cqe c;
    while (s.guest->poll(s.cq, c)) {
        verdict.completions++;
        bool error = c.status != SNIC_WC_SUCCESS;
        if (error && !s.broken) {
            // The events say more than the status: those of both sides, type/reason/status.
            std::string events;
            for (Guest *g : {s.guest, peer.guest}) {
                g->poll_events();
                for (const snic_eqe &e : g->events)
                    events +=
                        ' ' + std::to_string(e.type) + '/' + std::to_string(e.reason) + '/' + std::to_string(e.status);
                events += " |";
            }
            return fail("status " + std::to_string(c.status) + " without a reason for an error; events" + events);
        }
        if (auto r = s.receives.find(c.wr_id); r != s.receives.end()) {
            uint32_t slot = r->second;
            s.receives.erase(r);
            s.free_receives.insert(slot);
            if (error) continue;
            if (s.arrived >= s.expected.size()) return fail("a message that nobody sent");
            const auto &want = s.expected[s.arrived++].second;
            if (c.byte_len != want.size() ||
                !same(s.guest->machine.at<char>(s.receive + slot * kSlot), want.data(), want.size()))
                return fail("message " + std::to_string(s.arrived) + " arrived with wrong length or bytes");
            continue;
        }
        auto it = s.sends.find(c.wr_id);
        if (it == s.sends.end()) return fail("completion for work that is not outstanding (twice?)");
        // Completions of a queue come in posting order.
        if (it != s.sends.begin()) return fail("send completion out of order");
        Side::Posted &op = it->second;
        if (op.bad && c.status == SNIC_WC_SUCCESS) return fail("a forbidden access succeeded");
        if (op.bad && c.status != SNIC_WC_REM_ACCESS_ERR && c.status != SNIC_WC_WR_FLUSH_ERR &&
            c.status != SNIC_WC_RETRY_EXC_ERR)
            return fail("a forbidden access ended with status " + std::to_string(c.status));
        if (!error && c.byte_len != op.length) return fail("wrong byte_len");
        if (!error && op.opcode == SNIC_WR_RDMA_READ &&
            !same(s.guest->machine.at<char>(s.local + op.slot * kSlot), op.data.data(), op.length))
            return fail("a read brought wrong bytes");
        s.free_slots.insert(op.slot);
        s.sends.erase(it);
    }
    s.guest->poll_events();
    for (auto e = s.guest->events.begin(); e != s.guest->events.end();) {
        if (e->type == SNIC_EV_CQ_ERROR) return fail("unexpected CQ error");
        e = e->type == SNIC_EV_CONN_FAILED || e->type == SNIC_EV_CQ ? s.guest->events.erase(e) : e + 1;
    }
    return true;
}

bool Run::check_memory(Side &s) {
    Board &m = s.guest->machine;
    for (uint64_t base : {s.local, s.window, s.library, s.receive})
        for (uint32_t i = 0; i < kGuard; i++)
            if (*m.at<uint8_t>(base - 1 - i) != kCanary || *m.at<uint8_t>(base + kSlot * kSlots + i) != kCanary)
                return fail("memory outside what was granted was written");
    if (!s.broken && std::memcmp(m.at<char>(s.window), s.window_model.data(), s.window_model.size()))
        return fail("the window does not hold what the writes made of it");
    return true;
}

bool Run::tear_down() {
    world.faults = {};
    for (auto &pair : pairs) pair->first.broken = pair->second.broken = true;  // receives left over are flushed
    for (auto &pair : pairs) {
        for (Side *s : {&pair->first, &pair->second}) {
            if (s->guest->handle_command(SNIC_CMD_DESTROY_QP, s->qp.qpn).status != SNIC_OK)
                return fail("DESTROY_QP failed");
            if (!harvest(*s, s == &pair->first ? pair->second : pair->first)) return false;
        }
        for (Side *s : {&pair->first, &pair->second}) {
            if (!s->sends.empty() || !s->receives.empty()) return fail("posted work never completed");
            for (uint64_t key : {s->local_key, s->window_key, s->library_key, s->receive_key}) {
                snic_cmd_deregister_mr d = {};
                d.key = key;
                if (s->guest->command(SNIC_CMD_DEREGISTER_MR, d).status != SNIC_OK) return fail("DEREGISTER_MR failed");
            }
            if (s->guest->handle_command(SNIC_CMD_DESTROY_CQ, s->cq.cqn).status != SNIC_OK)
                return fail("a CQ is still in use");
        }
    }
    for (auto &g : guests) {
        if (g->handle_command(SNIC_CMD_DESTROY_PD, g->pd).status != SNIC_OK) return fail("a PD is still in use");
        if (g->handle_command(SNIC_CMD_DESTROY_EQ, g->eqn).status != SNIC_OK) return fail("an EQ is still in use");
    }
    for (auto &m : world.machines)
        if (m->violations) return fail("DMA to memory that was never granted");
    return true;
}

bool Run::run() {
    if (!set_up()) return false;
    auto outstanding = [&] {
        return std::any_of(pairs.begin(), pairs.end(), [](auto &p) {
            auto open = [](Side &s) { return (s.to_do && !s.broken) || !s.sends.empty(); };
            return open(p->first) || open(p->second);
        });
    };
    uint64_t turns = 0, flaps = shape.faults ? pick(4) : 0;
    while (outstanding()) {
        for (auto &p : pairs) {
            post(p->first, p->second);
            post(p->second, p->first);
        }
        for (uint64_t n = 1 + pick(20); n > 0; n--) world.turn();
        for (auto &p : pairs)
            if (!harvest(p->first, p->second) || !harvest(p->second, p->first)) return false;
        if (shape.upsets && !pairs.empty() && pick(4000) == 0) {
            auto &p = *pairs[pick(pairs.size())];
            p.first.broken = p.second.broken = true;
            switch (pick(3)) {
                case 0: p.first.guest->handle_command(SNIC_CMD_DISCONNECT, p.first.qp.qpn); break;
                case 1: {
                    snic_cmd_modify_qp m = {};
                    m.qpn = p.second.qp.qpn;
                    m.state = SNIC_QP_ERROR;
                    p.second.guest->command(SNIC_CMD_MODIFY_QP, m);
                    break;
                }
                default:
                    for (auto &other : pairs) {  // everything between the two machines ends
                        auto ends = std::minmax(other->first.machine, other->second.machine);
                        if (ends == std::minmax(p.first.machine, p.second.machine))
                            other->first.broken = other->second.broken = true;
                    }
                    world.sever(p.first.machine, p.second.machine);
            }
        }
        // Short enough for the retries, which wait for several seconds altogether.
        if (flaps && !pairs.empty() && pick(500) == 0) {
            flaps--;
            auto &p = *pairs[pick(pairs.size())];
            world.flap(p.first.machine, p.second.machine, pick(300'000'000));
        }
        // Liveness: with these fault rates a program ends long before this; when faults stop, soon after.
        if (++turns == 20'000) world.faults = {}, flaps = 0;
        if (turns > 60'000) return fail("no progress although the faults have stopped");
    }
    if (!world.run([&] {
            for (auto &p : pairs)
                if (!harvest(p->first, p->second) || !harvest(p->second, p->first)) return true;
            return std::all_of(pairs.begin(), pairs.end(), [](auto &p) {
                return (p->first.broken || p->first.arrived == p->first.expected.size()) &&
                       (p->second.broken || p->second.arrived == p->second.expected.size());
            });
        }))
        return fail("a message that was sent never arrived");
    if (!verdict.ok) return false;
    for (auto &p : pairs)
        if (!check_memory(p->first) || !check_memory(p->second)) return false;
    for (auto &m : world.machines) verdict.retransmits += m->nic.fabric_totals().retransmits;
    return tear_down();
}

}  // namespace

Verdict run_program(uint64_t seed, const Shape &shape) {
    Run run(seed, shape);
    try {
        run.run();
    } catch (const std::exception &e) {
        run.fail(e.what());
    }
    return run.verdict;
}

}  // namespace sim
