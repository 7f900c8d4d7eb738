// SPDX-License-Identifier: GPL-2.0-or-later
// agent.cc: /init of the micro guest. Mounts what Linux needs, hands the SAN NIC to vfio-pci (or, without an IOMMU, to
// uio_pci_generic), then runs commands that arrive on the second serial port, one at a time.
//
// Protocol, lines of text; a field ends at a space, the last one at the line's end:
//   to the guest                          from the guest
//   ?                                     ! ready DRIVER        DRIVER: vfio-pci, uio_pci_generic or none
//   R SEQ SECONDS ARG0 \x1f ARG1 ...      o SEQ TEXT            a line of standard output (R ends a command that still runs)
//                                         e SEQ TEXT            a line of standard error
//                                         x SEQ STATUS          ended: exit status, 128 + signal, or 124 after SECONDS
//   K SEQ                                 (ends the running command)
//   Q                                     (powers off)
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr const char *kPort = "/dev/ttyS1";
constexpr size_t kMaxLine = 64 * 1024;

bool write_file(const std::string &path, const std::string &text) {
    int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = write(fd, text.data(), text.size());
    close(fd);
    return n == static_cast<ssize_t>(text.size());
}

std::string read_file(const std::string &path) {
    char buf[256];
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return {};
    ssize_t n = read(fd, buf, sizeof buf - 1);
    close(fd);
    std::string s(buf, n > 0 ? static_cast<size_t>(n) : 0);
    while (!s.empty() && (s.back() == '\n' || s.back() == ' ')) s.pop_back();
    return s;
}

void load_module(const char *name) {
    std::string path = std::string("/modules/") + name + ".ko";
    int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    if (syscall(SYS_finit_module, fd, "", 0) < 0 && errno != EEXIST) std::printf("agent: module %s: %s\n", name, std::strerror(errno));
    close(fd);
}

// Hands every SAN NIC to a driver that gives it to user space; the name of that driver.
std::string bind_nics() {
    std::string used = "none";
    DIR *dir = opendir("/sys/bus/pci/devices");
    if (!dir) return used;
    while (dirent *e = readdir(dir)) {
        std::string at = std::string("/sys/bus/pci/devices/") + e->d_name;
        if (read_file(at + "/vendor") != "0x1234" || read_file(at + "/device") != "0x5a4e") continue;
        bool iommu = access((at + "/iommu_group").c_str(), F_OK) == 0;
        if (iommu) {
            for (const char *m : {"irqbypass", "vfio", "vfio_virqfd", "vfio_iommu_type1", "vfio-pci-core", "vfio-pci"}) load_module(m);
            used = "vfio-pci";
        } else {
            for (const char *m : {"uio", "uio_pci_generic"}) load_module(m);
            used = "uio_pci_generic";
        }
        write_file(at + "/driver_override", used);
        if (!write_file("/sys/bus/pci/drivers_probe", e->d_name)) std::printf("agent: %s did not take %s\n", used.c_str(), e->d_name);
    }
    closedir(dir);
    return used;
}

class Port {
  public:
    bool open_port() {
        fd_ = open(kPort, O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (fd_ < 0) return false;
        termios t;
        tcgetattr(fd_, &t);
        cfmakeraw(&t);
        cfsetspeed(&t, B115200);
        tcsetattr(fd_, TCSANOW, &t);
        return true;
    }
    int fd() const { return fd_; }
    void send(const std::string &line) {
        std::string out = line + '\n';
        for (size_t done = 0; done < out.size();) {
            ssize_t n = write(fd_, out.data() + done, out.size() - done);
            if (n < 0 && errno != EINTR) return;
            if (n > 0) done += static_cast<size_t>(n);
        }
    }
    // Reads what is there; complete lines go to `lines`.
    void receive(std::vector<std::string> &lines) {
        char buf[4096];
        ssize_t n = read(fd_, buf, sizeof buf);
        if (n <= 0) return;
        in_.append(buf, static_cast<size_t>(n));
        for (size_t end; (end = in_.find('\n')) != std::string::npos; in_.erase(0, end + 1)) lines.push_back(in_.substr(0, end));
        if (in_.size() > kMaxLine) in_.clear();
    }

  private:
    int fd_ = -1;
    std::string in_;
};

struct Stream {
    int fd = -1;
    char tag;
    std::string part;
};

struct Child {
    pid_t pid = -1;
    std::string seq;
    time_t deadline = 0;
    bool timed_out = false;
    Stream streams[2] = {{-1, 'o', {}}, {-1, 'e', {}}};
};

time_t now() {
    timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return ts.tv_sec;
}

void start(Port &port, Child &child, const std::string &line) {
    // R SEQ SECONDS ARGS
    size_t a = line.find(' ', 2), b = a == std::string::npos ? a : line.find(' ', a + 1);
    if (b == std::string::npos) return port.send("e 0 malformed command");
    child.seq = line.substr(2, a - 2);
    child.deadline = now() + std::atol(line.substr(a + 1, b - a - 1).c_str());
    child.timed_out = false;
    std::vector<std::string> words;
    std::string rest = line.substr(b + 1);
    for (size_t at = 0; at <= rest.size();) {
        size_t end = rest.find('\x1f', at);
        if (end == std::string::npos) end = rest.size();
        words.push_back(rest.substr(at, end - at));
        at = end + 1;
    }
    std::vector<char *> argv;
    for (std::string &w : words) argv.push_back(w.data());
    argv.push_back(nullptr);
    int out[2], err[2];
    if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0) return port.send("x " + child.seq + " 126");
    child.pid = fork();
    if (child.pid == 0) {
        setpgid(0, 0);
        dup2(out[1], 1);
        dup2(err[1], 2);
        execv(argv[0], argv.data());
        dprintf(2, "cannot run %s: %s\n", argv[0], std::strerror(errno));
        _exit(127);
    }
    close(out[1]);
    close(err[1]);
    child.streams[0].fd = out[0];
    child.streams[1].fd = err[0];
}

