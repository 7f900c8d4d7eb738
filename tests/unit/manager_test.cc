// SPDX-License-Identifier: GPL-2.0-or-later
// The manager's control socket as its clients see it, with NICs that answer, and with some that do not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "manager.h"
#include "sim/device_board.h"

using namespace sim;
using nlohmann::json;

namespace {

// A client that sends lines and reads lines, serving the manager in between: one thread, no waiting for the clock.
class Client {
  public:
    Client(fabric::Manager &manager, const std::string &path) : manager_(manager), fd_(fabric::connect_unix(path + ".ctl", nullptr)) {}
    void send(const std::string &line) {
        std::string text = line + '\n';
        ASSERT_EQ(::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    }
    std::optional<json> receive() {
        for (int turn = 0; turn < 2000; turn++) {
            if (size_t end = in_.find('\n'); end != std::string::npos) {
                json answer = json::parse(in_.substr(0, end), nullptr, false);
                in_.erase(0, end + 1);
                return answer;
            }
            manager_.serve(5);
            char buf[65536];
            ssize_t n = recv(fd_.get(), buf, sizeof buf, MSG_DONTWAIT);
            if (n == 0) return std::nullopt;
            if (n > 0) in_.append(buf, static_cast<size_t>(n));
        }
        return std::nullopt;
    }
    json ask(const std::string &line) {
        send(line);
        return receive().value_or(json("closed"));
    }

  private:
    fabric::Manager &manager_;
    fabric::Fd fd_;
    std::string in_;
};

struct ManagerTest : ::testing::Test {
    std::string path = "/tmp/sanlab-manager-test-" + std::to_string(getpid()) + ".sock", error;
    std::unique_ptr<fabric::Manager> manager = fabric::Manager::create(path, &error);

