// SPDX-License-Identifier: GPL-2.0-or-later
// manager.h: sanfabricd without its main(): the directory of NICs, the links between them, the fault page, and a control socket.
//
// Control socket (PATH.ctl): one JSON object a line, one JSON object a line back.
//   {"cmd":"status"}                       NICs, links, counters, faults
//   {"cmd":"state", "nic":NAME}            the state document of one NIC (docs/snic.md, section 11), which the NIC is asked for
//   {"cmd":"faults", "loss_ppm":N, ...}    sets the named fields of struct fabric_faults, leaves the others
//   {"cmd":"reset-faults"}
// An answer is {"ok":true, ...} or {"ok":false, "error":"..."}. A client's commands are answered in order. When too many clients are
// connected, the one that has said nothing for longest is closed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fd.h"
#include "trunk.h"

namespace fabric {

class Manager : public TrunkHost {
  public:
    // Empty on failure, with *error set.
    static std::unique_ptr<Manager> create(const std::string &path, std::string *error);
    ~Manager() override;

    // Trunks to other hosts (trunk.h). `secret`: at least 16 bytes, the same on both. False with *error set.
    bool set_secret(const std::string &secret, std::string *error);
    bool listen_trunk(const std::string &address, std::string *error) { return trunks_->listen(address, error); }
    // Where listen_trunk() listens.
    std::string trunk_address() const { return trunks_ ? trunks_->address() : ""; }
    bool join_trunk(const std::string &address, std::string *error) { return trunks_->join(address, error); }

    // Serves what is ready; waits at most `timeout_ms` for something (-1: without limit).
    void serve(int timeout_ms);
    std::string status_json();
    // What a client of the control socket gets for `line`, but for "state", which only a client can ask for.
    std::string control(const std::string &line) { return command(line, 0).value_or(""); }

  private:
    struct Nic {
        CtlSocket socket;
        bool hello = false;
        fabric_nic info = {};
        std::vector<Fd> ram;
        fabric_counters counters = {};
    };
    struct Client {  // of the control socket
        Fd fd;
        std::string in;
        uint64_t used = 0;         // serial number of its last command
        std::string out;           // an answer that the socket has not taken whole
        size_t sent = 0;           // bytes of it that it has
        bool waits = false;        // for a NIC's state
        bool busy() const { return waits || !out.empty(); }
    };
    struct Question {  // for a NIC's state
        uint64_t client, nic;      // keys
        uint64_t due;              // on the monotonic clock, ns
    };
    struct LinkInfo {
        uint64_t a, b;  // keys of nics_
    };
    Manager() = default;
    void each_local_nic(const std::function<void(uint64_t, const fabric_nic &)> &f) override;
    bool tell_nic(uint64_t key, const fabric_ctl &ctl, const std::vector<int> &fds) override;
    uint64_t watch_trunk(int fd) override;
    void want_output(int fd, uint64_t number, bool output) override;
    void unwatch_trunk(int fd) override;
    void accept_nic();
    void accept_client();
    void serve_nic(uint64_t key);
    void serve_client(uint64_t key);
    void run_commands(uint64_t key);
    // Nothing: the answer to `client` comes later, from a NIC.
    std::optional<std::string> command(const std::string &line, uint64_t client);
    void watch_client(const Client &client, uint64_t key);
    void answer(uint64_t client, const std::string &text);
    void send_output(uint64_t client);
    void flush(uint64_t client);
    std::optional<std::string> ask_state(const std::string &name, uint64_t client);
    bool take_state(uint64_t nic, uint64_t number, const std::vector<Fd> &fds);
    void end_question(std::map<uint64_t, Question>::iterator q, const std::string &text);
    void give_up_questions(uint64_t now);
    void end_questions_to(uint64_t nic);
    bool hello(uint64_t key, const fabric_ctl &ctl, std::vector<Fd> fds);
    void make_link(uint64_t a, uint64_t b);
    void drop_nic(uint64_t key);
    void watch(int fd, uint64_t key);
    void watch_for(int fd, uint64_t key, uint32_t events);

    static constexpr size_t kMaxClients = 32;
    static constexpr size_t kMaxLine = 65536;
    std::string path_;
    Fd epoll_, listener_, control_;
    Fd fault_fd_;
    Mapping fault_page_;
    uint64_t next_key_ = 16;
    std::string last_refusal_;  // as it was logged
    std::map<uint64_t, Nic> nics_;
    std::map<uint64_t, Client> clients_;
    uint64_t commands_ = 0;
    std::map<uint64_t, Question> questions_;
    uint64_t next_question_ = 1;
    std::map<uint64_t, LinkInfo> links_;
    std::unique_ptr<Trunks> trunks_;  // none without a secret
};

}  // namespace fabric
