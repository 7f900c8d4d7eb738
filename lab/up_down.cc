// SPDX-License-Identifier: GPL-2.0-or-later
// sanlab up, down.
#include <signal.h>
#include <unistd.h>

#include <spdlog/spdlog.h>
#include <filesystem>
#include <fstream>
#include <thread>

#include "agent.h"
#include "commands.h"
#include "domain_xml.h"
#include "fabric.h"
#include "hypervisor.h"
#include "interrupt.h"
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
    else
        std::printf("sanfabricd keeps running for what is attached to it; next: sanlab detach %s\n",
                    attached.front().domain.c_str());
    LabState::remove(paths.run);
}

std::string counted(size_t n, const std::string &what) { return std::to_string(n) + ' ' + what + (n == 1 ? "" : "s"); }

void wait_for_guests(const LabState &state, unsigned seconds) {
    Progress progress("booting " + counted(state.guests.size(), "micro guest"));
    for (const GuestState &g : state.guests) {
        try {
            Agent agent(g.agent_socket, seconds);
            const char *wanted = state.iommu ? "vfio-pci" : "uio_pci_generic";
            if (agent.driver() != wanted)
                throw std::runtime_error("guest " + g.name + " has its NIC with driver '" + agent.driver() +
                                         "', expected " + wanted);
        } catch (const std::exception &e) {
            std::ifstream log(g.console_log);
            std::string tail((std::istreambuf_iterator<char>(log)), {});
            if (tail.size() > 1500) tail.erase(0, tail.size() - 1500);
            throw std::runtime_error(std::string(e.what()) +
                                     (tail.empty() ? "" : "\nlast lines of " + g.console_log + ":\n" + tail));
        }
    }
}

std::string xml_file(const Paths &paths, const GuestState &g) { return paths.run + '/' + g.name + ".xml"; }

// What all guests of the lab have in common.
MicroGuest guest_of(const Paths &paths, const LabState &state, Hypervisor &hypervisor) {
    MicroGuest guest;
    guest.emulator = paths.need_program("qemu-system-x86_64");
    guest.kernel = paths.need_micro("vmlinux");
    guest.initramfs = paths.need_micro("initramfs");
    guest.memory_mib = state.memory_mib;
    guest.iommu = state.iommu;
    guest.share_memory = state.share_memory;
    guest.kvm = state.kvm;
    if (state.revoke != "key") guest.nic_options = "\"revoke\":\"" + state.revoke + "\"";
    guest.as_root = geteuid() == 0 && !state.private_daemon;
    guest.secmodels = hypervisor.capabilities();
    guest.fabric = state.fabric_socket;
    return guest;
}

// The next guest. The state names it before it is started, so that whoever ends the lab finds it.
void add_guest(const Paths &paths, LabState &state, MicroGuest guest, Hypervisor &hypervisor) {
    throw_if_interrupted();
    const unsigned number = static_cast<unsigned>(state.guests.size()) + 1;
    GuestState g;
    g.name = lab_guest_name(number);
    g.ip = lab_guest_ip(number);
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
    const std::string xml = domain_xml(guest);
    std::ofstream(xml_file(paths, g)) << xml;
    hypervisor.create(xml);
}

void add_guests(const Paths &paths, LabState &state, unsigned wanted, Hypervisor &hypervisor) {
    // The first time, libvirt asks the emulator what it can do.
    Progress progress("starting " + counted(wanted - state.guests.size(), "virtual machine"));
    const MicroGuest guest = guest_of(paths, state, hypervisor);
    while (state.guests.size() < wanted) add_guest(paths, state, guest, hypervisor);
}

// libvirt takes a moment to notice that a hypervisor has died: what does not answer is gone. Who runs a test in it
// knows better.
bool guest_lives(const Paths &paths, const GuestState &g, Hypervisor &hypervisor) {
    if (hypervisor.info(g.domain).state == "gone") return false;
    if (const FileLock lock(guest_lock(paths.run, g.name), "sanlab up"); !lock.held()) return true;
    try {
        Agent agent(g.agent_socket, 3);
        return true;
    } catch (const std::exception &) {
        return false;
    }
}

// Options that differ from what the lab was started with: they would need another lab.
void name_what_stays(const LabState &state, const UpOptions &options) {
    std::string kept;
    auto keep = [&](bool differs, const std::string &what) {
        if (differs) kept += (kept.empty() ? "" : ", ") + what;
    };
    keep(options.memory_mib.value_or(state.memory_mib) != state.memory_mib,
         "memory of " + std::to_string(state.memory_mib) + " MiB");
    keep(options.iommu.value_or(state.iommu) != state.iommu, "a checking IOMMU");
    keep(options.share_memory.value_or(state.share_memory) != state.share_memory, "shared memory");
    keep(options.revoke.value_or(state.revoke) != state.revoke, "revoke=" + state.revoke);
    keep(!options.uri.empty() && options.uri != state.uri, "libvirt " + state.uri);
    if (!kept.empty())
        spdlog::warn("the lab that is up keeps {}; for something else: sanlab down, then sanlab up", kept);
}

