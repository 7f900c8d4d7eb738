// SPDX-License-Identifier: GPL-2.0-or-later
#include "fabric.h"

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
constexpr const char *kManager = "sanfabricd";

}  // namespace

std::string fabric_socket(const Paths &paths) { return paths.run + "/fabric.sock"; }

pid_t running_fabric(const Paths &paths) {
    const pid_t pid = read_pid(pid_file(paths));
    return process_runs(pid, kManager) ? pid : 0;
}

void start_fabric(const Paths &paths) {
    if (!running_fabric(paths)) {
        fs::create_directories(paths.run);
        const pid_t pid = run_in_background({paths.need_program(kManager), fabric_socket(paths)}, paths.run + "/fabric.log");
        std::ofstream(pid_file(paths)) << pid << '\n';
    }
    for (int i = 0; i < 100; i++, std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
        try {
            ask_fabric(fabric_socket(paths), "{\"cmd\":\"status\"}");
            for (const AttachedDomain &d : attached_domains(paths)) admit_to_fabric(fabric_socket(paths), d.user);
            return;
        } catch (const UserError &) {
            throw;
        } catch (const std::exception &) {
        }
    }
    throw std::runtime_error("sanfabricd did not start; see " + paths.run + "/fabric.log");
}

void stop_fabric(const Paths &paths) {
    end_process(read_pid(pid_file(paths)), kManager, 2000);
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
    replace_file(attached_file(paths), list.dump(2) + '\n');
}

}  // namespace lab
