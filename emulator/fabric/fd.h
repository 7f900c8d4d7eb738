// SPDX-License-Identifier: GPL-2.0-or-later
// fd.h: owned file descriptors and mappings, and fixed-size messages with descriptors over a UNIX stream socket.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "sanlab/fabric_wire.h"

namespace fabric {

class Fd {
  public:
    Fd() = default;
    explicit Fd(int fd) : fd_(fd) {}
    Fd(Fd &&o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
    Fd &operator=(Fd &&o) noexcept {
        std::swap(fd_, o.fd_);
        return *this;
    }
    ~Fd();
    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void reset() { *this = Fd(); }

  private:
    int fd_ = -1;
};

class Mapping {
  public:
    Mapping() = default;
    Mapping(Mapping &&o) noexcept : at_(std::exchange(o.at_, nullptr)), size_(std::exchange(o.size_, 0)) {}
    Mapping &operator=(Mapping &&o) noexcept {
        std::swap(at_, o.at_);
        std::swap(size_, o.size_);
        return *this;
    }
    ~Mapping();
    // Shared mapping of [offset, offset + size) of `fd`. Refuses (empty) when the file is shorter, or could be made shorter later
    // (no F_SEAL_SHRINK): then its bytes could turn into SIGBUS under us.
    static Mapping of(const Fd &fd, uint64_t offset, uint64_t size, bool writable = true);
    std::byte *data() const { return at_; }
    uint64_t size() const { return size_; }

  private:
    std::byte *at_ = nullptr;
    uint64_t size_ = 0;
};

// A memfd of `size` zero bytes, sealed against any change of size. Empty on failure.
Fd make_memfd(const char *name, uint64_t size);

// Listening or connected stream socket. On failure empty and *error says why.
Fd listen_unix(const std::string &path, std::string *error);
Fd connect_unix(const std::string &path, std::string *error);

// A message of that type, all else zero.
fabric_ctl ctl_message(uint16_t type);

// Wakes whoever waits on the eventfd.
void wake(const Fd &event);

// One fabric_ctl at a time, non-blocking. Partial messages are kept until they are whole.
class CtlSocket {
  public:
    CtlSocket() = default;
    explicit CtlSocket(Fd fd) : fd_(std::move(fd)) {}
    int get() const { return fd_.get(); }
    explicit operator bool() const { return static_cast<bool>(fd_); }

    // False: the socket is dead, or its buffer is full (a peer that does not read is as good as dead).
    bool send(const fabric_ctl &ctl, const std::vector<int> &fds = {});
    enum class Result { message, nothing, closed };
    // fds: the descriptors that came with it (all of them owned, also those nobody asked for).
    Result receive(fabric_ctl &ctl, std::vector<Fd> &fds);

  private:
    Fd fd_;
    std::vector<std::byte> part_;
    std::vector<Fd> part_fds_;
};

}  // namespace fabric
