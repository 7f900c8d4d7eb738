// SPDX-License-Identifier: GPL-2.0-or-later
#include "hypervisor.h"

#include <libvirt/virterror.h>
#include <signal.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "background.h"
#include "interrupt.h"
#include "progress.h"

namespace lab {

namespace fs = std::filesystem;

namespace {

void quiet(void *, virErrorPtr) {}  // errors come as exceptions, once

std::string last_error() {
    const virError *e = virGetLastError();
    return e && e->message ? e->message : "unknown error";
}

// Runs in the namespace: binds the private folders over libvirt's, then becomes the daemon given as $2...
constexpr const char *kEnter =
    "set -e; d=$1; shift\n"
    "mkdir -p /etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt\n"
    "mount --bind \"$d/etc\" /etc/libvirt; mount --bind \"$d/run\" /run/libvirt; mount --bind \"$d/lib\" "
    "/var/lib/libvirt\n"
    "mount --bind \"$d/log\" /var/log/libvirt; mount --bind \"$d-cache\" /var/cache/libvirt\n"
    "exec \"$@\"\n";

std::string last_line(const std::string &path) {
    std::ifstream in(path);
    std::string line, last;
    while (std::getline(in, line))
        if (!line.empty()) last = line;
    return last;
}

std::string find_daemon(const char *name) {
    for (const char *dir : {"/usr/sbin/", "/usr/bin/", "/sbin/"})
        if (fs::exists(std::string(dir) + name)) return std::string(dir) + name;
    throw UserError(std::string(name) + " is not installed; install it with: apt-get install libvirt-daemon-system");
}

struct FreeDomain {
    void operator()(virDomainPtr d) const { virDomainFree(d); }
};
using DomainPtr = std::unique_ptr<virDomain, FreeDomain>;

std::string taken(char *text) {
    std::string out = text ? text : "";
    free(text);
    return out;
}

// As it is stored, with what only its owner may see: it is written back.
std::string stored_xml(virDomainPtr domain) {
    return taken(virDomainGetXMLDesc(domain, VIR_DOMAIN_XML_INACTIVE | VIR_DOMAIN_XML_SECURE));
}

bool system_libvirtd() { return fs::exists("/run/libvirt/libvirt-sock") || fs::exists("/run/libvirt/virtqemud-sock"); }

}  // namespace

// What has a meaning in a URI, or none, is escaped: a folder may have a space in its name.
std::string PrivateDaemon::uri() const {
    std::string text = "qemu:///system?socket=";
    for (const char c : dir_ + "/run/libvirt-sock") {
        const bool plain = std::isalnum(static_cast<unsigned char>(c)) || std::strchr("/-._~", c);
        char escaped[4];
        std::snprintf(escaped, sizeof escaped, plain ? "%c" : "%%%02X", static_cast<unsigned char>(c));
        text += escaped;
    }
    return text;
}

bool PrivateDaemon::running() const { return process_runs(read_pid(dir_ + "/libvirtd.pid"), "libvirtd"); }

void PrivateDaemon::start() {
    if (running()) return;
    if (geteuid() != 0)
        throw UserError(
            "no libvirtd is running and starting one needs root; run as root, start libvirtd, or name one with "
            "--connect URI");
    std::string libvirtd = find_daemon("libvirtd"), virtlogd = find_daemon("virtlogd");
    Progress progress("starting a private libvirtd");
    for (const char *sub : {"etc", "run", "lib", "log"}) fs::create_directories(dir_ + '/' + sub);
    fs::create_directories(dir_ + "-cache");  // stays: what libvirt found out about the emulator
    std::ofstream(dir_ + "/etc/qemu.conf")
        << "user = \"root\"\ngroup = \"root\"\nsecurity_driver = \"none\"\ncgroup_controllers = []\n"
           "namespaces = []\nremember_owner = 0\n";
    std::ofstream(dir_ + "/etc/libvirtd.conf")
        << "unix_sock_group = \"root\"\nunix_sock_rw_perms = \"0700\"\nauth_unix_rw = \"none\"\n";
    std::ofstream(dir_ + "/etc/virtlogd.conf") << "";
    auto launch = [&](const std::string &program, const std::string &name) {
        std::string pid_file = dir_ + '/' + name + ".pid";
        if (process_runs(read_pid(pid_file), name)) return;
        fs::remove(pid_file);
        run_in_background({"/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", kEnter, "sh",
                           dir_, program, "--pid-file", pid_file, "--config", "/etc/libvirt/" + name + ".conf"},
                          dir_ + "/log/" + name + ".out", Orphans::adopt);
    };
    launch(virtlogd, "virtlogd");
    launch(libvirtd, "libvirtd");
    for (int i = 0; i < 200; i++) {
        try {
            throw_if_interrupted();
        } catch (...) {
            stop();
            throw;
        }
        if (running() && fs::exists(dir_ + "/run/libvirt-sock")) {
            if (virConnectPtr c = virConnectOpen(uri().c_str())) {
                virConnectClose(c);
                return;
            }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    const std::string said = last_line(dir_ + "/log/libvirtd.out");  // stop() removes it
    stop();
    throw std::runtime_error("the private libvirtd did not come up" + (said.empty() ? "" : ": " + said));
}

void PrivateDaemon::stop() {
    // They have nothing left to save: what is defined is written, and our domains are transient.
    for (const char *name : {"libvirtd", "virtlogd"}) end_process(read_pid(dir_ + '/' + name + ".pid"), name, 500);
    // Domains that somebody has defined there stay: the next private libvirtd finds them.
    std::error_code ignored;
    for (const fs::directory_entry &file : fs::directory_iterator(dir_ + "/etc/qemu", ignored))
        if (file.path().extension() == ".xml") return;
    fs::remove_all(dir_, ignored);
}

std::unique_ptr<Hypervisor> Hypervisor::connect(const std::string &uri, const std::string &run, bool may_start) {
    virSetErrorFunc(nullptr, quiet);
    std::unique_ptr<Hypervisor> h(new Hypervisor);
    h->run_ = run;
    PrivateDaemon own(run + "/libvirt");
    if (!uri.empty()) {
        h->uri_ = uri;
        h->private_ = uri == own.uri();
        if (h->private_ && may_start) own.start();  // it may have died; its domains have not
        h->conn_ = virConnectOpen(uri.c_str());
        if (!h->conn_) throw UserError("cannot connect to libvirt at '" + uri + "': " + last_error());
        return h;
    }
    // The system's, where somebody runs it.
    if (!own.running() && system_libvirtd()) {
        h->conn_ = virConnectOpen("qemu:///system");
        if (h->conn_) {
            h->uri_ = "qemu:///system";
            return h;
        }
    }
    if (!own.running() && !may_start) throw UserError("no lab is up; start one with: sanlab up");
    own.start();
    h->uri_ = own.uri();
    h->private_ = true;
    h->conn_ = virConnectOpen(h->uri_.c_str());
    if (!h->conn_) throw std::runtime_error("cannot connect to the private libvirtd: " + last_error());
    return h;
}

Hypervisor::~Hypervisor() {
    if (conn_) virConnectClose(conn_);
}

std::string Hypervisor::capabilities() {
    char *text = virConnectGetCapabilities(conn_);
    std::string result = text ? text : "";
    free(text);
    return result;
}

void Hypervisor::create(const std::string &xml) {
    virDomainPtr d = virDomainCreateXML(conn_, xml.c_str(), 0);
    if (!d) throw std::runtime_error("libvirt could not start the guest: " + last_error());
    virDomainFree(d);
}

bool Hypervisor::destroy(const std::string &name) {
    virDomainPtr d = virDomainLookupByName(conn_, name.c_str());
    if (!d) return false;
    virDomainDestroy(d);
    virDomainFree(d);
    return true;
}

bool Hypervisor::somebody_serves(const std::string &run) {
    return PrivateDaemon(run + "/libvirt").running() || system_libvirtd();
}

Hypervisor::Definition Hypervisor::definition(const std::string &name) {
    DomainPtr d(virDomainLookupByName(conn_, name.c_str()));
    if (!d) d.reset(virDomainLookupByUUIDString(conn_, name.c_str()));
    if (!d)
        throw UserError("libvirt at " + uri_ + " has no domain '" + name + "'; virsh -c '" + uri_ +
                        "' list --all shows what it has");
    if (virDomainIsPersistent(d.get()) != 1)
        throw UserError("domain " + name +
                        " is transient: libvirt forgets it when it ends; define it first (virsh define)");
    Definition result{stored_xml(d.get()), virDomainIsActive(d.get()) == 1};
    if (result.xml.empty())
        throw UserError("libvirt does not show the description of domain " + name + ": " + last_error());
    return result;
}

std::vector<std::pair<std::string, std::string>> Hypervisor::definitions() {
    std::vector<std::pair<std::string, std::string>> all;
    virDomainPtr *list = nullptr;
    const int count = virConnectListAllDomains(conn_, &list, VIR_CONNECT_LIST_DOMAINS_PERSISTENT);
    for (int i = 0; i < count; i++) {
        DomainPtr d(list[i]);
        if (std::string xml = stored_xml(d.get()); !xml.empty())
            all.emplace_back(virDomainGetName(d.get()), std::move(xml));
    }
    free(list);
    return all;
}

void Hypervisor::define(const std::string &xml) {
    if (!DomainPtr(virDomainDefineXML(conn_, xml.c_str())))
        throw UserError("libvirt does not take the domain's new description: " + last_error());
}

std::string Hypervisor::objection(const std::string &xml) {
    virResetLastError();
    return taken(virConnectDomainXMLToNative(conn_, "qemu-argv", xml.c_str(), 0)).empty() ? last_error() : "";
}

Hypervisor::Security Hypervisor::security() {
    Security result;
    const std::string caps = capabilities();
    // <secmodel><model>dac</model>...<baselabel type='kvm'>+64055:+104</baselabel>...</secmodel>
    for (size_t at = 0; (at = caps.find("<secmodel>", at)) != std::string::npos; at++) {
        const std::string model = caps.substr(at, caps.find("</secmodel>", at) - at);
        for (const char *name : {"apparmor", "selinux"})
            if (model.find("<model>" + std::string(name) + "</model>") != std::string::npos)
                result.confining_models.push_back(name);
        const size_t label = model.find("'>+");
        if (model.find("<model>dac</model>") != std::string::npos && label != std::string::npos)
            result.user = static_cast<uid_t>(std::strtoul(model.c_str() + label + 3, nullptr, 10));
    }
    return result;
}

Hypervisor::Info Hypervisor::info(const std::string &name) {
    Info result;
    virDomainPtr d = virDomainLookupByName(conn_, name.c_str());
    if (!d) {
        result.state = "gone";
        return result;
    }
    virDomainInfo i;
    static const char *const names[] = {"none",          "running", "blocked", "paused",
                                        "shutting down", "off",     "crashed", "suspended"};
    if (virDomainGetInfo(d, &i) == 0) {
        result.state = i.state < 8 ? names[i.state] : "unknown";
        result.memory_kib = i.memory;
    }
    virDomainFree(d);
    if (pid_t pid = read_pid((private_ ? run_ + "/libvirt/run/qemu/" : "/run/libvirt/qemu/") + name + ".pid"); pid > 0)
        result.pid = pid;
    return result;
}

}  // namespace lab
