// SPDX-License-Identifier: GPL-2.0-or-later
#include "place.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "agent.h"
#include "domain_xml.h"
#include "state.h"

namespace lab {

namespace fs = std::filesystem;

namespace {

class HostPlace : public Place {
  public:
    HostPlace(const Paths &paths, const HostPlaceOptions &options) : paths_(paths), options_(options) {
        paths.need_program("nthost");
        paths.need_windows("sanproxy.sys");
        char dir[] = "/tmp/sanlab-host-XXXXXX";
        if (!mkdtemp(dir)) throw std::runtime_error("cannot make a folder below /tmp");
        dir_ = dir;
        socket_ = dir_ + "/fabric.sock";
        fabric_ = std::make_unique<Process>(
            std::vector<std::string>{paths.need_program("sanfabricd"), "--quiet", socket_},
            [](Stream, const std::string &line) { std::fprintf(stderr, "%s\n", line.c_str()); });
        for (int i = 0; i < 200 && !fs::exists(socket_ + ".ctl"); i++)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (!fs::exists(socket_ + ".ctl")) throw std::runtime_error("sanfabricd did not start");
    }
    ~HostPlace() override {
        fabric_->terminate();
        fabric_->wait(5);
        fabric_.reset();
        std::error_code ignored;
        fs::remove_all(dir_, ignored);
    }
    std::string ip(unsigned machine) const override { return "10.78.0." + std::to_string(machine + 1); }
    std::string name(unsigned machine) const override { return "host" + std::to_string(machine + 1); }
    std::string buffer() const override { return "256M"; }
    std::string description() const override { return "two nthost processes on this host"; }
    std::unique_ptr<Runner> start(unsigned machine, const std::string &program,
                                  const std::vector<std::string> &arguments, unsigned seconds, LineSink sink) override {
        std::vector<std::string> argv = {paths_.program("nthost"),
                                         "--driver",
                                         paths_.windows + "/sanproxy.sys",
                                         "--device",
                                         "inproc,fabric=" + socket_ + ",ip=" + ip(machine) + ",revoke=" +
                                             options_.revoke + ",direct=" + (options_.direct ? "on" : "off"),
                                         "--path",
                                         paths_.windows,
                                         "--pool",
                                         "768",
                                         "--timeout",
                                         std::to_string(seconds),
                                         "--",
                                         paths_.need_windows(program)};
        argv.insert(argv.end(), arguments.begin(), arguments.end());
        return std::make_unique<Process>(argv, std::move(sink));
    }

  private:
    Paths paths_;
    HostPlaceOptions options_;
    std::string dir_, socket_;
    std::unique_ptr<Process> fabric_;
};

class VmPlace : public Place {
  public:
    VmPlace(const Paths &paths, unsigned from, unsigned to, const std::string &what) {
        auto state = LabState::load(paths.run);
        if (!state)
            throw UserError(
                "no lab is up; start one with: sanlab up   (or run on this host: sanlab run --on host ...)");
        state_ = *state;
        if (!state_.complete)
            throw UserError(
                "the lab is not complete: another sanlab is starting it, or its start was cut short; sanlab up puts "
                "that right");
        for (unsigned n : {from, to})
            if (n < 1 || n > state_.guests.size())
                throw UserError("there is no guest " + std::to_string(n) + "; the lab has 1 to " +
                                std::to_string(state_.guests.size()));
        if (from == to) throw UserError("--from and --to name the same guest");
        guests_[0] = state_.guests[from - 1];
        guests_[1] = state_.guests[to - 1];
        for (int i = 0; i < 2; i++) {
            locks_[i] = std::make_unique<FileLock>(guest_lock(paths.run, guests_[i].name), what);
            if (!locks_[i]->held())
                throw UserError(guests_[i].name + " is busy with " + locks_[i]->holder() +
                                "; wait for it, or take other guests: --from N --to N");
        }
        for (int i = 0; i < 2; i++) agents_[i] = std::make_unique<Agent>(guests_[i].agent_socket, 10);
    }
    std::string ip(unsigned machine) const override { return guests_[machine].ip; }
    std::string name(unsigned machine) const override { return guests_[machine].name; }
    std::string buffer() const override { return "64M"; }
    std::string description() const override {
        return std::string("two micro guests under ") + (state_.kvm ? "KVM" : "TCG") +
               (state_.iommu ? ", checking IOMMU" : ", no IOMMU");
    }
    std::unique_ptr<Runner> start(unsigned machine, const std::string &program,
                                  const std::vector<std::string> &arguments, unsigned seconds, LineSink sink) override {
        std::vector<std::string> argv = {"/bin/nthost",
                                         "--driver",
                                         "/san/sanproxy.sys",
                                         "--device",
                                         std::string("pci=") + kNicPciAddress,
                                         "--path",
                                         "/san",
                                         "--pool",
                                         std::to_string(std::min(256u, state_.memory_mib / 2)),
                                         "--timeout",
                                         std::to_string(seconds),
                                         "--",
                                         "/san/" + program};
        argv.insert(argv.end(), arguments.begin(), arguments.end());
        return agents_[machine]->run(argv, seconds + 10, std::move(sink));
    }

  private:
    LabState state_;
    GuestState guests_[2];
    std::unique_ptr<FileLock> locks_[2];
    std::unique_ptr<Agent> agents_[2];
};

}  // namespace

std::unique_ptr<Place> host_place(const Paths &paths, const HostPlaceOptions &options) {
    return std::make_unique<HostPlace>(paths, options);
}
std::unique_ptr<Place> vm_place(const Paths &paths, unsigned from, unsigned to, const std::string &what) {
    return std::make_unique<VmPlace>(paths, from, to, what);
}

}  // namespace lab
