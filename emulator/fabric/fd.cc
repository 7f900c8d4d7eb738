// SPDX-License-Identifier: GPL-2.0-or-later
#include "fd.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace fabric {

Fd::~Fd() {
    if (fd_ >= 0) close(fd_);
}

Mapping::~Mapping() {
    if (at_) munmap(at_, size_);
}

Mapping Mapping::of(const Fd &fd, uint64_t offset, uint64_t size, bool writable) {
    struct stat st;
    Mapping m;
    if (!fd || size == 0 || offset % 4096 || fstat(fd.get(), &st) < 0) return m;
    uint64_t file = static_cast<uint64_t>(st.st_size);
    if (offset > file || size > file - offset) return m;
    int seals = fcntl(fd.get(), F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK)) return m;
    void *p = mmap(nullptr, size, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd.get(), static_cast<off_t>(offset));
    if (p == MAP_FAILED) return m;
    m.at_ = static_cast<std::byte *>(p);
    m.size_ = size;
    return m;
}

Fd make_memfd(const char *name, uint64_t size) {
    Fd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd || ftruncate(fd.get(), static_cast<off_t>(size)) < 0) return {};
    if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) return {};
    return fd;
}

namespace {

bool address_of(const std::string &path, sockaddr_un &addr, std::string *error) {
    addr = {};
    addr.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof addr.sun_path) {
        if (error) *error = "socket path '" + path + "' must have 1 to " + std::to_string(sizeof addr.sun_path - 1) + " characters";
        return false;
    }
    std::memcpy(addr.sun_path, path.c_str(), path.size() + 1);
    return true;
}

Fd fail(const std::string &what, const std::string &path, std::string *error) {
    if (error) *error = what + " '" + path + "': " + std::strerror(errno);
    return {};
}

}  // namespace

Fd connect_unix(const std::string &path, std::string *error) {
    sockaddr_un addr;
    if (!address_of(path, addr, error)) return {};
    Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return fail("cannot make a socket for", path, error);
    if (connect(fd.get(), reinterpret_cast<sockaddr *>(&addr), sizeof addr) < 0) return fail("cannot connect to", path, error);
    return fd;
}

Fd listen_unix(const std::string &path, std::string *error) {
    sockaddr_un addr;
    if (!address_of(path, addr, error)) return {};
    // A socket file that nobody serves is left over from a process that died.
    if (Fd other = connect_unix(path, nullptr)) {
        if (error) *error = "socket '" + path + "' is served by another process; stop that one, or choose another path";
        return {};
    }
    struct stat st;
    if (errno == ECONNREFUSED && stat(path.c_str(), &st) == 0) {
        if (!S_ISSOCK(st.st_mode)) {
            if (error) *error = "'" + path + "' exists and is no socket; choose another path";
            return {};
        }
        unlink(path.c_str());
    }
    Fd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return fail("cannot make a socket for", path, error);
    if (bind(fd.get(), reinterpret_cast<sockaddr *>(&addr), sizeof addr) < 0) return fail("cannot bind", path, error);
    if (listen(fd.get(), 64) < 0) return fail("cannot listen on", path, error);
    return fd;
}

fabric_ctl ctl_message(uint16_t type) {
    fabric_ctl ctl = {};
    ctl.cookie = FABRIC_COOKIE;
    ctl.version = FABRIC_VERSION;
    ctl.type = type;
    return ctl;
}

void wake(const Fd &event) {
    uint64_t one = 1;
    // A full counter means that the wake-up is pending already.
    [[maybe_unused]] ssize_t n = write(event.get(), &one, sizeof one);
}

bool CtlSocket::send(const fabric_ctl &ctl, const std::vector<int> &fds) {
    if (!fd_ || fds.size() > FABRIC_MAX_FDS) return false;
    iovec iov = {const_cast<fabric_ctl *>(&ctl), sizeof ctl};
    alignas(cmsghdr) char control[CMSG_SPACE(FABRIC_MAX_FDS * sizeof(int))] = {};
    msghdr m = {};
    m.msg_iov = &iov;
    m.msg_iovlen = 1;
    if (!fds.empty()) {
        m.msg_control = control;
        m.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
        cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
        std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
    }
    ssize_t n = sendmsg(fd_.get(), &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n == static_cast<ssize_t>(sizeof ctl);
}

CtlSocket::Result CtlSocket::receive(fabric_ctl &ctl, std::vector<Fd> &fds) {
    fds.clear();
    while (fd_) {
        std::byte buf[sizeof(fabric_ctl)];
        iovec iov = {buf, sizeof ctl - part_.size()};
        alignas(cmsghdr) char control[CMSG_SPACE(FABRIC_MAX_FDS * sizeof(int))];
        msghdr m = {};
        m.msg_iov = &iov;
        m.msg_iovlen = 1;
        m.msg_control = control;
        m.msg_controllen = sizeof control;
        ssize_t n = recvmsg(fd_.get(), &m, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Result::nothing;
        if (n <= 0) return Result::closed;
        for (cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
            if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
            size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
            for (size_t i = 0; i < count; i++) {
                int fd;
                std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
                part_fds_.emplace_back(fd);
            }
        }
        part_.insert(part_.end(), buf, buf + n);
        if (part_fds_.size() > FABRIC_MAX_FDS || m.msg_flags & MSG_CTRUNC) return Result::closed;
        if (part_.size() < sizeof ctl) continue;
        std::memcpy(&ctl, part_.data(), sizeof ctl);
        part_.clear();
        fds = std::move(part_fds_);
        part_fds_.clear();
        return Result::message;
    }
    return Result::closed;
}

}  // namespace fabric
