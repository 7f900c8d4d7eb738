// SPDX-License-Identifier: GPL-2.0-or-later
// sanlab attach, detach: a SAN NIC for a libvirt domain that is there already.
#include <arpa/inet.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "commands.h"
#include "domain_edit.h"
#include "fabric.h"
#include "hypervisor.h"
#include "runner.h"
#include "state.h"

namespace lab {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

// What a program prints, if it ends well within some seconds.
std::optional<std::string> output_of(const std::vector<std::string> &argv) {
    std::string text;
    Process process(argv, [&](Stream, const std::string &line) { text += line + '\n'; });
    const std::optional<int> status = process.wait(20);
    if (!status) process.kill();
    return status == 0 ? std::optional(text) : std::nullopt;
}

void print_diff(const std::string &domain, const std::string &before, const std::string &after) {
    char folder[] = "/tmp/sanlab-diff-XXXXXX";
    if (!mkdtemp(folder)) throw std::runtime_error("cannot make a folder below /tmp");
    const std::string a = std::string(folder) + "/a", b = std::string(folder) + "/b";
    std::ofstream(a) << rewritten(before);
    std::ofstream(b) << after;
    Process diff({"/usr/bin/diff", "-u", "--label", domain + ".xml", "--label", domain + ".xml (changed)", a, b},
                 [](Stream, const std::string &line) { std::printf("%s\n", line.c_str()); });
    const std::optional<int> status = diff.wait(20);
    fs::remove_all(folder);
    if (status != 1) throw std::runtime_error("diff did not compare the two descriptions");
}

// Is this QEMU able to run the domain with the NIC? Empty: yes.
std::string lacks(const std::string &emulator, const std::string &machine) {
    if (!fs::exists(emulator)) return emulator + " does not exist";
    if (!output_of({emulator, "-device", "snic,help"})) return emulator + " has no device 'snic'";
    const std::optional<std::string> machines = output_of({emulator, "-machine", "help"});
    if (!machines || ('\n' + *machines).find('\n' + machine + ' ') == std::string::npos)
        return emulator + " has no machine '" + machine + "'";
    return "";
}

std::string normal_ip(const std::string &text) {
    in_addr address;
    const bool ok = inet_pton(AF_INET, text.c_str(), &address) == 1;
    const uint32_t ip = ok ? ntohl(address.s_addr) : 0;
    if (!ok || ip >> 24 == 0 || ip >> 24 == 127 || ip >> 28 >= 0xE)
        throw UserError("'" + text + "' is not an IPv4 address of a host; accepted: like 10.77.0.100");
    char out[INET_ADDRSTRLEN];
    return inet_ntop(AF_INET, &address, out, sizeof out);
}

// Who has which address and name: NICs on the fabric now, the lab's guests to come, attached domains whether they run
// or not.
struct Used {
    std::vector<std::pair<std::string, std::string>> ips;  // address, owner
    std::vector<std::string> names;

