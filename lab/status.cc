// SPDX-License-Identifier: GPL-2.0-or-later
// sanlab status, doctor.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "fabric.h"
#include "hypervisor.h"
#include "kvm.h"
#include "state.h"

namespace lab {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

// What libvirt and the fabric know of one guest: added to its row.
void look_up(json &row, const std::string &domain, const std::string &ip, Hypervisor *hypervisor, const json &fabric) {
    const Hypervisor::Info info = hypervisor ? hypervisor->info(domain) : Hypervisor::Info{"unknown", 0, 0};
    row["state"] = info.state;
    row["pid"] = info.pid;
    row["link"] = "DOWN";
    for (const json &nic : fabric.value("nics", json::array()))
        if (nic.value("ip", "") == ip) row["link"] = "UP", row["nic"] = nic;
}

void print_rows(const char *title, const json &rows) {
    std::printf("%-10s %-14s %-10s %-6s %-8s %14s %14s %12s\n", title, "ip", "state", "link", "pid", "tx_bytes",
                "rx_bytes", "retransmits");
    for (const json &g : rows) {
        const json nic = g.value("nic", json::object());
        std::printf("%-10s %-14s %-10s %-6s %-8d %14llu %14llu %12llu\n", g.value("name", "").c_str(),
                    g.value("ip", "").c_str(), g.value("state", "").c_str(), g.value("link", "").c_str(),
                    g.value("pid", 0), nic.value("tx_bytes", 0ull), nic.value("rx_bytes", 0ull),
                    nic.value("retransmits", 0ull));
    }
}

// Connections are kept: several domains usually have the same libvirt.
class Connections {
  public:
    explicit Connections(const Paths &paths) : run_(paths.run) {}
    Hypervisor *to(const std::string &uri) {
        auto [it, added] = known_.try_emplace(uri);
        if (added) {
            try {
                it->second = Hypervisor::connect(uri, run_, false);
            } catch (const std::exception &e) {
                trouble = e.what();
            }
        }
        return it->second.get();
    }
    std::string trouble;

  private:
    std::string run_;
    std::map<std::string, std::unique_ptr<Hypervisor>> known_;
};

}  // namespace

int status(const Paths &paths, bool as_json) {
    const auto state = LabState::load(paths.run);
    const std::vector<AttachedDomain> attached_list = attached_domains(paths);
    if (!state && attached_list.empty()) {
        if (as_json) std::cout << json{{"up", false}}.dump() << std::endl;
        else std::printf("no lab is up; start one with: sanlab up\n");
        return 0;
    }
    json fabric;
    try {
        fabric = json::parse(ask_fabric(fabric_socket(paths), "{\"cmd\":\"status\"}"));
    } catch (const std::exception &e) {
        fabric = {{"ok", false}, {"error", e.what()}};
    }
    json guests = json::array(), attached = json::array();
    Connections connections(paths);
    for (const GuestState &g : state ? state->guests : std::vector<GuestState>{}) {
        json row = {{"name", g.name},
                    {"ip", g.ip},
                    {"domain", g.domain},
                    {"console", g.console_log},
                    {"agent", g.agent_socket}};
        look_up(row, g.domain, g.ip, connections.to(state->uri), fabric);
        guests.push_back(row);
    }
    for (const AttachedDomain &d : attached_list) {
        json row = {{"name", d.domain}, {"ip", d.ip}, {"domain", d.domain}, {"uri", d.uri}};
        look_up(row, d.domain, d.ip, connections.to(d.uri), fabric);
        attached.push_back(row);
    }
    if (as_json) {
        json all = {{"up", state.has_value()}, {"guests", guests}, {"attached", attached}, {"fabric", fabric}};
        if (state) all.update({{"uri", state->uri}, {"kvm", state->kvm}, {"iommu", state->iommu}});
        std::cout << all.dump(2) << std::endl;
        return 0;
    }
    if (state)
        std::printf("libvirt %s%s; %s, %s\n", state->uri.c_str(), state->private_daemon ? " (private)" : "",
                    state->kvm ? "KVM" : "TCG", state->iommu ? "checking IOMMU" : "no IOMMU");
    else std::printf("no lab is up; start one with: sanlab up\n");
    if (!connections.trouble.empty()) std::printf("  %s\n", connections.trouble.c_str());
    if (!fabric.value("ok", false)) std::printf("  fabric: %s\n", fabric.value("error", "").c_str());
    if (state) print_rows("guest", guests);
    if (!attached.empty()) print_rows("attached", attached);
    return 0;
}

int nic_state(const Paths &paths, const std::string &guest) {
    if (!LabState::load(paths.run) && attached_domains(paths).empty())
        throw UserError("no lab is up; start one with: sanlab up");
    json answer = json::parse(ask_fabric(fabric_socket(paths), json{{"cmd", "state"}, {"nic", guest}}.dump()));
    if (!answer.value("ok", false)) throw UserError(answer.value("error", "sanfabricd gave no reason"));
    std::cout << answer["state"].dump(2) << std::endl;
    return 0;
}

int doctor(const Paths &paths) {
    int missing = 0;
    auto line = [&](bool ok, const std::string &what, const std::string &cure) {
        std::printf("%-8s %s%s%s\n", ok ? "ok" : "MISSING", what.c_str(), ok || cure.empty() ? "" : ": ",
                    ok ? "" : cure.c_str());
        missing += !ok;
    };
    for (const char *name : {"sanfabricd", "nthost"})
        line(fs::exists(paths.program(name)), paths.program(name), "scripts/build");
    line(fs::exists(paths.program("qemu-system-x86_64")), paths.program("qemu-system-x86_64"),
         "scripts/build (it calls scripts/build-qemu)");
    for (const char *name : {"sanproxy.sys", "sanprov.dll", "sanperf.exe", "santest.exe"})
        line(fs::exists(paths.windows + '/' + name), paths.windows + '/' + name, "scripts/build");
    for (const char *name : {"vmlinux", "initramfs"})
        line(fs::exists(paths.micro + '/' + name), paths.micro + '/' + name, "scripts/build");
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
