// SPDX-License-Identifier: GPL-2.0-or-later
// place.h: where PE programs run in pairs: two nthost processes on this host, or two guests of the lab.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "paths.h"
#include "runner.h"

namespace lab {

class Place {
  public:
    virtual ~Place() = default;
    // Two machines, 0 and 1, joined by a fabric.
    virtual std::string ip(unsigned machine) const = 0;
    virtual std::string name(unsigned machine) const = 0;
    // Runs PROGRAM.exe with arguments on one of them.
    virtual std::unique_ptr<Runner> start(unsigned machine, const std::string &program,
                                          const std::vector<std::string> &arguments, unsigned seconds,
                                          LineSink sink) = 0;
    // Buffer that bandwidth tests cycle through, bytes with suffix.
    virtual std::string buffer() const = 0;
    virtual std::string description() const = 0;
};

struct HostPlaceOptions {
    bool direct = true;
    std::string revoke = "key";
};
std::unique_ptr<Place> host_place(const Paths &paths, const HostPlaceOptions &options);
// Guests `from` and `to` of the lab that is up, counted from 1: ours alone as long as the place lives. `what`: for
// others who want them. UserError when there is no such guest, or when it is busy.
std::unique_ptr<Place> vm_place(const Paths &paths, unsigned from, unsigned to, const std::string &what);

}  // namespace lab
