// SPDX-License-Identifier: GPL-2.0-or-later
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "paths.h"
#include "runner.h"

namespace lab {

Process::Process(const std::vector<std::string> &argv, LineSink sink) : sink_(std::move(sink)) {
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0)
        throw std::runtime_error(std::string("pipe: ") + std::strerror(errno));
    std::vector<char *> args;
    for (const std::string &a : argv) args.push_back(const_cast<char *>(a.c_str()));
    args.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out[1], 1);
        dup2(err[1], 2);
        int null = open("/dev/null", O_RDONLY);
        if (null >= 0) dup2(null, 0);
        execv(args[0], args.data());
        dprintf(2, "cannot run %s: %s\n", args[0], std::strerror(errno));
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    if (pid_ < 0) throw std::runtime_error(std::string("fork: ") + std::strerror(errno));
    out_ = out[0];
    err_ = err[0];
    reader_ = std::thread([this] { read_all(); });
}

Process::~Process() {
    if (!wait(0)) kill();
    reader_.join();
    close(out_);
    close(err_);
}

void Process::read_all() {
    struct {
        int fd;
        Stream stream;
        std::string part;
        bool open = true;
    } in[2] = {{out_, Stream::output, {}}, {err_, Stream::error, {}}};
    while (in[0].open || in[1].open) {
        pollfd fds[2] = {{in[0].open ? in[0].fd : -1, POLLIN, 0}, {in[1].open ? in[1].fd : -1, POLLIN, 0}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR) break;
        for (int i = 0; i < 2; i++) {
            if (!fds[i].revents) continue;
            char buf[4096];
            ssize_t n = read(in[i].fd, buf, sizeof buf);
            if (n > 0) in[i].part.append(buf, static_cast<size_t>(n));
            else if (n == 0 || errno != EINTR) in[i].open = false;
            for (size_t end; (end = in[i].part.find('\n')) != std::string::npos; in[i].part.erase(0, end + 1))
                if (sink_) sink_(in[i].stream, in[i].part.substr(0, end));
            if (!in[i].open && !in[i].part.empty() && sink_) sink_(in[i].stream, in[i].part);
        }
    }
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    std::lock_guard lock(mutex_);
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ended_.notify_all();
}

std::optional<int> Process::wait(double seconds) {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return status_.has_value(); });
    return status_;
}

void Process::kill() {
    std::lock_guard lock(mutex_);
    if (!status_) ::kill(pid_, SIGKILL);
}

void Process::terminate() {
    std::lock_guard lock(mutex_);
    if (!status_) ::kill(pid_, SIGTERM);
}

}  // namespace lab
