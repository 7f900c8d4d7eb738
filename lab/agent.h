// SPDX-License-Identifier: GPL-2.0-or-later
// agent.h: the host's end of the micro guest's agent (guest-images/micro/agent.cc has the protocol).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runner.h"

namespace lab {

class Agent {
  public:
    // Connects to the serial port's socket and waits until the guest answers. Throws when it does not within `seconds`.
    Agent(const std::string &socket, double seconds);
    ~Agent();
    Agent(const Agent &) = delete;

    // The Linux driver that has the SAN NIC: vfio-pci, uio_pci_generic or none.
    const std::string &driver() const { return driver_; }
    // Starts a program in the guest; one at a time for each agent.
    std::unique_ptr<Runner> run(const std::vector<std::string> &argv, unsigned seconds, LineSink sink);
    void power_off();

  private:
    friend class AgentRunner;
    bool read_line(std::string &line,
                   int timeout_ms);  // false: nothing within that time. Throws when the guest is gone.
    void send(const std::string &line);
    int fd_ = -1;
    std::string in_;
    std::string driver_;
    unsigned sequence_ = 0;
};

}  // namespace lab
