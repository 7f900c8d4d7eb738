// SPDX-License-Identifier: GPL-2.0-or-later
// guest.h: a small driver for one machine with a NIC, written from docs/snic.md alone: what a test needs to program the
// NIC.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "sim_world.h"

namespace sim {

// What a driver sees of its computer: RAM by bus address, the BARs, and a way to let time pass.
class Board {
  public:
    virtual ~Board() = default;
    virtual char *ram(uint64_t bus) = 0;
    virtual uint64_t ram_base() const = 0;
    virtual uint64_t ram_size() const = 0;
    virtual void write_register(uint32_t offset, uint64_t value, unsigned size) = 0;
    virtual void doorbell(uint32_t page, uint32_t offset, uint32_t value) = 0;
    virtual uint32_t ip() const = 0;
    // Lets things happen until `done`; false when that took too long.
    virtual bool run(const std::function<bool()> &done) = 0;

    template <typename T>
    T *at(uint64_t bus) {
        return reinterpret_cast<T *>(ram(bus));
    }
};

class SimBoard : public Board {
  public:
    SimBoard(World &world, Machine &machine) : world_(world), machine_(machine) {}
    char *ram(uint64_t bus) override { return machine_.at<char>(bus); }
    uint64_t ram_base() const override { return Machine::kRamBase; }
    uint64_t ram_size() const override { return machine_.ram.size(); }
    void write_register(uint32_t o, uint64_t v, unsigned s) override { machine_.nic.write_register(o, v, s); }
    void doorbell(uint32_t p, uint32_t o, uint32_t v) override { machine_.nic.doorbell(p, o, v); }
    uint32_t ip() const override { return machine_.nic.config().ip; }
    bool run(const std::function<bool()> &done) override { return world_.run(done); }

  private:
    World &world_;
    Machine &machine_;
};

struct Completion {  // of an admin command
    snic_status status;
    uint32_t detail;
    uint64_t result[6];
};

struct GuestCq {
    uint32_t cqn = 0, entries = 0, ci = 0;
    uint64_t ring = 0, record = 0;
};

struct GuestQp {
    uint32_t qpn = 0;
    uint32_t sq_entries = 0, rq_entries = 0, stride = 0, sq_pi = 0, rq_pi = 0;
    uint64_t sq = 0, rq = 0, record = 0;
    GuestCq *send_cq = nullptr, *recv_cq = nullptr;
};

struct Sge {
    uint64_t va;
    uint64_t key;
    uint32_t length;
};

class Guest {
  public:
    explicit Guest(Board &board) : machine(board), next_(board.ram_base() + 4096) {}

    Board &machine;
    uint32_t pd = 0, eqn = 0;
    uint64_t eq_ring = 0, eq_record = 0;
    uint32_t eq_ci = 0;
    std::deque<snic_eqe> events;
    static constexpr uint32_t kEqEntries = 256;

    // Page-aligned RAM, zeroed; its bus address.
    uint64_t alloc(size_t bytes);

    // Enables the NIC; makes a PD and an EQ.
    void start();
    // Posts one command and runs the world until it completes.
    Completion command(uint8_t opcode, const void *body, size_t size);
    template <typename T>
    Completion command(uint8_t opcode, const T &body) {
        return command(opcode, &body, sizeof body);
    }
    // Posts only; the completion is taken by finish().
    uint32_t post_command(uint8_t opcode, const void *body, size_t size);
    bool completed(uint32_t number, Completion &out);
    Completion handle_command(uint8_t opcode, uint32_t handle);

    uint64_t register_mr(uint64_t bus, uint64_t length, uint32_t access, uint32_t bound_qpn = 0, uint32_t in_pd = 0);
    GuestCq create_cq(uint32_t entries = 256);
    // Allocates everything; `record.kick` starts as 1.
    snic_qp_params qp_params(GuestCq &send, GuestCq &recv, GuestQp &qp, uint32_t entries = 64, uint32_t stride = 512);
    GuestQp create_qp(GuestCq &send, GuestCq &recv, uint32_t entries = 64, uint32_t stride = 512);

    void post_send(GuestQp &qp, uint8_t opcode, uint64_t wr_id, const std::vector<Sge> &sges, uint64_t remote_va = 0,
                   uint64_t rkey = 0, uint8_t flags = SNIC_WQE_SIGNALED, uint32_t imm = 0);
    void post_recv(GuestQp &qp, uint64_t wr_id, const std::vector<Sge> &sges);
    bool poll(GuestCq &cq, snic_cqe &out);
    // Runs the world until the CQ has an entry. False: none came.
    bool wait(GuestCq &cq, snic_cqe &out);
    void poll_events();
    // An event of that type, if it has come (others stay in `events`).
    bool take_event(uint8_t type, snic_eqe &out);
    // Runs the world until one comes, or `or_else` is true.
    bool wait_event(uint8_t type, snic_eqe &out, const std::function<bool()> &or_else = {});

  private:
    void write_wqe(uint64_t at, const snic_wqe &wqe);
    uint64_t next_;
    uint64_t aq_ = 0, acq_ = 0;
    uint32_t aq_posted_ = 0;
    static constexpr uint32_t kAqEntries = 64;
};

// Connects a QP of `a` with one of `b`; both are in RTS afterwards.
bool connect(Guest &a, GuestQp &qa, Guest &b, GuestQp &qb, uint16_t port = 7000);

// Does a fresh connection carry 8 KiB, whole? Completions of other QPs in `acq` are taken and dropped.
bool carries_data(Guest &a, GuestCq &acq, Guest &b, GuestCq &bcq, uint16_t port = 9000);

}  // namespace sim
