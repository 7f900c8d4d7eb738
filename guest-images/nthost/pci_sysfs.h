// SPDX-License-Identifier: GPL-2.0-or-later
//
// pci_sysfs.h: what both PCI back ends do with /sys: an owned descriptor, small files, links, giving a function to a
// driver.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <string>

namespace nth {

class Fd {
  public:
    explicit Fd(int fd = -1) : fd_(fd) {}
    ~Fd() {
        if (fd_ >= 0) close(fd_);
    }
    Fd(const Fd &) = delete;
    Fd &operator=(const Fd &) = delete;
    void reset(int fd) {
        if (fd_ >= 0) close(fd_);
        fd_ = fd;
    }
    int get() const { return fd_; }

  private:
    int fd_;
};

inline bool write_file(const std::string &path, const std::string &text) {
    Fd fd(open(path.c_str(), O_WRONLY | O_CLOEXEC));
    return fd.get() >= 0 && write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

inline std::string link_name(const std::string &path) {
    char target[PATH_MAX];
    ssize_t n = readlink(path.c_str(), target, sizeof target);
    if (n <= 0) return "";
    std::string s(target, static_cast<size_t>(n));
    return s.substr(s.find_last_of('/') + 1);
}

// Makes `driver` drive the function at `address`.
inline bool give_to_driver(const std::string &address, const std::string &driver, std::string *error) {
    std::string sys = "/sys/bus/pci/devices/" + address;
    auto fail = [&](const std::string &what) {
        *error = "--device pci=" + address + ": " + what;
        return false;
    };
    if (access(sys.c_str(), F_OK) != 0) {
        std::string example = "0000:00:05.0";
        if (DIR *d = opendir("/sys/bus/pci/devices")) {
            while (dirent *e = readdir(d))
                if (e->d_name[0] != '.') example = e->d_name;
            closedir(d);
        }
        return fail("no such PCI function (expected DOMAIN:BUS:SLOT.FUNCTION, as in " + example + ")");
    }
    std::string now = link_name(sys + "/driver");
    if (now == driver) return true;
    if (!write_file(sys + "/driver_override", driver)) return fail(sys + "/driver_override: " + strerror(errno));
    if (!now.empty() && !write_file(sys + "/driver/unbind", address))
        return fail("cannot unbind " + now + ": " + strerror(errno));
    if (!write_file("/sys/bus/pci/drivers_probe", address))
        return fail(std::string("/sys/bus/pci/drivers_probe: ") + strerror(errno));
    if (link_name(sys + "/driver") != driver)
        return fail(driver + " did not take the function (is its module loaded?)");
    return true;
}

}  // namespace nth
