// SPDX-License-Identifier: GPL-2.0-or-later
// The manager's control socket: its clients, and questions that a NIC has to answer.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "manager.h"
#include "system.h"

namespace fabric {

using nlohmann::json;

namespace {

constexpr uint64_t kStateWait = 2'000'000'000;  // ns for a NIC to tell its state
constexpr int kMostNested = 64;  // levels of a state document: what writes it out again uses the stack for each

std::string refusal(const std::string &text) { return json{{"ok", false}, {"error", text}}.dump(); }

}  // namespace

// --- clients -----------------------------------------------------------------------------------------------------------------

void Manager::accept_client() {
    Fd fd(accept4(control_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd) return;
    if (clients_.size() >= kMaxClients) {
        auto idle = clients_.end();
        for (auto c = clients_.begin(); c != clients_.end(); ++c)
            if (!c->second.waits && (idle == clients_.end() || c->second.used < idle->second.used)) idle = c;
        if (idle == clients_.end()) return;
        clients_.erase(idle);
    }
    uint64_t key = next_key_++;
    watch(fd.get(), key);
    clients_[key].fd = std::move(fd);
    clients_[key].used = ++commands_;
}

void Manager::serve_client(uint64_t key) {
    Client &client = clients_[key];
    if (!client.out.empty()) return flush(key);
    char buf[4096];
    ssize_t n = recv(client.fd.get(), buf, sizeof buf, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0 || client.in.size() + static_cast<size_t>(n) > kMaxLine) {
        clients_.erase(key);
        return;
    }
    client.in.append(buf, static_cast<size_t>(n));
    run_commands(key);
}

void Manager::run_commands(uint64_t key) {
    for (auto it = clients_.find(key); it != clients_.end() && !it->second.busy(); it = clients_.find(key)) {
        Client &client = it->second;
        size_t end = client.in.find('\n');
        if (end == std::string::npos) break;
        std::string line = client.in.substr(0, end);
        client.in.erase(0, end + 1);
        client.used = ++commands_;
        if (std::optional<std::string> text = command(line, key)) answer(key, *text);
    }
    if (auto it = clients_.find(key); it != clients_.end()) watch_client(it->second, key);
}

// While an answer is on its way the client's further commands stay in its socket.
void Manager::watch_client(const Client &client, uint64_t key) {
    watch_for(client.fd.get(), key, !client.out.empty() ? EPOLLOUT : client.waits ? 0u : EPOLLIN);
}

void Manager::answer(uint64_t key, const std::string &text) {
    auto it = clients_.find(key);
    if (it == clients_.end()) return;
    it->second.waits = false;
    it->second.out = text + '\n';
    send_output(key);
}

// Sends what the socket takes. A client that is gone goes.
void Manager::send_output(uint64_t key) {
    Client &client = clients_[key];
    ssize_t n = send(client.fd.get(), client.out.data() + client.sent, client.out.size() - client.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
        clients_.erase(key);
        return;
    }
    if (n > 0) client.sent += static_cast<size_t>(n);
    if (client.sent == client.out.size()) client.out.clear(), client.sent = 0;
}

void Manager::flush(uint64_t key) {
    send_output(key);
    if (auto it = clients_.find(key); it != clients_.end() && it->second.out.empty()) run_commands(key);
}

// --- questions to a NIC ------------------------------------------------------------------------------------------------------

std::optional<std::string> Manager::ask_state(const std::string &name, uint64_t client) {
    std::string known;
    for (auto &[key, nic] : nics_) {
        if (!nic.hello) continue;
        known += (known.empty() ? "" : ", ") + name_of(nic.info);
        if (name_of(nic.info) != name) continue;
        if (!clients_.count(client)) return refusal("a NIC's state is told to a client of the control socket only");
        fabric_ctl ctl = ctl_message(FABRIC_CTL_STATE_REQUEST);
        ctl.link = next_question_++;
        if (!nic.socket.send(ctl)) return refusal("NIC '" + name + "' does not read what the manager says");
        questions_[ctl.link] = {client, key, monotonic_ns() + kStateWait};
        clients_[client].waits = true;
        return std::nullopt;
    }
    return refusal("no NIC '" + name + "' on this host (there are: " + (known.empty() ? "none" : known) + ")");
}

// False: the answer is no answer.
bool Manager::take_state(uint64_t nic, uint64_t number, const std::vector<Fd> &fds) {
    auto q = questions_.find(number);
    if (q == questions_.end() || q->second.nic != nic) return true;  // came too late
    // The document stays in the NIC's hands: it is read once, with read(2), and may be no JSON at all.
    struct stat st = {};
    // A memfd, and no file that reading could wait for.
    if (fds.size() != 1 || fcntl(fds[0].get(), F_GET_SEALS) < 0 || fstat(fds[0].get(), &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < 2 || st.st_size > FABRIC_MAX_STATE) {
        end_question(q, refusal("the NIC's answer is malformed"));
        return false;
    }
    std::string text(static_cast<size_t>(st.st_size), '\0');
    ssize_t n = pread(fds[0].get(), text.data(), text.size(), 0);
    bool flat = true;
    auto level = [&](int depth, json::parse_event_t, json &) { return flat = flat && depth <= kMostNested; };
    json state = n == st.st_size ? json::parse(text, level, false) : json();
    if (!flat) {
        end_question(q, refusal("the NIC's answer is nested deeper than " + std::to_string(kMostNested) + " levels"));
        return false;
    }
    if (!state.is_object()) {
        end_question(q, refusal("the NIC's answer is no JSON object"));
        return false;
    }
    end_question(q, json{{"ok", true}, {"nic", name_of(nics_[nic].info)}, {"state", std::move(state)}}.dump());
    return true;
}

void Manager::end_question(std::map<uint64_t, Question>::iterator q, const std::string &text) {
    uint64_t client = q->second.client;
    questions_.erase(q);
    if (!clients_.count(client)) return;
    answer(client, text);
    if (clients_.count(client)) run_commands(client);
}

void Manager::give_up_questions(uint64_t now) {
    // A further question may be asked while one ends: start again after each.
    for (auto q = questions_.begin(); q != questions_.end();) {
        if (now < q->second.due) {
            ++q;
            continue;
        }
        end_question(q, refusal("the NIC did not tell its state within two seconds"));
        q = questions_.begin();
    }
}

void Manager::end_questions_to(uint64_t nic) {
    for (auto q = questions_.begin(); q != questions_.end();) {
        if (q->second.nic != nic) {
            ++q;
            continue;
        }
        end_question(q, refusal("the NIC left the fabric"));
        q = questions_.begin();
    }
}

}  // namespace fabric
