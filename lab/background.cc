// SPDX-License-Identifier: GPL-2.0-or-later
#include "background.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace lab {

pid_t run_in_background(const std::vector<std::string> &argv, const std::string &log) {
    std::vector<char *> args;
    for (const std::string &a : argv) args.push_back(const_cast<char *>(a.c_str()));
    args.push_back(nullptr);
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0) throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
    pid_t middle = fork();
    if (middle == 0) {
        // A grandchild belongs to init: nobody has to wait for it.
        setsid();
        pid_t pid = fork();
        if (pid != 0) {
            ssize_t n = write(report[1], &pid, sizeof pid);
            _exit(n == sizeof pid ? 0 : 1);
        }
        signal(SIGINT, SIG_IGN);
        int null = open("/dev/null", O_RDONLY), out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
        if (null >= 0) dup2(null, 0);
        if (out >= 0) dup2(out, 1), dup2(out, 2);
        execv(args[0], args.data());
        dprintf(2, "cannot run %s: %s\n", args[0], std::strerror(errno));
        _exit(127);
    }
    close(report[1]);
    pid_t pid = -1;
    ssize_t n = middle > 0 ? read(report[0], &pid, sizeof pid) : -1;
    close(report[0]);
    if (middle > 0) waitpid(middle, nullptr, 0);
    if (n != sizeof pid || pid <= 0) throw std::runtime_error("cannot start " + argv[0]);
    return pid;
}

}  // namespace lab
