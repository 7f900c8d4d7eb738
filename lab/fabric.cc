// SPDX-License-Identifier: GPL-2.0-or-later
#include "fabric.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "background.h"
#include "state.h"

namespace lab {

using nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::string pid_file(const Paths &paths) { return paths.run + "/fabric.pid"; }
std::string attached_file(const Paths &paths) { return paths.run + "/attached.json"; }
bool is_fabric(pid_t pid) { return process_runs(pid, "sanfabricd"); }
void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

}  // namespace

std::string fabric_socket(const Paths &paths) { return paths.run + "/fabric.sock"; }

pid_t running_fabric(const Paths &paths) {
    pid_t pid = 0;
    std::ifstream(pid_file(paths)) >> pid;
    return is_fabric(pid) ? pid : 0;
}

pid_t start_fabric(const Paths &paths) {
    pid_t pid = running_fabric(paths);
    if (!pid) {
        fs::create_directories(paths.run);
        pid = run_in_background({paths.need_program("sanfabricd"), fabric_socket(paths)}, paths.run + "/fabric.log");
        std::ofstream(pid_file(paths)) << pid << '\n';
    }
    for (int i = 0; i < 100; i++, pause()) {
        try {
            ask_fabric(fabric_socket(paths), "{\"cmd\":\"status\"}");
            for (const AttachedDomain &d : attached_domains(paths)) admit_to_fabric(fabric_socket(paths), d.user);
            return pid;
        } catch (const UserError &) {
            throw;
        } catch (const std::exception &) {
        }
    }
    throw std::runtime_error("sanfabricd did not start; see " + paths.run + "/fabric.log");
}

void stop_fabric(const Paths &paths) {
    if (const pid_t pid = running_fabric(paths)) {
        ::kill(pid, SIGTERM);
        for (int i = 0; i < 100 && is_fabric(pid); i++) pause();
        if (is_fabric(pid)) ::kill(pid, SIGKILL);
    }
    fs::remove(pid_file(paths));
}

bool admit_to_fabric(const std::string &socket, int64_t user) {
    struct stat st;
    if (user <= 0 || stat(socket.c_str(), &st) < 0 || st.st_uid == static_cast<uid_t>(user)) return true;
    return chown(socket.c_str(), static_cast<uid_t>(user), static_cast<gid_t>(-1)) == 0;
}

std::vector<AttachedDomain> attached_domains(const Paths &paths) {
    std::vector<AttachedDomain> domains;
    std::ifstream in(attached_file(paths));
    if (!in) return domains;
    try {
        for (const json &j : json::parse(in))
            domains.push_back({j.value("uri", ""), j.value("domain", ""), j.value("ip", ""), j.value("nic", ""),
                               j.value("user", int64_t{-1})});
    } catch (const json::exception &) {
        throw UserError(attached_file(paths) +
                        " is damaged; remove it and attach the domains again, which restores it");
    }
    return domains;
}

void save_attached(const Paths &paths, const std::vector<AttachedDomain> &domains) {
    if (domains.empty()) {
        fs::remove(attached_file(paths));
        return;
    }
    json list = json::array();
    for (const AttachedDomain &d : domains)
        list.push_back({{"uri", d.uri}, {"domain", d.domain}, {"ip", d.ip}, {"nic", d.nic}, {"user", d.user}});
    const std::string part = attached_file(paths) + ".part";
    {
        std::ofstream out(part);
        out << list.dump(2) << '\n';
        if (!out.flush()) throw std::runtime_error("cannot write " + part);
    }
    fs::rename(part, attached_file(paths));
}

}  // namespace lab
