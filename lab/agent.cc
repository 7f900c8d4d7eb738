// SPDX-License-Identifier: GPL-2.0-or-later
#include "agent.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "interrupt.h"
#include "paths.h"

namespace lab {

using Clock = std::chrono::steady_clock;

namespace {
double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }
}  // namespace

// Sequence numbers differ between clients: what a predecessor's command still prints is not taken for ours.
Agent::Agent(const std::string &path, double seconds) : sequence_(std::random_device{}() & 0x3FFFFFFF) {
    auto start = Clock::now();
    sockaddr_un addr = {};
    addr.sun_family = AF_UNIX;
    if (path.size() >= sizeof addr.sun_path)
        throw UserError("socket path " + path + " is too long; set SANLAB_RUN to a shorter folder");
    std::memcpy(addr.sun_path, path.c_str(), path.size());
    for (;;) {
        fd_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(fd_, reinterpret_cast<sockaddr *>(&addr), sizeof addr) == 0) break;
        close(fd_);
        fd_ = -1;
        if (since(start) > seconds)
            throw std::runtime_error("cannot reach the guest's agent at " + path + ": " + std::strerror(errno) +
                                     "; a guest that has died (see sanlab status) is booted again by sanlab up");
        throw_if_interrupted();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    std::string line;
    while (since(start) < seconds) {
        throw_if_interrupted();
        send("?");
        while (read_line(line, 250))
            if (line.rfind("! ready ", 0) == 0) {
                driver_ = line.substr(8);
                return;
            }
    }
    close(fd_);
    fd_ = -1;
    throw std::runtime_error("the guest did not come up within " + std::to_string(static_cast<int>(seconds)) +
                             " seconds");
}

Agent::~Agent() {
    if (fd_ >= 0) close(fd_);
}

void Agent::send(const std::string &line) {
    std::string out = line + '\n';
    for (size_t done = 0; done < out.size();) {
        ssize_t n = ::send(fd_, out.data() + done, out.size() - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) throw std::runtime_error("the guest is gone");
        done += static_cast<size_t>(n);
    }
}

bool Agent::read_line(std::string &line, int timeout_ms) {
    auto start = Clock::now();
    for (;;) {
        if (size_t end = in_.find('\n'); end != std::string::npos) {
            line = in_.substr(0, end);
            in_.erase(0, end + 1);
            while (!line.empty() && line.back() == '\r') line.pop_back();
            return true;
        }
        int left = timeout_ms - static_cast<int>(since(start) * 1000);
        if (left < 0) return false;
        pollfd p = {fd_, POLLIN, 0};
        int r = poll(&p, 1, left);
        if (r == 0) return false;
        if (r < 0) continue;
        char buf[4096];
        ssize_t n = recv(fd_, buf, sizeof buf, 0);
        if (n == 0 || (n < 0 && errno != EINTR)) throw std::runtime_error("the guest is gone");
        if (n > 0) in_.append(buf, static_cast<size_t>(n));
    }
}

void Agent::power_off() { send("Q"); }

class AgentRunner : public Runner {
  public:
    AgentRunner(Agent &agent, unsigned sequence, LineSink sink)
        : agent_(agent),
          tag_(' ' + std::to_string(sequence)),
          sink_(std::move(sink)),
          reader_([this] { read_all(); }) {}
    ~AgentRunner() override {
        if (!wait(0)) kill();
        reader_.join();
    }
    std::optional<int> wait(double seconds) override {
        std::unique_lock lock(mutex_);
        ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return status_.has_value(); });
        return status_;
    }
    void kill() override {
        kill_ = true;  // the reader sends it: one thread owns the socket
    }

  private:
    void read_all() {
        int status = 125;
        try {
            std::string line;
            std::optional<Clock::time_point> killed;
            for (;;) {
                if (kill_ && !killed) {
                    agent_.send("K" + tag_);
                    killed = Clock::now();
                }
                if (killed && since(*killed) > 5)
                    throw std::runtime_error("the guest does not say that the program has ended");
                if (!agent_.read_line(line, 100)) continue;
                if (line.size() < 1 + tag_.size() || line.compare(1, tag_.size(), tag_) != 0) continue;
                std::string text = line.size() > 2 + tag_.size() ? line.substr(2 + tag_.size()) : "";
                if (line[0] == 'o' && sink_) sink_(Stream::output, text);
                else if (line[0] == 'e' && sink_) sink_(Stream::error, text);
                else if (line[0] == 'x') {
                    status = std::stoi(text);
                    break;
                }
            }
        } catch (const std::exception &e) {
            if (sink_) sink_(Stream::error, e.what());
        }
        std::lock_guard lock(mutex_);
        status_ = status;
        ended_.notify_all();
    }
    Agent &agent_;
    std::string tag_;
    LineSink sink_;
    std::atomic<bool> kill_{false};
    std::mutex mutex_;
    std::condition_variable ended_;
    std::optional<int> status_;  // guarded by mutex_
    std::thread reader_;         // last: it uses what stands above
};

std::unique_ptr<Runner> Agent::run(const std::vector<std::string> &argv, unsigned seconds, LineSink sink) {
    unsigned sequence = ++sequence_;
    std::string line = "R " + std::to_string(sequence) + ' ' + std::to_string(seconds) + ' ';
    for (size_t i = 0; i < argv.size(); i++) {
        if (argv[i].find_first_of("\n\x1f") != std::string::npos) throw UserError("an argument contains a line break");
        line += (i ? "\x1f" : "") + argv[i];
    }
    send(line);
    return std::make_unique<AgentRunner>(*this, sequence, std::move(sink));
}

}  // namespace lab
