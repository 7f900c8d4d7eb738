// SPDX-License-Identifier: GPL-2.0-or-later
// Deaths at random points in traffic: of a NIC's owner (a process of its own) and of sanfabricd. The survivor's
// operations end with the documented error, its descriptors and mappings do not grow, and the next peer can join.
//
// The program starts itself again as that peer: kill_test --peer SOCKET IP.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "sim/device_board.h"

using namespace sim;

namespace {

std::string g_sanfabricd;

pid_t spawn(const std::vector<std::string> &argv) {
    std::vector<char *> args;
    for (const std::string &a : argv) args.push_back(const_cast<char *>(a.c_str()));
    args.push_back(nullptr);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execv(args[0], args.data());
        _exit(127);
    }
    return pid;
}

void kill_and_reap(pid_t pid) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
}

size_t open_descriptors() {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

size_t mapped_lines() {
    std::ifstream in("/proc/self/maps");
    return static_cast<size_t>(std::count(std::istreambuf_iterator<char>(in), {}, '\n'));
}

size_t threads() {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

constexpr uint32_t kBuffer = 1 << 20;

// Accepts connections for ever and exposes its buffer; the key and address travel as the private data of ACCEPT.
int peer(const std::string &socket, const std::string &ip) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    DeviceBoard board(socket, ip, 16 << 20);
    Guest g(board);
    board.run([&] { return board.link_up(); });
    g.start();
    GuestCq cq = g.create_cq();
    uint64_t buffer = g.alloc(kBuffer), data = g.alloc(4096);
    snic_cmd_listen l = {};
    l.port = 7000;
    l.backlog = 16;
    l.eqn = g.eqn;
    g.command(SNIC_CMD_LISTEN, l);
    for (;;) {
        snic_eqe e;
        if (!g.wait_event(SNIC_EV_CONN_REQUEST, e)) continue;
        GuestQp qp = g.create_qp(cq, cq, 16, 64);
        uint64_t key = g.register_mr(buffer, kBuffer, SNIC_ACCESS_ALL, qp.qpn);
        std::memcpy(board.ram(data), &key, 8);
        std::memcpy(board.ram(data) + 8, &buffer, 8);
        snic_cmd_reply r = {};
        r.request = e.request;
        r.qpn = qp.qpn;
        r.private_data = data;
        r.private_len = 16;
        g.command(SNIC_CMD_ACCEPT, r);
    }
}

struct Survivor {
    DeviceBoard board;
    Guest g;
    GuestCq cq;
    GuestQp qp;
    uint64_t buffer = 0, key = 0, data = 0, remote_key = 0, remote_va = 0, params = 0;

    explicit Survivor(const std::string &socket) : board(socket, "10.9.0.1", 32 << 20), g(board) {
        board.run([&] { return board.link_up(); });
        g.start();
        cq = g.create_cq();
        buffer = g.alloc(kBuffer);
        data = g.alloc(4096);
        key = g.register_mr(buffer, kBuffer, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
        qp = g.create_qp(cq, cq, 32, 64);  // its memory serves all later QPs, too
        params = g.alloc(4096);
    }
    // A new QP in the same memory.
    void renew_qp() {
        ASSERT_EQ(g.handle_command(SNIC_CMD_DESTROY_QP, qp.qpn).status, SNIC_OK);
        qp.sq_pi = qp.rq_pi = 0;
        *board.at<snic_qp_record>(qp.record) = {};
        snic_qp_params p = {};
        p.pd = g.pd;
        p.send_cqn = p.recv_cqn = cq.cqn;
        p.eqn = g.eqn;
        p.sq_entries = p.rq_entries = 32;
        p.sq_stride = p.rq_stride = 64;
        p.rnr_retry = p.retry_count = 7;
        p.record = qp.record;
        p.sq_pages = {qp.sq, 0, 12, 0, 0};
        p.rq_pages = {qp.rq, 0, 12, 0, 0};
        *board.at<snic_qp_params>(params) = p;
        snic_cmd_create_qp c = {};
        c.params = params;
        qp.qpn = static_cast<uint32_t>(g.command(SNIC_CMD_CREATE_QP, c).result[0]);
        ASSERT_NE(qp.qpn, 0u);
    }
    bool connect_once(uint32_t ip) {
        g.poll_events();
        g.events.clear();
        snic_cmd_connect c = {};
        c.qpn = qp.qpn;
        c.dst_ip = ip;
        c.dst_port = 7000;
        c.src_port = 1;
        c.timeout_ms = 2000;
        if (g.command(SNIC_CMD_CONNECT, c).status != SNIC_OK) return false;
        snic_eqe e;
        bool failed = false;
        if (!g.wait_event(SNIC_EV_CONN_ESTABLISHED, e, [&] { return failed = g.take_event(SNIC_EV_CONN_FAILED, e); }) ||
            failed)
            return false;
        snic_cmd_get_request r = {};
        r.request = e.request;
        r.out = data;
        r.out_len = 16;
        if (g.command(SNIC_CMD_GET_REQUEST, r).status != SNIC_OK) return false;
        std::memcpy(&remote_key, board.ram(data), 8);
        std::memcpy(&remote_va, board.ram(data) + 8, 8);
        return true;
    }
    void post(uint64_t i, uint8_t opcode) {
        uint32_t length = 1u << (3 + i % 17);
        g.post_send(qp, opcode, i, {{buffer, key, length}}, remote_va, remote_key);
    }
};

struct Kill : ::testing::Test {
    std::string socket = "/tmp/sanlab-kill-" + std::to_string(getpid()) + ".sock",
                self = std::filesystem::read_symlink("/proc/self/exe");
    std::mt19937 rng{11};
    pid_t manager = -1, other = -1;
    void start_manager() {
        manager = spawn({g_sanfabricd, "--quiet", socket});
        for (int i = 0; i < 500 && access((socket + ".ctl").c_str(), F_OK) != 0; i++) usleep(2000);
    }
    void start_peer() { other = spawn({self, "--peer", socket, "10.9.0.2"}); }
    void TearDown() override {
        if (other > 0) kill_and_reap(other);
        if (manager > 0) kill_and_reap(manager);
        unlink(socket.c_str());
        unlink((socket + ".ctl").c_str());
    }
};

TEST_F(Kill, OfThePeersOwnerEndsOperationsAndLeaksNothing) {
    start_manager();
    Survivor s(socket);
    size_t descriptors = 0, mappings = 0, tasks = 0;
    for (int round = 0; round < 150; round++) {
        start_peer();
        ASSERT_TRUE(s.board.run([&] { return s.connect_once(0x0A090002); })) << "round " << round;
        uint64_t posted = 0, done = 0;
        snic_cqe c;
        auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(rng() % 4000);
        while (std::chrono::steady_clock::now() < end) {
            if (posted - done < 24) s.post(posted++, rng() % 2 ? SNIC_WR_RDMA_WRITE : SNIC_WR_RDMA_READ);
            if (s.g.poll(s.cq, c)) {
                done++;
                ASSERT_EQ(c.status, SNIC_WC_SUCCESS);
            }
        }
        kill_and_reap(other);
        other = -1;
        bool first = true;
        while (done < posted) {
            ASSERT_TRUE(s.g.wait(s.cq, c)) << "an operation never ended";
            done++;
            if (c.status == SNIC_WC_SUCCESS) continue;
            // The oldest that was in flight; what had not begun is flushed.
            ASSERT_TRUE(c.status == SNIC_WC_WR_FLUSH_ERR || (first && c.status == SNIC_WC_RETRY_EXC_ERR))
                << unsigned{c.status};
            first = false;
        }
        snic_eqe e;
        ASSERT_TRUE(s.g.wait_event(SNIC_EV_DISCONNECTED, e)) << "round " << round;
        ASSERT_EQ(e.reason, SNIC_REASON_LINK_DOWN);
        s.renew_qp();
        // The first rounds warm things up; after that nothing may grow.
        if (round == 20) descriptors = open_descriptors(), mappings = mapped_lines(), tasks = threads();
    }
    EXPECT_LE(open_descriptors(), descriptors + 2);
    EXPECT_LE(mapped_lines(), mappings + 20);
    EXPECT_EQ(threads(), tasks);
}

TEST_F(Kill, OfTheManagerLetsTrafficGoOn) {
    start_manager();
    Survivor s(socket);
    start_peer();
    ASSERT_TRUE(s.board.run([&] { return s.connect_once(0x0A090002); }));
    size_t descriptors = 0;
    uint64_t posted = 0, done = 0;
    snic_cqe c;
    for (int round = 0; round < 50; round++) {
        auto traffic = [&](unsigned us) {
            auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
            while (std::chrono::steady_clock::now() < end || done < posted) {
                if (std::chrono::steady_clock::now() < end && posted - done < 24) s.post(posted++, SNIC_WR_RDMA_WRITE);
                if (done == posted) continue;
                if (!s.g.wait(s.cq, c)) {
                    std::string state(1 << 20, 0);
                    state.resize(snic_device_state_json(s.board.device(), state.data(), state.size()));
                    ADD_FAILURE() << posted - done << " operations never ended: " << state;
                    return false;
                }
                done++;
                if (c.status != SNIC_WC_SUCCESS) {
                    ADD_FAILURE() << "status " << unsigned{c.status};
                    return false;
                }
            }
            return true;
        };
        ASSERT_TRUE(traffic(rng() % 3000));
        kill_and_reap(manager);
        ASSERT_TRUE(traffic(rng() % 3000)) << "round " << round << ": traffic without a manager";
        start_manager();
        ASSERT_TRUE(traffic(rng() % 3000));
        if (round == 10) descriptors = open_descriptors();
    }
    EXPECT_LE(open_descriptors(), descriptors + 2);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 4 && std::string(argv[1]) == "--peer") return peer(argv[2], argv[3]);
    ::testing::InitGoogleTest(&argc, argv);
    g_sanfabricd =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "emulator/fabric/sanfabricd")
            .string();
    return RUN_ALL_TESTS();
}
