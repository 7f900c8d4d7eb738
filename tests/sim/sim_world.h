// SPDX-License-Identifier: GPL-2.0-or-later
// sim_world.h: several NICs, their computers' RAM and the links between them in one process under one clock and one
// seed. Nothing happens but what World::run does; the same seed gives the same run.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "nic/nic.h"

namespace sim {

struct Faults {
    uint32_t loss_ppm = 0, duplicate_ppm = 0, corrupt_ppm = 0, reorder_ppm = 0;
    uint64_t delay_ns = 1000, jitter_ns = 0;
};

class World;

// One computer: RAM, a NIC, and the records that travel towards it.
class Machine : public snic::Host, public snic::Link {
    World &world_;  // first: the NIC draws random numbers while it is constructed
    uint32_t index_;

  public:
    Machine(World &world, uint32_t index, snic::Config config, size_t ram_bytes);

    static constexpr uint64_t kRamBase = 0x100000;  // bus address of ram[0]
    std::vector<std::byte> ram;
    snic::Nic nic;
    std::vector<uint32_t> interrupts;  // by vector
    bool share_ram = true;
    size_t link_capacity = 256;  // records under way to one peer
    // A page (index in RAM) that must not be accessed: a device that strays is found out.
    std::vector<bool> forbidden_read, forbidden_write;
    uint64_t violations = 0;
    // Called before each access of the NIC to memory: a guest that changes it under the NIC. False: it is no RAM (any
    // more).
    std::function<bool(uint64_t addr, size_t len, bool write)> on_map;

    template <typename T>
    T *at(uint64_t bus) {
        return reinterpret_cast<T *>(ram.data() + (bus - kRamBase));
    }

    std::byte *map(uint64_t addr, size_t &len, bool write) override;
    snic::RamRef ram_ref(const std::byte *p, size_t len) override;
    uint64_t now_ns() override;
    uint32_t random() override;
    void interrupt(unsigned vector) override { interrupts.at(vector)++; }
    void log(int, const char *) override {}

    std::span<std::byte> reserve(snic::PeerId peer, size_t size) override;
    void commit(snic::PeerId peer) override;
    bool checksum(snic::PeerId) override { return true; }
    bool direct(snic::PeerId peer) override;
    std::byte *peer_ram(snic::PeerId peer, uint16_t ram, uint64_t offset, size_t len) override;
    snic::PeerId find(uint32_t ip) override;

  private:
    std::vector<std::byte> pending_;
};

class World {
  public:
    explicit World(uint64_t seed) : rng(seed) {}

    std::mt19937_64 rng;
    uint64_t now = 1'000'000;
    Faults faults;
    std::vector<std::unique_ptr<Machine>> machines;     // PeerId = index + 1
    std::map<std::pair<uint32_t, uint32_t>, bool> cut;  // link is down (a, b)

    Machine &add(snic::Config config = {}, size_t ram_bytes = 4 << 20);
    void post(uint32_t from, uint32_t to, std::vector<std::byte> record);
    bool up(uint32_t a, uint32_t b) { return !cut[{std::min(a, b), std::max(a, b)}]; }
    // Takes a link down for a while: what is under way is lost, and all that is sent meanwhile. Nobody is told.
    void flap(uint32_t a, uint32_t b, uint64_t ns);
    // Takes a link down for good and tells both NICs.
    void sever(uint32_t a, uint32_t b);
    size_t under_way(uint32_t from, uint32_t to) { return queues_[{from, to}].size(); }

    // One turn: a random choice among delivering a record and stepping a NIC; time advances when nothing is left to do.
    // False: nothing will ever happen again without new input.
    bool turn();
    // Turns until `done` or until nothing moves or `limit` turns. Returns whether `done` was reached.
    bool run(const std::function<bool()> &done, uint64_t limit = 200'000);

  private:
    struct Flight {
        uint64_t due;
        std::vector<std::byte> record;
    };
    bool chance(uint32_t ppm) { return ppm && rng() % 1'000'000 < ppm; }
    std::map<std::pair<uint32_t, uint32_t>, std::deque<Flight>> queues_;
    std::map<std::pair<uint32_t, uint32_t>, uint64_t> silent_until_;  // by flap()
};

}  // namespace sim
