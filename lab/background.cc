// SPDX-License-Identifier: GPL-2.0-or-later
#include "background.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace lab {

namespace {

// Reaps what it is handed until nothing is left. It holds nothing of its parent's: no lock, no pipe, no folder.
[[noreturn]] void reap_all() {
    prctl(PR_SET_NAME, "sanlab-reaper");
    for (int s : {SIGINT, SIGTERM, SIGHUP}) signal(s, SIG_IGN);
    if (chdir("/") < 0) _exit(1);
    close_range(0, ~0u, 0);
    while (waitpid(-1, nullptr, 0) > 0 || errno == EINTR) {
    }
    _exit(0);
}

}  // namespace

pid_t run_in_background(const std::vector<std::string> &argv, const std::string &log, Orphans orphans) {
    std::vector<char *> args;
    for (const std::string &a : argv) args.push_back(const_cast<char *>(a.c_str()));
    args.push_back(nullptr);
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
    pid_t middle = fork();
    if (middle == 0) {
        // A grandchild belongs to init: nobody has to wait for it.
        setsid();
        if (fork() != 0) _exit(0);
        signal(SIGINT, SIG_IGN);
        int null = open("/dev/null", O_RDONLY), out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
        if (null >= 0) dup2(null, 0);
        if (out >= 0) dup2(out, 1), dup2(out, 2);
        if (orphans == Orphans::adopt) {
            prctl(PR_SET_CHILD_SUBREAPER, 1);
            if (fork() != 0) reap_all();
        }
        const pid_t self = getpid();
        if (write(report[1], &self, sizeof self) != sizeof self) _exit(1);
        execv(args[0], args.data());
        dprintf(2, "cannot run %s: %s\n", args[0], std::strerror(errno));
        _exit(127);
    }
    close(report[1]);
    pid_t pid = -1;
    ssize_t n = -1;
    while (middle > 0 && (n = read(report[0], &pid, sizeof pid)) < 0 && errno == EINTR) {
    }
    close(report[0]);
    while (middle > 0 && waitpid(middle, nullptr, 0) < 0 && errno == EINTR) {
    }
    if (n != sizeof pid || pid <= 0) throw std::runtime_error("cannot start " + argv[0]);
    return pid;
}

bool process_runs(pid_t pid, const std::string &name) {
    if (pid <= 0 || ::kill(pid, 0) < 0) return false;
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");  // "PID (NAME) STATE ..."
    std::string stat;
    std::getline(in, stat);
    return stat.find(" (" + name + ") ") != std::string::npos && stat.find(") Z ") == std::string::npos;
}

pid_t read_pid(const std::string &path) {
    pid_t pid = 0;
    std::ifstream(path) >> pid;
    return pid;
}

void end_process(pid_t pid, const std::string &name, unsigned patience_ms) {
    if (!process_runs(pid, name)) return;
    ::kill(pid, SIGTERM);
    for (unsigned waited = 0; waited < patience_ms && process_runs(pid, name); waited += 20)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (process_runs(pid, name)) ::kill(pid, SIGKILL);
}

}  // namespace lab