// A lab that is up: boots the guests that are gone, and adds more. Whatever fails leaves the lab as it was.
int join(const Paths &paths, LabState state, const UpOptions &options) {
    const size_t had = state.guests.size(), wanted = options.guests.value_or(static_cast<unsigned>(had));
    if (wanted < had)
        throw UserError("--guests " + std::to_string(wanted) + ": the lab that is up has " + std::to_string(had) +
                        " guests; for fewer: sanlab down, then sanlab up --guests " + std::to_string(wanted));
    name_what_stays(state, options);
    auto hypervisor = Hypervisor::connect(state.uri, paths.run, state.private_daemon);
    LabState booting = state;
    booting.guests.clear();
    for (const GuestState &g : state.guests) {
        throw_if_interrupted();
        if (guest_lives(paths, g, *hypervisor)) continue;
        hypervisor->destroy(g.domain);
        fs::remove(g.agent_socket);
        booting.guests.push_back(g);
    }
    const size_t gone = booting.guests.size();
    if (!running_fabric(paths)) {
        start_fabric(paths);
        std::printf("sanfabricd was gone; started a new one\n");
    }
    try {
        for (const GuestState &g : booting.guests) {
            throw_if_interrupted();
            std::ifstream in(xml_file(paths, g));
            std::string xml((std::istreambuf_iterator<char>(in)), {});
            if (xml.empty())
                throw std::runtime_error("cannot read " + xml_file(paths, g) + "; end this lab with: sanlab down");
            hypervisor->create(xml);
        }
        if (wanted > had) add_guests(paths, state, static_cast<unsigned>(wanted), *hypervisor);
        booting.guests.insert(booting.guests.end(), state.guests.begin() + static_cast<ptrdiff_t>(had),
                              state.guests.end());
        if (!booting.guests.empty()) wait_for_guests(booting, options.boot_seconds);
    } catch (...) {
        for (size_t i = had; i < state.guests.size(); i++) booting.guests.push_back(state.guests[i]);
        for (const GuestState &g : booting.guests) hypervisor->destroy(g.domain);
        state.guests.resize(had);
        state.save(paths.run);
        throw;
    }
    std::printf("the lab is up; %zu of %zu guests had to be booted", gone, had);
    if (wanted > had) std::printf(", %zu joined", wanted - had);
    std::printf("\n");
    return 0;
}

}  // namespace

int up(const Paths &paths, const UpOptions &options) {
    // Sockets below it must fit into 107 characters.
    if (paths.run.size() > 70)
        throw UserError("the folder " + paths.run +
                        " has a name of more than 70 characters; set SANLAB_RUN to a shorter one");
    LabLock lock(paths.run);
    if (auto state = LabState::load(paths.run)) {
        if (state->complete) return join(paths, *state, options);
        std::printf("a lab was left unfinished; starting anew\n");
        take_down(paths, *state);
    }
    if (!options.uri.empty())
        Hypervisor::connect(options.uri, paths.run, false);  // what the user named is checked first
    paths.need_program("qemu-system-x86_64");
    for (const char *file : {"vmlinux", "initramfs"}) paths.need_micro(file);
    fs::create_directories(paths.run);

    LabState state;
    state.iommu = options.iommu.value_or(true);
    state.share_memory = options.share_memory.value_or(true);
    state.memory_mib = options.memory_mib.value_or(UpOptions::kMemoryMib);
    state.revoke = options.revoke.value_or("key");
    std::string why;
    state.kvm = kvm_works(&why);
    if (!state.kvm) spdlog::info("guests run under TCG: {}", why);
    try {
        auto hypervisor = Hypervisor::connect(options.uri, paths.run, true);
        state.uri = hypervisor->uri();
        state.private_daemon = hypervisor->is_private();
        state.save(paths.run);
        state.fabric_socket = fabric_socket(paths);
        start_fabric(paths);
        state.save(paths.run);
        add_guests(paths, state, options.guests.value_or(UpOptions::kGuests), *hypervisor);
        wait_for_guests(state, options.boot_seconds);
        throw_if_interrupted();
        state.complete = true;
        state.save(paths.run);
    } catch (...) {
        take_down(paths, state);
        throw;
    }
    std::printf("%zu guests are up:", state.guests.size());
    for (const GuestState &g : state.guests) std::printf(" %s (%s)", g.name.c_str(), g.ip.c_str());
    std::printf("\n");
    return 0;
}

int down(const Paths &paths) {
    finish_despite_interrupts();  // half a lab helps nobody
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