    const std::string *owner(const std::string &ip) const {
        for (const auto &[used, who] : ips)
            if (used == ip) return &who;
        return nullptr;
    }
};

Used in_use(Hypervisor &hypervisor, const Paths &paths, const std::string &fabric, const std::string &domain,
            const std::string &own_nic) {
    Used used;
    for (unsigned i = 1; i <= kMostGuests; i++) {
        used.ips.emplace_back(lab_guest_ip(i), "the lab's guest " + std::to_string(i));
        used.names.push_back(lab_guest_name(i));
    }
    for (const auto &[name, xml] : hypervisor.definitions()) {
        const std::optional<Attachment> a = find_attachment(xml);
        if (!a || name == domain || a->fabric != fabric) continue;
        used.ips.emplace_back(a->ip, "domain " + name);
        used.names.push_back(a->nic);
    }
    for (const AttachedDomain &d : attached_domains(paths)) {
        if (fabric != fabric_socket(paths) || (d.domain == domain && d.uri == hypervisor.uri())) continue;
        used.ips.emplace_back(d.ip, "domain " + d.domain + " at " + d.uri);
        used.names.push_back(d.nic);
    }
    try {
        const json status = json::parse(ask_fabric(fabric, "{\"cmd\":\"status\"}"));
        for (const json &nic : status.value("nics", json::array())) {
            const std::string name = nic.value("name", "");
            if (name == own_nic) continue;  // the domain runs
            used.ips.emplace_back(nic.value("ip", ""), "NIC " + name + " on the fabric");
            used.names.push_back(name);
        }
    } catch (const std::exception &) {
        // Nobody serves it now.
    }
    return used;
}

// The domain's name as far as the fabric takes it: 31 printable characters.
std::string nic_name(const std::string &domain, const Used &used) {
    std::string base;
    for (char c : domain) base += c > 32 && c < 127 ? c : '-';
    base.resize(std::min<size_t>(base.size(), 24));
    std::string name = base;
    for (int i = 2; std::find(used.names.begin(), used.names.end(), name) != used.names.end(); i++)
        name = base + '-' + std::to_string(i);
    return name;
}

std::string choose_ip(const std::string &wanted, const Used &used) {
    if (!wanted.empty()) {
        if (const std::string *who = used.owner(wanted))
            throw UserError(wanted + " is taken by " + *who + "; choose another with --ip");
        return wanted;
    }
    for (int i = 100; i < 255; i++) {
        const std::string ip = "10.77.0." + std::to_string(i);
        if (!used.owner(ip)) return ip;
    }
    throw UserError("10.77.0.100 to 10.77.0.254 are taken; choose an address with --ip");
}

void admit(const std::string &socket, int64_t user) {
    struct stat st;
    for (fs::path folder = fs::path(socket).parent_path(); user > 0 && folder.has_relative_path();
         folder = folder.parent_path())
        if (stat(folder.c_str(), &st) == 0 && st.st_uid != static_cast<uid_t>(user) && !(st.st_mode & S_IXOTH))
            std::printf(
                "note: libvirt runs QEMU as user %lld, which cannot look into %s: the link stays down; chmod o+x it, "
                "or set SANLAB_RUN\n",
                static_cast<long long>(user), folder.c_str());
    if (!admit_to_fabric(socket, user))
        std::printf("note: libvirt runs QEMU as user %lld, which cannot open %s; as root: chown %lld %s\n",
                    static_cast<long long>(user), socket.c_str(), static_cast<long long>(user), socket.c_str());
}

// Which libvirt: what the user says; where the domain was attached before; the lab's; the one that runs here.
std::unique_ptr<Hypervisor> connect(const Paths &paths, const AttachOptions &options) {
    std::string uri = options.uri;
    if (uri.empty())
        for (const AttachedDomain &d : attached_domains(paths))
            if (d.domain == options.domain) uri = d.uri;
    if (const auto state = LabState::load(paths.run); state && uri.empty()) uri = state->uri;
    if (uri.empty() && !Hypervisor::somebody_serves(paths.run))
        throw UserError("no libvirtd is running on this host; start it, or name one with --connect URI");
    // scheme://HOST/path?options
    const size_t begin = uri.find("://");
    if (begin != std::string::npos && begin + 3 < uri.size() && uri[begin + 3] != '/')
        throw UserError("'" + uri + "' is on another host; the fabric is on this one: run sanlab there");
    return Hypervisor::connect(uri, paths.run, false);
}

void remember(const Paths &paths, const std::string &uri, const std::string &domain, const Attachment *attachment,
              int64_t user) {
    std::vector<AttachedDomain> all = attached_domains(paths);
    std::erase_if(all, [&](const AttachedDomain &d) { return d.uri == uri && d.domain == domain; });
    if (attachment) all.push_back({uri, domain, attachment->ip, attachment->nic, user});
    if (all != attached_domains(paths)) save_attached(paths, all);
}

void say_when(bool active) {
    if (active)
        std::printf(
            "the domain is running: the change takes effect when it is shut down and started again (a reboot inside it "
            "is not enough)\n");
}

}  // namespace

