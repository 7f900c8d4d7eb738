// SPDX-License-Identifier: GPL-2.0-or-later
#include "state.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "paths.h"

namespace lab {

using nlohmann::json;

std::optional<LabState> LabState::load(const std::string &run) {
    std::ifstream in(run + "/lab.json");
    if (!in) return std::nullopt;
    LabState s;
    try {
        json j = json::parse(in);
        s.uri = j.at("uri").get<std::string>();  // without these it is no lab's file
        s.fabric_socket = j.at("fabric_socket").get<std::string>();
        s.private_daemon = j.value("private_daemon", false);
        s.iommu = j.value("iommu", true);
        s.kvm = j.value("kvm", false);
        s.complete = j.value("complete", false);
        s.memory_mib = j.value("memory_mib", 0u);
        s.share_memory = j.value("share_memory", true);
        s.revoke = j.value("revoke", "key");
        for (const json &g : j.at("guests"))
            s.guests.push_back({g.value("name", ""), g.value("ip", ""), g.value("domain", ""),
                                g.value("agent_socket", ""), g.value("console_log", "")});
    } catch (const json::exception &) {
        throw UserError(run + "/lab.json is damaged; end what is left of the lab with: sanlab down");
    }
    return s;
}

void replace_file(const std::string &path, const std::string &text) {
    const std::string part = path + ".part";
    {
        std::ofstream out(part);
        out << text;
        if (!out.flush()) {
            const std::string why = std::strerror(errno);
            std::error_code ignored;
            std::filesystem::remove(part, ignored);
            throw std::runtime_error("cannot write " + part + ": " + why);
        }
    }
    std::filesystem::rename(part, path);
}

FileLock::FileLock(const std::string &path, const std::string &who) {
    std::error_code ec;
    const std::string folder = std::filesystem::path(path).parent_path();
    std::filesystem::create_directories(folder, ec);
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd_ < 0)
        throw UserError("cannot write to " + folder + " (" + std::strerror(errno) +
                        "); set SANLAB_RUN to a folder of yours");
    held_ = flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (!held_) return;
    const std::string text = who + " (pid " + std::to_string(getpid()) + ")";
    if (ftruncate(fd_, 0) < 0 || pwrite(fd_, text.data(), text.size(), 0) < 0) return;  // then nobody is named
}

FileLock::~FileLock() {
    if (fd_ >= 0) close(fd_);
}

std::string FileLock::holder() const {
    char text[512];
    const ssize_t n = pread(fd_, text, sizeof text, 0);
    return n > 0 ? std::string(text, static_cast<size_t>(n)) : "sanlab";
}

LabLock::LabLock(const std::string &run) : file_(run + "/lab.lock", "sanlab") {
    if (!file_.held()) throw UserError("another " + file_.holder() + " is starting or ending this lab; wait for it");
}

std::string guest_lock(const std::string &run, const std::string &guest) { return run + '/' + guest + ".lock"; }

void LabState::save(const std::string &run) const {
    json guests_json = json::array();
    for (const GuestState &g : guests)
        guests_json.push_back({{"name", g.name},
                               {"ip", g.ip},
                               {"domain", g.domain},
                               {"agent_socket", g.agent_socket},
                               {"console_log", g.console_log}});
    json j = {{"uri", uri},
              {"private_daemon", private_daemon},
              {"iommu", iommu},
              {"kvm", kvm},
              {"complete", complete},
              {"memory_mib", memory_mib},
              {"share_memory", share_memory},
              {"revoke", revoke},
              {"fabric_socket", fabric_socket},
              {"guests", guests_json}};
    replace_file(run + "/lab.json", j.dump(2) + '\n');
}

void LabState::remove(const std::string &run) { std::filesystem::remove(run + "/lab.json"); }

std::string ask_fabric(const std::string &socket_path, const std::string &request) {
    sockaddr_un addr = {};
    addr.sun_family = AF_UNIX;
    std::string path = socket_path + ".ctl";
    if (path.size() >= sizeof addr.sun_path) throw std::runtime_error("socket path too long: " + path);
    std::memcpy(addr.sun_path, path.c_str(), path.size());
    int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    std::string line = request + '\n', answer;
    bool ok = fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr *>(&addr), sizeof addr) == 0 &&
              ::send(fd, line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size());
    while (ok && answer.find('\n') == std::string::npos) {
        pollfd p = {fd, POLLIN, 0};
        char buf[4096];
        ssize_t n = poll(&p, 1, 5000) > 0 ? recv(fd, buf, sizeof buf, 0) : -1;
        if (n <= 0) ok = false;
        else answer.append(buf, static_cast<size_t>(n));
    }
    if (fd >= 0) close(fd);
    if (!ok) throw std::runtime_error("sanfabricd does not answer at " + path);
    return answer.substr(0, answer.find('\n'));
}

}  // namespace lab
