// SPDX-License-Identifier: GPL-2.0-or-later
// hypervisor.h: libvirt, as far as sanlab needs it: a connection (to a running libvirtd, or to a private one that we
// start), and domains.
#pragma once

#include <libvirt/libvirt.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "paths.h"

namespace lab {

// A libvirtd of our own, in a mount namespace of its own: its sockets, state and configuration lie below DIR, the
// system's are neither used nor changed. Needs root.
class PrivateDaemon {
  public:
    explicit PrivateDaemon(std::string dir) : dir_(std::move(dir)) {}
    bool running() const;
    // Starts virtlogd and libvirtd and waits until they answer.
    void start();
    void stop();
    std::string uri() const;

  private:
    std::string dir_;
};

class Hypervisor {
  public:
    // uri empty: a running libvirtd's qemu:///system, else the private one below `run` (started if `may_start`).
    // Throws UserError when neither is to be had.
    static std::unique_ptr<Hypervisor> connect(const std::string &uri, const std::string &run, bool may_start);
    ~Hypervisor();

    const std::string &uri() const { return uri_; }
    bool is_private() const { return private_; }
    std::string capabilities();

    // Creates and starts a transient domain. Throws with libvirt's message.
    void create(const std::string &xml);
    // Ends it at once; false: there is none of that name.
    bool destroy(const std::string &name);
    struct Info {
        std::string state;  // running, paused, ..., "gone"
        pid_t pid = 0;      // of the QEMU process, 0: not known
        unsigned long memory_kib = 0;
    };
    Info info(const std::string &name);

    // Is there a libvirtd on this host, the system's or the private one below `run`?
    static bool somebody_serves(const std::string &run);

    // A persistent domain as it will be at its next start, by name or UUID. Throws UserError: unknown, transient.
    struct Definition {
        std::string xml;
        bool active = false;
    };
    Definition definition(const std::string &name);
    // Name and description of each persistent domain.
    std::vector<std::pair<std::string, std::string>> definitions();
    // Replaces it. Throws UserError with libvirt's message.
    void define(const std::string &xml);
    // Why libvirt could not start such a domain; empty: it could.
    std::string objection(const std::string &xml);
    // How libvirt confines the hypervisors that it starts.
    struct Security {
        std::optional<uid_t> user;                  // none: whoever calls
        std::vector<std::string> confining_models;  // apparmor, selinux: rules about files and sockets
    };
    Security security();

  private:
    Hypervisor() = default;
    virConnectPtr conn_ = nullptr;
    std::string uri_, run_;
    bool private_ = false;
};

}  // namespace lab
