// SPDX-License-Identifier: GPL-2.0-or-later
// trunk.h: joins the NICs of this manager with those of managers on other hosts (fabric_wire.h, section 5).
//
// For every pair of a local and a remote NIC this manager makes a relayed link: to the local NIC it looks like any other, its far end is here,
// and records travel as frames of a TCP connection. Both sides prove that they know a shared secret before anything else is said. A trunk that
// breaks takes its links with it and is joined again. Remote NICs are not passed on to further trunks, so there are no loops.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "fd.h"
#include "ring.h"

namespace fabric {

// What trunks need of the manager that owns them.
class TrunkHost {
  public:
    virtual ~TrunkHost() = default;
    virtual void each_local_nic(const std::function<void(uint64_t key, const fabric_nic &)> &f) = 0;
    // To a local NIC. False: it is gone.
    virtual bool tell_nic(uint64_t key, const fabric_ctl &ctl, const std::vector<int> &fds) = 0;
    // Watches a descriptor for input (and output, if asked); its events come back to Trunks::serve with the returned number.
    virtual uint64_t watch_trunk(int fd) = 0;
    virtual void want_output(int fd, uint64_t number, bool output) = 0;
    // Before closing a descriptor that somebody else has, too: its being closed here would not end the watch.
    virtual void unwatch_trunk(int fd) = 0;
};

class Trunks {
  public:
    Trunks(TrunkHost &host, uint64_t manager_id, std::string secret);
    ~Trunks();

    // HOST:PORT, numeric IPv4; port 0 for listen: one that is free (address() tells). False with *error set.
    bool listen(const std::string &address, std::string *error);
    bool join(const std::string &address, std::string *error);

    // True if `number` is one of ours; then it has been served.
    bool serve(uint64_t number);
    // Reconnects, pings, gives up on the silent. Call at least every 100 ms.
    void tick(uint64_t now_ns);
    void nic_joined(uint64_t key, const fabric_nic &nic);
    void nic_left(uint64_t key);
    const std::string &address() const { return listening_; }
    // {"address":..., "state":..., "nics":N, "error":...} of each trunk, and of where they are taken; error: why it was closed last.
    nlohmann::json status() const;

  private:
    struct Trunk;
    struct Relay;
    struct Remote;
    void start(std::unique_ptr<Trunk> trunk, Fd fd);
    void serve_trunk(Trunk &t);
    bool frame(Trunk &t, const trunk_frame &head, const std::byte *payload, size_t length);
    void established(Trunk &t);
    void send(Trunk &t, uint16_t type, uint64_t from, uint64_t to, const void *payload, size_t length);
    void flush(Trunk &t);
    void close(Trunk &t, const std::string &why);
    void add_relay(Trunk &t, uint64_t number, uint64_t key);
    void drop_remote(Trunk &t, uint64_t number);
    void announce(Trunk &t, uint64_t key, const fabric_nic &nic);
    void pump(Trunk &t, Relay &relay);
    void deliver(Relay &relay);
    std::string proof(const Trunk &t, bool ours) const;

    TrunkHost &host_;
    uint64_t manager_id_;
    std::string secret_;
    Fd listener_;
    std::string listening_;  // address
    uint64_t listener_number_ = 0;
    uint64_t now_ = 0;
    std::vector<std::unique_ptr<Trunk>> trunks_;
};

}  // namespace fabric
