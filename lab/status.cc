// SPDX-License-Identifier: GPL-2.0-or-later
// sanlab status, doctor.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "hypervisor.h"
#include "kvm.h"
#include "state.h"

namespace lab {

using nlohmann::json;
namespace fs = std::filesystem;

int status(const Paths &paths, bool as_json) {
    auto state = LabState::load(paths.run);
    if (!state) {
        if (as_json) std::cout << json{{"up", false}}.dump() << std::endl;
        else std::printf("no lab is up; start one with: sanlab up\n");
        return 0;
    }
    json fabric;
    try {
        fabric = json::parse(ask_fabric(state->fabric_socket, "{\"cmd\":\"status\"}"));
    } catch (const std::exception &e) {
        fabric = {{"ok", false}, {"error", e.what()}};
    }
    json guests = json::array();
    std::unique_ptr<Hypervisor> hypervisor;
    std::string trouble;
    try {
        hypervisor = Hypervisor::connect(state->uri, paths.run, false);
    } catch (const std::exception &e) {
        trouble = e.what();
    }
    for (const GuestState &g : state->guests) {
        json row = {{"name", g.name}, {"ip", g.ip}, {"domain", g.domain}, {"console", g.console_log}, {"agent", g.agent_socket}};
        Hypervisor::Info info = hypervisor ? hypervisor->info(g.domain) : Hypervisor::Info{"unknown", 0, 0};
        row["state"] = info.state;
        row["pid"] = info.pid;
        row["link"] = "DOWN";
        for (const json &nic : fabric.value("nics", json::array()))
            if (nic.value("ip", "") == g.ip) row["link"] = "UP", row["nic"] = nic;
        guests.push_back(row);
    }
    if (as_json) {
        std::cout << json{{"up", true},           {"uri", state->uri},      {"kvm", state->kvm},  {"iommu", state->iommu},
                          {"guests", guests},     {"fabric", fabric}}.dump(2)
                  << std::endl;
        return 0;
    }
    std::printf("libvirt %s%s; %s, %s\n", state->uri.c_str(), state->private_daemon ? " (private)" : "", state->kvm ? "KVM" : "TCG",
                state->iommu ? "checking IOMMU" : "no IOMMU");
    if (!trouble.empty()) std::printf("  %s\n", trouble.c_str());
    if (!fabric.value("ok", false)) std::printf("  fabric: %s\n", fabric.value("error", "").c_str());
    std::printf("%-10s %-14s %-10s %-6s %-8s %14s %14s %12s\n", "guest", "ip", "state", "link", "pid", "tx_bytes", "rx_bytes", "retransmits");
    for (const json &g : guests) {
        json nic = g.value("nic", json::object());
        std::printf("%-10s %-14s %-10s %-6s %-8d %14llu %14llu %12llu\n", g.value("name", "").c_str(), g.value("ip", "").c_str(),
                    g.value("state", "").c_str(), g.value("link", "").c_str(), g.value("pid", 0),
                    nic.value("tx_bytes", 0ull), nic.value("rx_bytes", 0ull), nic.value("retransmits", 0ull));
    }
    return 0;
}

int nic_state(const Paths &paths, const std::string &guest) {
    auto state = LabState::load(paths.run);
    if (!state) throw UserError("no lab is up; start one with: sanlab up");
    json answer = json::parse(ask_fabric(state->fabric_socket, json{{"cmd", "state"}, {"nic", guest}}.dump()));
    if (!answer.value("ok", false)) throw UserError(answer.value("error", "sanfabricd gave no reason"));
    std::cout << answer["state"].dump(2) << std::endl;
    return 0;
}

int doctor(const Paths &paths) {
    int missing = 0;
    auto line = [&](bool ok, const std::string &what, const std::string &cure) {
        std::printf("%-8s %s%s%s\n", ok ? "ok" : "MISSING", what.c_str(), ok || cure.empty() ? "" : ": ", ok ? "" : cure.c_str());
        missing += !ok;
    };
    for (const char *name : {"sanfabricd", "nthost"}) line(fs::exists(paths.program(name)), paths.program(name), "scripts/build");
    line(fs::exists(paths.program("qemu-system-x86_64")), paths.program("qemu-system-x86_64"), "scripts/build (it calls scripts/build-qemu)");
    for (const char *name : {"sanproxy.sys", "sanprov.dll", "sanperf.exe", "santest.exe"})
        line(fs::exists(paths.windows + '/' + name), paths.windows + '/' + name, "scripts/build");
    for (const char *name : {"vmlinux", "initramfs"}) line(fs::exists(paths.micro + '/' + name), paths.micro + '/' + name, "scripts/build");
    bool system = fs::exists("/run/libvirt/libvirt-sock") || fs::exists("/run/libvirt/virtqemud-sock");
    bool installed = fs::exists("/usr/sbin/libvirtd") && fs::exists("/usr/sbin/virtlogd");
    line(system || installed, "libvirt", "apt-get install libvirt-daemon-system");
    line(fs::exists("/usr/share/qemu/pvh.bin"), "/usr/share/qemu/pvh.bin", "apt-get install qemu-system-data");
    line(fs::exists("/usr/share/seabios/bios-256k.bin"), "/usr/share/seabios/bios-256k.bin", "apt-get install seabios");
    if (!system) line(geteuid() == 0, "root, to start a private libvirtd", "run as root, or start libvirtd");
    std::error_code ec;
    fs::create_directories(paths.run, ec);
    line(!ec && access(paths.run.c_str(), W_OK) == 0, "folder " + paths.run, "make it writable, or set SANLAB_RUN");
    std::string why;
    std::printf("%-8s guests run under %s\n", "note", kvm_works(&why) ? "KVM" : ("TCG: " + why).c_str());
    if (missing) std::printf("%d missing\n", missing);
    return missing ? 1 : 0;
}

}  // namespace lab