    void serve_until(const std::function<bool()> &done) {
        bool ok = done();
        for (int turn = 0; turn < 4000 && !ok; turn++) {
            manager->serve(5);
            ok = done();
        }
        ASSERT_TRUE(ok);
    }
    size_t nics() { return json::parse(manager->status_json())["nics"].size(); }
    // Somebody who says HELLO as a NIC does, and then whatever the test wants.
    fabric::CtlSocket fake_nic(const std::string &name) {
        fabric::CtlSocket nic(fabric::connect_unix(path, &error));
        fabric_ctl hello = fabric::ctl_message(FABRIC_CTL_HELLO);
        hello.nic.guid = 77;
        hello.nic.ip = 0x0A000009;
        std::strncpy(hello.nic.name, name.c_str(), sizeof hello.nic.name - 1);
        EXPECT_TRUE(nic.send(hello));
        serve_until([&] { return nics() == 1; });
        return nic;
    }
    // The next message of the given type that the manager sends it.
    fabric_ctl next(fabric::CtlSocket &nic, uint16_t type) {
        fabric_ctl ctl = {};
        std::vector<fabric::Fd> fds;
        serve_until([&] { return nic.receive(ctl, fds) == fabric::CtlSocket::Result::message && ctl.type == type; });
        return ctl;
    }
    static fabric_ctl state_answer(uint64_t number) {
        fabric_ctl ctl = fabric::ctl_message(FABRIC_CTL_STATE);
        ctl.link = number;
        return ctl;
    }
    static fabric::Fd memory_with(const std::string &text) {
        fabric::Fd fd = fabric::make_memfd("test", text.size());
        EXPECT_EQ(pwrite(fd.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
        return fd;
    }
};

TEST_F(ManagerTest, StateOfANicNamesItsObjects) {
    DeviceBoard board(path, "10.0.0.1", 8 << 20);
    serve_until([&] { return board.link_up(); });
    Guest guest(board);
    guest.start();
    GuestCq cq = guest.create_cq();
    GuestQp qp = guest.create_qp(cq, cq);
    uint64_t key = guest.register_mr(guest.alloc(8192), 8192, SNIC_ACCESS_LOCAL_READ);
    Client client(*manager, path);
    json answer = client.ask("{\"cmd\":\"state\",\"nic\":\"nic-10.0.0.1\"}");
    ASSERT_EQ(answer["ok"], true) << answer;
    EXPECT_EQ(answer["nic"], "nic-10.0.0.1");
    const json &state = answer["state"];
    EXPECT_EQ(state["link"], "UP");
    EXPECT_EQ(state["count"]["mr"], 1);
    char text[24];
    std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(key));
    EXPECT_EQ(state["mr"][0]["key"], text);
    EXPECT_EQ(state["mr"][0]["mrlen"], 8192);
    EXPECT_EQ(state["qp"][0]["lqpn"], qp.qpn);
    EXPECT_EQ(state["qp"][0]["state"], "INIT");
}

TEST_F(ManagerTest, StateOfANicThatIsNotThereNamesThoseThatAre) {
    Client client(*manager, path);
    EXPECT_EQ(client.ask("{\"cmd\":\"state\",\"nic\":\"x\"}")["error"], "no NIC 'x' on this host (there are: none)");
    fabric::CtlSocket nic = fake_nic("y");
    EXPECT_EQ(client.ask("{\"cmd\":\"state\",\"nic\":\"x\"}")["error"], "no NIC 'x' on this host (there are: y)");
    EXPECT_NE(client.ask("{\"cmd\":\"state\"}")["error"].get<std::string>().find("\"nic\""), std::string::npos);
    EXPECT_NE(client.ask("{\"cmd\":\"state\",\"nic\":7}")["error"].get<std::string>().find("\"nic\""), std::string::npos);
}

TEST_F(ManagerTest, CommandsAfterAStateAreAnsweredAfterIt) {
    fabric::CtlSocket nic = fake_nic("slow");
    Client client(*manager, path);
    client.send("{\"cmd\":\"state\",\"nic\":\"slow\"}\n{\"cmd\":\"reset-faults\"}");
    fabric_ctl question = next(nic, FABRIC_CTL_STATE_REQUEST);
    Client other(*manager, path);
    EXPECT_EQ(other.ask("{\"cmd\":\"status\"}")["ok"], true) << "one client's question held up another";
    fabric::Fd text = memory_with("{\"a\":1}");
    ASSERT_TRUE(nic.send(state_answer(question.link), {text.get()}));
    EXPECT_EQ(client.receive().value()["state"]["a"], 1);
    EXPECT_EQ(client.receive().value(), json({{"ok", true}}));
}

TEST_F(ManagerTest, NicThatDoesNotAnswerIsSaidSo) {
    fabric::CtlSocket nic = fake_nic("mute");
    Client client(*manager, path);
    EXPECT_NE(client.ask("{\"cmd\":\"state\",\"nic\":\"mute\"}")["error"].get<std::string>().find("within two seconds"), std::string::npos);
    EXPECT_EQ(nics(), 1u);
}

TEST_F(ManagerTest, NicThatLeavesEndsTheQuestionsToIt) {
    fabric::CtlSocket nic = fake_nic("short");
    Client client(*manager, path);
    client.send("{\"cmd\":\"state\",\"nic\":\"short\"}");
    next(nic, FABRIC_CTL_STATE_REQUEST);
    nic = fabric::CtlSocket();
    EXPECT_EQ(client.receive().value()["error"], "the NIC left the fabric");
}

TEST_F(ManagerTest, MalformedStateIsRefusedAndItsSenderDropped) {
    auto answer_with = [&](const std::vector<std::string> &documents) {
        fabric::CtlSocket nic = fake_nic("bad");
        Client client(*manager, path);
        client.send("{\"cmd\":\"state\",\"nic\":\"bad\"}");
        fabric_ctl question = next(nic, FABRIC_CTL_STATE_REQUEST);
        std::vector<fabric::Fd> memory;
        std::vector<int> fds;
        for (const std::string &d : documents) memory.push_back(memory_with(d)), fds.push_back(memory.back().get());
        EXPECT_TRUE(nic.send(state_answer(question.link), fds));
        std::string text = client.receive().value()["error"];
        EXPECT_EQ(nics(), 0u);
        return text;
    };
    EXPECT_EQ(answer_with({}), "the NIC's answer is malformed");
    EXPECT_EQ(answer_with({"{}", "{}"}), "the NIC's answer is malformed");
    EXPECT_EQ(answer_with({"{\"a\":"}), "the NIC's answer is no JSON object");
    EXPECT_EQ(answer_with({"[1,2]"}), "the NIC's answer is no JSON object");
    EXPECT_EQ(answer_with({std::string(FABRIC_MAX_STATE + 1, ' ')}), "the NIC's answer is malformed");
    std::string deep = "{\"a\":" + std::string(1 << 20, '[') + std::string(1 << 20, ']') + '}';
    EXPECT_EQ(answer_with({deep}), "the NIC's answer is nested deeper than 64 levels");
}

TEST_F(ManagerTest, StateNobodyAskedForChangesNothing) {
    fabric::CtlSocket nic = fake_nic("eager");
    fabric::Fd text = memory_with("{}");
    ASSERT_TRUE(nic.send(state_answer(1), {text.get()}));
    Client client(*manager, path);
    EXPECT_EQ(client.ask("{\"cmd\":\"status\"}")["nics"].size(), 1u);
}

TEST_F(ManagerTest, IdleClientsDoNotKeepOthersOut) {
    std::vector<std::unique_ptr<Client>> idle;
    for (int i = 0; i < 100; i++) {
        idle.push_back(std::make_unique<Client>(*manager, path));
        manager->serve(0);
    }
    Client client(*manager, path);
    EXPECT_EQ(client.ask("{\"cmd\":\"status\"}")["ok"], true);
    EXPECT_EQ(idle.front()->receive(), std::nullopt) << "the client that was silent for longest is still connected";
    EXPECT_EQ(idle.back()->ask("{\"cmd\":\"status\"}")["ok"], true);
}

TEST_F(ManagerTest, DocumentLargerThanASocketBufferArrivesWhole) {
    fabric::CtlSocket nic = fake_nic("large");
    Client client(*manager, path);
    client.send("{\"cmd\":\"state\",\"nic\":\"large\"}");
    fabric_ctl question = next(nic, FABRIC_CTL_STATE_REQUEST);
    fabric::Fd text = memory_with(json{{"text", std::string(8 << 20, 'x')}}.dump());
    ASSERT_TRUE(nic.send(state_answer(question.link), {text.get()}));
    EXPECT_EQ(client.receive().value()["state"]["text"].get<std::string>().size(), size_t{8} << 20);
    EXPECT_EQ(client.ask("{\"cmd\":\"status\"}")["ok"], true);
}

}  // namespace
