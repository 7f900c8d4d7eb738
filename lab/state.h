// SPDX-License-Identifier: GPL-2.0-or-later
// state.h: what a running lab consists of, kept in RUN/lab.json so that later commands find it.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace lab {

// The lab's guests: numbered from 1.
inline constexpr unsigned kMostGuests = 8;
inline std::string lab_guest_name(unsigned number) { return "guest" + std::to_string(number); }
inline std::string lab_guest_ip(unsigned number) { return "10.77.0." + std::to_string(number); }

struct GuestState {
    std::string name, ip, domain, agent_socket, console_log;
};

struct LabState {
    std::string uri;
    bool private_daemon = false;
    bool iommu = true;
    bool kvm = false;
    bool complete = false;  // all guests came up once
    unsigned memory_mib = 0;
    bool share_memory = true;
    std::string revoke = "key";
    std::string fabric_socket;
    std::vector<GuestState> guests;

    // Throws UserError when the file is there but is not what save() writes.
    static std::optional<LabState> load(const std::string &run);
    void save(const std::string &run) const;
    static void remove(const std::string &run);
};

// Writes the file as a whole or not at all. Throws when it cannot be written.
void replace_file(const std::string &path, const std::string &text);

// A file that one process at a time holds, until it ends however it may; the file says who that is.
class FileLock {
  public:
    // `who`: this process, in words; its id is added. Throws UserError when the file cannot be opened.
    FileLock(const std::string &path, const std::string &who);
    ~FileLock();
    FileLock(const FileLock &) = delete;
    bool held() const { return held_; }
    // Who has it instead.
    std::string holder() const;

  private:
    int fd_ = -1;
    bool held_ = false;
};

// One sanlab at a time starts or ends a lab. Throws UserError when another one does.
class LabLock {
  public:
    explicit LabLock(const std::string &run);

  private:
    FileLock file_;
};

// One program at a time in a guest: it has the only NIC. The lock file of a guest:
std::string guest_lock(const std::string &run, const std::string &guest);

// One JSON line to sanfabricd's control socket and the line it answers. Throws when nobody answers.
std::string ask_fabric(const std::string &socket, const std::string &request);

}  // namespace lab