void drain(Port &port, const Child &child, Stream &s) {
    char buf[4096];
    ssize_t n = read(s.fd, buf, sizeof buf);
    if (n > 0) s.part.append(buf, static_cast<size_t>(n));
    if (n <= 0) {
        close(s.fd);
        s.fd = -1;
    }
    auto send = [&](const std::string &text) { port.send(std::string(1, s.tag) + ' ' + child.seq + ' ' + text); };
    for (size_t end; (end = s.part.find('\n')) != std::string::npos; s.part.erase(0, end + 1)) send(s.part.substr(0, end));
    if (!s.part.empty() && (s.fd < 0 || s.part.size() > kMaxLine)) {
        send(s.part);
        s.part.clear();
    }
}

[[noreturn]] void power_off() {
    sync();
    reboot(RB_POWER_OFF);
    for (;;) pause();
}

}  // namespace

int main() {
    for (const char *dir : {"/proc", "/sys", "/dev", "/tmp"}) mkdir(dir, 0755);
    mount("proc", "/proc", "proc", 0, nullptr);
    mount("sysfs", "/sys", "sysfs", 0, nullptr);
    mount("devtmpfs", "/dev", "devtmpfs", 0, nullptr);
    mount("tmpfs", "/tmp", "tmpfs", 0, nullptr);
    rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_MEMLOCK, &unlimited);
    write_file("/proc/sys/vm/max_map_count", "1000000");
    std::string driver = bind_nics();
    Port port;
    if (!port.open_port()) {
        std::printf("agent: %s: %s; nothing can be run here\n", kPort, std::strerror(errno));
        power_off();
    }
    port.send("! ready " + driver);

    Child child;
    std::string next;  // a command that waits for the end of the one it replaces
    std::vector<std::string> lines;
    for (;;) {
        pollfd fds[3] = {{port.fd(), POLLIN, 0}, {child.streams[0].fd, POLLIN, 0}, {child.streams[1].fd, POLLIN, 0}};
        poll(fds, 3, child.pid > 0 ? 100 : 1000);
        if (fds[0].revents) port.receive(lines);
        for (int i = 0; i < 2; i++)
            if (child.streams[i].fd >= 0 && fds[1 + i].revents) drain(port, child, child.streams[i]);
        for (const std::string &line : lines) {
            if (line == "?") port.send("! ready " + driver);
            else if (line == "Q") power_off();
            else if (line == "K " + child.seq && child.pid > 0) kill(-child.pid, SIGKILL);
            else if (line.rfind("R ", 0) == 0) {
                // One port, one client: whoever asks anew has taken the place of the one that started what still runs.
                if (child.pid > 0) {
                    kill(-child.pid, SIGKILL);
                    next = line;
                } else {
                    start(port, child, line);
                }
            }
        }
        lines.clear();
        if (child.pid > 0 && now() > child.deadline && !child.timed_out) {
            child.timed_out = true;
            kill(-child.pid, SIGKILL);
        }
        if (child.pid > 0 && child.streams[0].fd < 0 && child.streams[1].fd < 0) {
            int status;
            waitpid(child.pid, &status, 0);
            int code = child.timed_out ? 124 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            child.pid = -1;
            port.send("x " + child.seq + ' ' + std::to_string(code));
            if (!next.empty()) start(port, child, std::exchange(next, {}));
        }
        // Orphans only: the running command is waited for above, once its output is complete.
        while (child.pid < 0 && waitpid(-1, nullptr, WNOHANG) > 0) {}
    }
}
