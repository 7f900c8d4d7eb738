// SPDX-License-Identifier: GPL-2.0-or-later
#include "sim_world.h"

#include <algorithm>

namespace sim {

Machine::Machine(World &world, uint32_t index, snic::Config config, size_t ram_bytes)
    : world_(world),
      index_(index),
      ram(ram_bytes),
      nic(*this, *this, config),
      interrupts(config.vectors),
      forbidden_read(ram_bytes >> 12),
      forbidden_write(ram_bytes >> 12) {
    nic.set_link(true);
}

std::byte *Machine::map(uint64_t addr, size_t &len, bool write) {
    if (addr < kRamBase || addr - kRamBase >= ram.size()) return nullptr;
    if (on_map && !on_map(addr, len, write)) return nullptr;
    uint64_t offset = addr - kRamBase;
    // At most to the end of the page, as behind an IOMMU.
    len = std::min<size_t>({len, 4096 - (offset & 4095), ram.size() - offset});
    if ((write ? forbidden_write : forbidden_read)[offset >> 12]) violations++;
    return ram.data() + offset;
}

snic::RamRef Machine::ram_ref(const std::byte *p, size_t) {
    if (!share_ram) return {};
    return {true, 0, static_cast<uint64_t>(p - ram.data())};
}

uint64_t Machine::now_ns() { return world_.now; }
uint32_t Machine::random() { return static_cast<uint32_t>(world_.rng()); }

std::span<std::byte> Machine::reserve(snic::PeerId peer, size_t size) {
    uint32_t to = peer - 1;
    if (!world_.up(index_, to) || world_.under_way(index_, to) >= link_capacity) return {};
    pending_.assign(size, std::byte{0xEE});
    return pending_;
}

void Machine::commit(snic::PeerId peer) { world_.post(index_, peer - 1, pending_); }

bool Machine::direct(snic::PeerId peer) { return share_ram && world_.machines[peer - 1]->share_ram; }

std::byte *Machine::peer_ram(snic::PeerId peer, uint16_t ram_index, uint64_t offset, size_t len) {
    Machine &other = *world_.machines[peer - 1];
    if (ram_index != 0 || offset > other.ram.size() || len > other.ram.size() - offset) return nullptr;
    return other.ram.data() + offset;
}

snic::PeerId Machine::find(uint32_t ip) {
    for (uint32_t i = 0; i < world_.machines.size(); i++)
        if (i != index_ && world_.machines[i]->nic.config().ip == ip && world_.up(index_, i)) return i + 1;
    return snic::kNoPeer;
}

Machine &World::add(snic::Config config, size_t ram_bytes) {
    uint32_t index = static_cast<uint32_t>(machines.size());
    config.ip = 0x0A000001 + index;
    config.guid = 0x5A00 + index;
    machines.push_back(std::make_unique<Machine>(*this, index, config, ram_bytes));
    return *machines.back();
}

void World::post(uint32_t from, uint32_t to, std::vector<std::byte> record) {
    if (!up(from, to) || chance(faults.loss_ppm)) return;
    if (auto silent = silent_until_.find(std::minmax(from, to)); silent != silent_until_.end() && now < silent->second)
        return;
    auto &q = queues_[{from, to}];
    if (chance(faults.corrupt_ppm)) record[rng() % record.size()] ^= std::byte{static_cast<uint8_t>(1u << rng() % 8)};
    uint64_t due = now + faults.delay_ns + (faults.jitter_ns ? rng() % faults.jitter_ns : 0);
    bool twice = chance(faults.duplicate_ppm), early = chance(faults.reorder_ppm);
    if (twice) q.push_back({due, record});
    if (early && !q.empty()) q.insert(q.end() - 1, {due, std::move(record)});
    else q.push_back({due, std::move(record)});
}

void World::flap(uint32_t a, uint32_t b, uint64_t ns) {
    silent_until_[std::minmax(a, b)] = now + ns;
    queues_[{a, b}].clear();
    queues_[{b, a}].clear();
}

void World::sever(uint32_t a, uint32_t b) {
    cut[{std::min(a, b), std::max(a, b)}] = true;
    queues_[{a, b}].clear();
    queues_[{b, a}].clear();
    machines[a]->nic.peer_down(b + 1);
    machines[b]->nic.peer_down(a + 1);
}

bool World::turn() {
    // Every NIC in a random order; before each, with some chance, records that are due.
    bool moved = false;
    std::vector<uint32_t> order(machines.size());
    for (uint32_t i = 0; i < order.size(); i++) order[i] = i;
    std::shuffle(order.begin(), order.end(), rng);
    for (uint32_t to : order) {
        for (uint32_t from = 0; from < machines.size(); from++) {
            auto it = queues_.find({from, to});
            if (it == queues_.end()) continue;
            auto &q = it->second;
            for (uint64_t n = rng() % 8; n > 0 && !q.empty() && q.front().due <= now; n--) {
                std::vector<std::byte> record = std::move(q.front().record);
                q.pop_front();
                machines[to]->nic.receive(from + 1, record);
                moved = true;
            }
        }
        moved |= machines[to]->nic.step(1 + rng() % 16);
    }
    if (moved) {
        now += 100;
        return true;
    }
    // Idle: on to the next thing that is due.
    uint64_t next = snic::Nic::kNever;
    for (auto &m : machines) {
        if (!m->nic.prepare_sleep()) return true;
        next = std::min(next, m->nic.deadline());
    }
    for (auto &[key, q] : queues_)
        if (!q.empty()) next = std::min(next, q.front().due);
    if (next == snic::Nic::kNever) return false;
    now = std::max(now + 1, next);
    return true;
}

bool World::run(const std::function<bool()> &done, uint64_t limit) {
    while (limit-- > 0) {
        if (done()) return true;
        if (!turn()) return done();
    }
    return false;
}

}  // namespace sim