int attach(const Paths &paths, const AttachOptions &options) {
    if (paths.run.size() > 70)
        throw UserError("the folder " + paths.run +
                        " has a name of more than 70 characters; set SANLAB_RUN to a shorter one");
    const std::string wanted_ip = options.ip.empty() ? "" : normal_ip(options.ip);
    LabLock lock(paths.run);
    auto hypervisor = connect(paths, options);
    const Hypervisor::Definition now = hypervisor->definition(options.domain);
    const DomainFacts facts = domain_facts(now.xml);
    const std::optional<Attachment> before = find_attachment(now.xml);
    const bool again = before && before->complete;
    // Attaching again begins with the domain as it was before, and ends with the same result. So does mending half an
    // attachment.
    const std::string base = before ? detach_nic(now.xml) : now.xml;

    AttachWish wish;
    wish.fabric = !options.fabric.empty() ? fs::absolute(options.fabric).string()
                  : again                 ? before->fabric
                                          : fabric_socket(paths);
    if (wish.fabric.size() > 100)
        throw UserError("the socket " + wish.fabric + " has a name of more than 100 characters");
    const bool own_fabric = wish.fabric == fabric_socket(paths);
    const Used used = in_use(*hypervisor, paths, wish.fabric, facts.name, again ? before->nic : "");
    wish.ip = choose_ip(!wanted_ip.empty() ? wanted_ip : again ? before->ip : "", used);
    wish.nic = again ? before->nic : nic_name(facts.name, used);
    if (again) wish.slot = before->slot;

    const DomainFacts base_facts = domain_facts(base);
    if (const std::string why = lacks(base_facts.emulator, base_facts.machine); !why.empty()) {
        wish.emulator = paths.need_program("qemu-system-x86_64");
        if (const std::string ours = lacks(wish.emulator, base_facts.machine); !ours.empty())
            throw UserError(why + ", and " + ours + "; domain " + facts.name + " needs both");
    }
    const Hypervisor::Security security = hypervisor->security();
    const int64_t user = security.user ? int64_t{*security.user} : -1;
    wish.confining_models = security.confining_models;
    const std::string xml = attach_nic(base, wish);
    const Attachment after = *find_attachment(xml);

    if (again && *before == after) {
        if (!options.dry_run) {
            if (own_fabric) start_fabric(paths), remember(paths, hypervisor->uri(), facts.name, &after, user);
            admit(wish.fabric, user);
        }
        std::printf("domain %s has its NIC already (%s, %s slot %s): no change\n", facts.name.c_str(), after.ip.c_str(),
                    after.bus.c_str(), after.slot.c_str());
        return 0;
    }
    // A description that QEMU cannot be started with is of no use, if the present one is.
    if (const std::string why = hypervisor->objection(xml); !why.empty() && hypervisor->objection(now.xml).empty())
        throw UserError("libvirt could not start domain " + facts.name + " with the NIC: " + why);
    if (options.dry_run) {
        print_diff(facts.name, now.xml, xml);
        say_when(now.active);
        std::printf("nothing was changed (--dry-run)\n");
        return 0;
    }
    if (own_fabric) start_fabric(paths), admit(wish.fabric, user);
    hypervisor->define(xml);
    if (own_fabric) remember(paths, hypervisor->uri(), facts.name, &after, user);

    std::printf("domain %s has a SAN NIC at its next start: %s, on %s slot %s, name '%s'\n", facts.name.c_str(),
                after.ip.c_str(), after.bus.c_str(), after.slot.c_str(), after.nic.c_str());
    if (before && !again) std::printf("  (a part of an earlier attachment was missing)\n");
    std::printf("  memory is shared with the fabric (%s, %s)\n", after.memory_source.c_str(),
                after.memory_access.c_str());
    if (after.emulator != base_facts.emulator)
        std::printf("  emulator is %s: %s has no snic device; detach brings it back\n", after.emulator.c_str(),
                    base_facts.emulator.c_str());
    if (!after.seclabels.empty())
        std::printf(
            "  security driver off for this domain: %s (it would keep QEMU from its program and the fabric); detach "
            "brings it back\n",
            after.seclabels.c_str());
    if (own_fabric) {
        std::printf("  fabric %s: sanfabricd runs, the lab's guests are on it when a lab is up\n", wish.fabric.c_str());
    } else if (!fs::exists(wish.fabric)) {
        std::printf("  nobody serves the fabric %s now: the link stays down until sanfabricd does\n",
                    wish.fabric.c_str());
    }
    say_when(now.active);
    return 0;
}

int detach(const Paths &paths, const AttachOptions &options) {
    LabLock lock(paths.run);
    auto hypervisor = connect(paths, options);
    const Hypervisor::Definition now = hypervisor->definition(options.domain);
    const std::string name = domain_facts(now.xml).name;
    if (!find_attachment(now.xml)) {
        if (!options.dry_run) remember(paths, hypervisor->uri(), name, nullptr, -1);
        std::printf("domain %s has no NIC that sanlab attached: no change\n", name.c_str());
    } else {
        const std::string xml = detach_nic(now.xml);
        if (options.dry_run) {
            print_diff(name, now.xml, xml);
            say_when(now.active);
            std::printf("nothing was changed (--dry-run)\n");
            return 0;
        }
        hypervisor->define(xml);
        remember(paths, hypervisor->uri(), name, nullptr, -1);
        std::printf("domain %s is as it was before sanlab attach\n", name.c_str());
        say_when(now.active);
    }
    // The fabric ends with the last that needs it; a domain that still runs with its NIC does.
    if (options.dry_run || !running_fabric(paths) || !attached_domains(paths).empty() || LabState::load(paths.run))
        return 0;
    if (now.active) std::printf("sanfabricd keeps running for it; when it is shut down: sanlab down\n");
    else stop_fabric(paths);
    return 0;
}

}  // namespace lab
