// SPDX-License-Identifier: GPL-2.0-or-later
// sanlab up, down.
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <spdlog/spdlog.h>
#include <thread>

#include "agent.h"
#include "commands.h"
#include "domain_xml.h"
#include "fabric.h"
#include "hypervisor.h"
#include "kvm.h"
#include "progress.h"
#include "state.h"

namespace lab {

namespace fs = std::filesystem;

namespace {

// Hypervisors that libvirt did not end, because it had died itself.
void end_leftovers(const std::string &pid_files) {
    std::error_code ec;
    for (const auto &entry : fs::directory_iterator(pid_files, ec)) {
        if (entry.path().extension() != ".pid") continue;
        pid_t pid = 0;
        std::ifstream(entry.path()) >> pid;
        std::ifstream in("/proc/" + std::to_string(pid) + "/comm");
        std::string comm;
        std::getline(in, comm);
        if (pid > 0 && comm.rfind("qemu-system", 0) == 0) ::kill(pid, SIGKILL);
    }
}

// Everything that `state` names, also when only a part of it was started.
void take_down(const Paths &paths, const LabState &state) {
    // Guests that still listen power off by themselves, all at once; libvirt ends the others.
    for (const GuestState &g : state.guests) {
        try {
            Agent(g.agent_socket, 0.3).power_off();
        } catch (const std::exception &) {
        }
    }
    if (!state.uri.empty() && !state.guests.empty()) {
        try {
            auto hypervisor = Hypervisor::connect(state.uri, paths.run, false);
            for (const GuestState &g : state.guests) hypervisor->destroy(g.domain);
        } catch (const std::exception &e) {
            if (!state.private_daemon) spdlog::warn("{}", e.what());
        }
    }
    if (state.private_daemon) {
        end_leftovers(paths.run + "/libvirt/run/qemu");
        PrivateDaemon daemon(paths.run + "/libvirt");
        daemon.stop();
        // Domains that were defined there are gone with it.
        std::vector<AttachedDomain> attached = attached_domains(paths);
        std::erase_if(attached, [&](const AttachedDomain &d) { return d.uri == daemon.uri(); });
        save_attached(paths, attached);
    }
    const std::vector<AttachedDomain> attached = attached_domains(paths);
    if (attached.empty()) stop_fabric(paths);
    else std::printf("sanfabricd keeps running for what is attached to it; next: sanlab detach %s\n", attached.front().domain.c_str());
    LabState::remove(paths.run);
}

void wait_for_guests(const LabState &state, unsigned seconds) {
    Progress progress("booting " + std::to_string(state.guests.size()) + " micro guests");
    for (const GuestState &g : state.guests) {
        try {
            Agent agent(g.agent_socket, seconds);
            const char *wanted = state.iommu ? "vfio-pci" : "uio_pci_generic";
            if (agent.driver() != wanted)
                throw std::runtime_error("guest " + g.name + " has its NIC with driver '" + agent.driver() + "', expected " + wanted);
        } catch (const std::exception &e) {
            std::ifstream log(g.console_log);
            std::string tail((std::istreambuf_iterator<char>(log)), {});
            if (tail.size() > 1500) tail.erase(0, tail.size() - 1500);
            throw std::runtime_error(std::string(e.what()) + (tail.empty() ? "" : "\nlast lines of " + g.console_log + ":\n" + tail));
        }
    }
}

std::string xml_file(const Paths &paths, const GuestState &g) { return paths.run + '/' + g.name + ".xml"; }

// Boots the guests of a running lab that are gone.
int revive(const Paths &paths, LabState state, unsigned boot_seconds) {
    auto hypervisor = Hypervisor::connect(state.uri, paths.run, state.private_daemon);
    LabState gone = state;
    gone.guests.clear();
    for (const GuestState &g : state.guests) {
        // libvirt takes a moment to notice that a hypervisor has died: what does not answer is ended.
        try {
            if (hypervisor->info(g.domain).state == "gone") throw std::runtime_error("gone");
            Agent agent(g.agent_socket, 3);
        } catch (const std::exception &) {
            hypervisor->destroy(g.domain);
            fs::remove(g.agent_socket);
            gone.guests.push_back(g);
        }
    }
    if (!running_fabric(paths)) {
        state.fabric_pid = start_fabric(paths);
        state.save(paths.run);
        std::printf("sanfabricd was gone; started a new one\n");
    }
    for (const GuestState &g : gone.guests) {
        std::ifstream in(xml_file(paths, g));
        std::string xml((std::istreambuf_iterator<char>(in)), {});
        if (xml.empty()) throw std::runtime_error("cannot read " + xml_file(paths, g) + "; end this lab with: sanlab down");
        hypervisor->create(xml);
    }
    if (!gone.guests.empty()) wait_for_guests(gone, boot_seconds);
    std::printf("the lab is up; %zu of %zu guests had to be booted\n", gone.guests.size(), state.guests.size());
    return 0;
}

}  // namespace

int up(const Paths &paths, const UpOptions &options) {
    // Sockets below it must fit into 107 characters.
    if (paths.run.size() > 70) throw UserError("the folder " + paths.run + " has a name of more than 70 characters; set SANLAB_RUN to a shorter one");
    LabLock lock(paths.run);
    if (auto state = LabState::load(paths.run)) {
        if (state->complete) return revive(paths, *state, options.boot_seconds);
        std::printf("a lab was left unfinished; starting anew\n");
        take_down(paths, *state);
    }
    if (!options.uri.empty()) Hypervisor::connect(options.uri, paths.run, false);  // what the user named is checked first
    std::string emulator = paths.need_program("qemu-system-x86_64");
    MicroGuest guest;
    guest.emulator = emulator;
    guest.kernel = paths.need_micro("vmlinux");
    guest.initramfs = paths.need_micro("initramfs");
    guest.memory_mib = options.memory_mib;
    guest.iommu = options.iommu;
    guest.share_memory = options.share_memory;
    if (options.revoke != "key") guest.nic_options = "\"revoke\":\"" + options.revoke + "\"";
    fs::create_directories(paths.run);

    LabState state;
    state.iommu = options.iommu;
    state.memory_mib = options.memory_mib;
    std::string why;
    state.kvm = guest.kvm = kvm_works(&why);
    if (!guest.kvm) spdlog::info("guests run under TCG: {}", why);
    try {
        auto hypervisor = Hypervisor::connect(options.uri, paths.run, true);
        state.uri = hypervisor->uri();
        state.private_daemon = hypervisor->is_private();
        state.save(paths.run);
        std::string caps = hypervisor->capabilities();
        guest.as_root = geteuid() == 0 && !state.private_daemon;
        guest.secmodels = caps;
        state.fabric_socket = fabric_socket(paths);
        state.fabric_pid = start_fabric(paths);
        state.save(paths.run);
        guest.fabric = state.fabric_socket;
        for (unsigned i = 1; i <= options.guests; i++) {
            GuestState g;
            g.name = lab_guest_name(i);
            g.ip = lab_guest_ip(i);
            g.domain = "sanlab-" + g.name;
            g.agent_socket = paths.run + '/' + g.name + ".agent";
            g.console_log = paths.run + '/' + g.name + ".console";
            fs::remove(g.console_log);
            guest.domain = g.domain;
            guest.nic_name = g.name;
            guest.ip = g.ip;
            guest.agent_socket = g.agent_socket;
            guest.console_log = g.console_log;
            state.guests.push_back(g);
            state.save(paths.run);
            std::string xml = domain_xml(guest);
            std::ofstream(xml_file(paths, g)) << xml;
            hypervisor->create(xml);
        }
        wait_for_guests(state, options.boot_seconds);
        state.complete = true;
        state.save(paths.run);
    } catch (...) {
        take_down(paths, state);
        throw;
    }
    std::printf("%u guests are up:", options.guests);
    for (const GuestState &g : state.guests) std::printf(" %s (%s)", g.name.c_str(), g.ip.c_str());
    std::printf("\n");
    return 0;
}

int down(const Paths &paths) {
    LabLock lock(paths.run);
    std::optional<LabState> state;
    try {
        state = LabState::load(paths.run);
    } catch (const UserError &) {
        // What a damaged file named cannot be known; what our private daemon runs can.
        state = LabState{};
        state->private_daemon = true;
    }
    if (!state) {
        // A private daemon may be left over from a start that was killed.
        PrivateDaemon daemon(paths.run + "/libvirt");
        if (daemon.running()) daemon.stop();
        if (attached_domains(paths).empty()) stop_fabric(paths);
        std::printf("no lab is up\n");
        return 0;
    }
    {
        Progress progress("ending the lab");
        take_down(paths, *state);
    }
    return 0;
}

}  // namespace lab
