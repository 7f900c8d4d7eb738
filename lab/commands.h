// SPDX-License-Identifier: GPL-2.0-or-later
// commands.h: the commands of sanlab. Each returns the exit status; UserError becomes status 2, other exceptions status
// 1, Interrupted 128 + the signal.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "paths.h"

namespace lab {

// What was not given is empty: a new lab takes the default, one that is up keeps what it has.
struct UpOptions {
    static constexpr unsigned kGuests = 2, kMemoryMib = 512;
    std::optional<unsigned> guests, memory_mib;
    std::optional<bool> iommu, share_memory;
    std::optional<std::string> revoke;  // default: key
    std::string uri;                    // of libvirt; empty: the running one, else a private one
    unsigned boot_seconds = 60;
};
int up(const Paths &paths, const UpOptions &options);
int down(const Paths &paths);
int status(const Paths &paths, bool json);
// The state document of one guest's NIC, on standard output.
int nic_state(const Paths &paths, const std::string &guest);

struct AttachOptions {
    std::string domain;      // libvirt's name or UUID
    std::string uri;         // empty: the lab's, else a running libvirtd's
    std::string ip, fabric;  // empty: chosen; the RUN folder's own
    bool dry_run = false;
};
int attach(const Paths &paths, const AttachOptions &options);
int detach(const Paths &paths, const AttachOptions &options);

struct RunOptions {
    std::string where = "vm";  // host or vm
    std::string test;          // a sanperf test, santest, or all
    std::vector<std::string> arguments;
    std::string json_file;      // empty: none; "-": standard output, and nothing else there
    unsigned from = 1, to = 2;  // guests, counted from 1
    bool direct = true;
    std::string revoke = "key";  // host
    unsigned seconds = 300;      // for each program
};
int run(const Paths &paths, const RunOptions &options);
int doctor(const Paths &paths);

}  // namespace lab
