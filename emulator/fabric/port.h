// SPDX-License-Identifier: GPL-2.0-or-later
// port.h: a NIC's place on the fabric: its connection to sanfabricd and its links to the other NICs.
//
// The manager is needed to join, to learn of new peers, and to learn at once of one that died; it is not needed for data. When it
// goes away the links stay; the port keeps trying to reach it, says HELLO again, and keeps every link whose other end is still there.
// Owned by one thread (the engine); nothing here blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fault_filter.h"
#include "fd.h"
#include "nic/host.h"
#include "ring.h"

namespace snic {
class Nic;
}

namespace fabric {

struct PortConfig {
    std::string path;  // of the manager's socket; empty: no fabric
    std::string name;
    uint64_t guid = 0;
    uint64_t instance = 0;
    uint32_t ip = 0, prefix = 24;
    struct Ram {
        int fd;
        uint64_t size, fd_offset;
    };
    std::vector<Ram> ram;  // shared pieces only, at most FABRIC_MAX_RAM; empty: payload path
};

class Port : public snic::Link {
  public:
    using Log = std::function<void(int level, const std::string &)>;
    Port(PortConfig config, Log log);
    ~Port() override;

    // Descriptor that becomes readable when there is something for poll(): for the engine's sleep.
    int wait_fd() const { return epoll_.get(); }

    // Delivers at most `budget` records of each link to the NIC, and what the manager says. True: there was something.
    bool poll(snic::Nic &nic, uint64_t now, unsigned budget);
    // Manager, reconnection and clean-up: not needed at every turn.
    bool poll_control(snic::Nic &nic, uint64_t now);
    // When poll_control must run at the latest; UINT64_MAX: never.
    uint64_t deadline() const;

    // Around the engine's sleep. False: something has come in meanwhile, do not sleep.
    bool prepare_sleep();
    void woken();

    bool joined() const { return joined_; }
    void send_counters(const fabric_counters &counters);

    // snic::Link
    std::span<std::byte> reserve(snic::PeerId peer, size_t size) override;
    void commit(snic::PeerId peer) override;
    bool checksum(snic::PeerId peer) override;
    bool direct(snic::PeerId peer) override;
    std::byte *peer_ram(snic::PeerId peer, uint16_t ram, uint64_t offset, size_t len) override;
    snic::PeerId find(uint32_t ip) override;

  private:
    struct Peer {
        snic::PeerId id = 0;
        uint64_t link = 0;
        fabric_nic nic = {};
        Mapping memory;
        RingWriter out;
        RingReader in;
        Fd wake_us, wake_peer;
        std::vector<Mapping> ram;
        FaultFilter faults;
        bool relayed = false;   // the other end is the manager: the link ends with it
        bool confirmed = true;  // by the manager we are connected to now
    };
    void connect(snic::Nic &nic, uint64_t now);
    void disconnected(snic::Nic &nic, uint64_t now);
    void handle(snic::Nic &nic, const fabric_ctl &ctl, std::vector<Fd> fds, uint64_t now);
    void handle_link(snic::Nic &nic, const fabric_ctl &ctl, std::vector<Fd> fds);
    void tell_state(snic::Nic &nic, uint64_t number);
    void drop(snic::Nic &nic, snic::PeerId id, const char *why);
    Peer *find_peer(snic::PeerId id);

    PortConfig config_;
    Log log_;
    Fd epoll_;
    CtlSocket manager_;
    Mapping fault_page_;
    bool joined_ = false;       // has been, at least once
    bool welcomed_ = false;     // by the present manager
    bool complained_ = false;   // about not reaching it
    uint64_t next_try_ = 0;
    uint64_t confirm_by_ = 0;   // links that the new manager has not named by then are dead
    snic::PeerId last_id_ = 0;
    std::map<snic::PeerId, std::unique_ptr<Peer>> peers_;
    Peer *recent_ = nullptr;    // last one looked up
};

}  // namespace fabric
