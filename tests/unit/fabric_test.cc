// SPDX-License-Identifier: GPL-2.0-or-later
// Real devices with their engine threads, joined by a real manager: data on both paths, deaths, restarts, faults.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <mutex>
#include <thread>

#include "manager.h"
#include "port.h"
#include "ring.h"
#include "sim/device_board.h"

using namespace sim;

namespace {

class ManagerThread {
  public:
    explicit ManagerThread(const std::string &path) {
        std::string error;
        manager = fabric::Manager::create(path, &error);
        if (!manager) throw std::runtime_error(error);
        thread_ = std::thread([this] {
            while (!stop_) {
                {
                    std::lock_guard lock(mutex_);
                    manager->serve(0);
                }
                std::this_thread::sleep_for(std::chrono::microseconds(200));
            }
        });
    }
    ~ManagerThread() {
        stop_ = true;
        thread_.join();
    }
    // The manager belongs to one thread at a time.
    std::string status() {
        std::lock_guard lock(mutex_);
        return manager->status_json();
    }
    template <typename F>
    auto with(F &&f) {
        std::lock_guard lock(mutex_);
        return f(*manager);
    }
    std::string control(const std::string &line) {
        std::lock_guard lock(mutex_);
        return manager->control(line);
    }

  private:
    std::unique_ptr<fabric::Manager> manager;
    std::mutex mutex_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

std::string socket_path() { return "/tmp/sanlab-test-" + std::to_string(getpid()) + ".sock"; }

struct FabricPair : ::testing::TestWithParam<bool> {
    std::string path = socket_path();
    std::unique_ptr<ManagerThread> manager = std::make_unique<ManagerThread>(path);
    DeviceBoard ba{path, "10.0.0.1", 32 << 20, GetParam()}, bb{path, "10.0.0.2", 32 << 20, GetParam()};
    Guest a{ba}, b{bb};
    GuestCq acq, bcq;
    GuestQp qa, qb;
    static constexpr uint32_t kBuf = 4 << 20;
    uint64_t abuf = 0, bbuf = 0, akey = 0, bkey = 0;

    void SetUp() override {
        ASSERT_TRUE(ba.run([&] { return ba.link_up() && bb.link_up(); }));
        a.start();
        b.start();
        acq = a.create_cq();
        bcq = b.create_cq();
        abuf = a.alloc(kBuf);
        bbuf = b.alloc(kBuf);
        akey = a.register_mr(abuf, kBuf, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
        for (uint32_t i = 0; i < kBuf; i += 4) *ba.at<uint32_t>(abuf + i) = i * 2654435761u;
        join();
    }
    void join(uint16_t port = 7000) {
        qa = a.create_qp(acq, acq);
        qb = b.create_qp(bcq, bcq);
        ASSERT_TRUE(connect(a, qa, b, qb, port));
        bkey = b.register_mr(bbuf, kBuf, SNIC_ACCESS_ALL, qb.qpn);
    }
    void write_all() {
        std::memset(bb.at<char>(bbuf), 0, kBuf);
        a.post_send(qa, SNIC_WR_RDMA_WRITE, 1, {{abuf, akey, kBuf}}, bbuf, bkey);
        snic_cqe c;
        ASSERT_TRUE(a.wait(acq, c));
        ASSERT_EQ(c.status, SNIC_WC_SUCCESS);
        ASSERT_EQ(std::memcmp(ba.at<char>(abuf), bb.at<char>(bbuf), kBuf), 0);
    }
};

TEST_P(FabricPair, WriteAndReadMoveEveryByte) {
    write_all();
    std::memset(ba.at<char>(abuf), 0, kBuf);
    a.post_send(qa, SNIC_WR_RDMA_READ, 2, {{abuf, akey, kBuf}}, bbuf, bkey);
    snic_cqe c;
    ASSERT_TRUE(a.wait(acq, c));
    ASSERT_EQ(c.status, SNIC_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(ba.at<char>(abuf), bb.at<char>(bbuf), kBuf), 0);
    EXPECT_EQ(*ba.at<uint32_t>(abuf + 400), 400 * 2654435761u);
}

TEST_P(FabricPair, LostDuplicatedReorderedAndDamagedRecordsChangeNothing) {
    ASSERT_EQ(manager->control("{\"cmd\":\"faults\",\"loss_ppm\":20000,\"duplicate_ppm\":20000,\"corrupt_ppm\":20000,"
                               "\"reorder_ppm\":20000,\"seed\":7}"),
              "{\"ok\":true}");
    for (int i = 0; i < 3; i++) write_all();
    std::string state(65536, 0);
    state.resize(snic_device_state_json(ba.device(), state.data(), state.size()));
    EXPECT_NE(state.find("\"retransmits\""), std::string::npos);
}

// A NIC that is unplugged; one whose owner is killed: kill_test.
TEST_P(FabricPair, PeerThatLeavesEndsOperationsAndANewOneCanJoin) {
    for (uint64_t i = 0; i < 8; i++) a.post_send(qa, SNIC_WR_RDMA_WRITE, i, {{abuf, akey, kBuf}}, bbuf, bkey);
    bb.destroy_device();
    snic_cqe c;
    int errors = 0;
    for (int i = 0; i < 8; i++) {
        ASSERT_TRUE(a.wait(acq, c));
        if (c.status == SNIC_WC_SUCCESS) continue;
        EXPECT_EQ(c.status, SNIC_WC_WR_FLUSH_ERR);
        errors++;
    }
    EXPECT_GT(errors, 0);
    snic_eqe e;
    ASSERT_TRUE(a.wait_event(SNIC_EV_DISCONNECTED, e));
    EXPECT_EQ(e.reason, SNIC_REASON_PEER_CLOSED);
    DeviceBoard bc{path, "10.0.0.2", 8 << 20, GetParam()};
    Guest g{bc};
    ASSERT_TRUE(bc.run([&] { return bc.link_up(); }));
    g.start();
    GuestCq cq = g.create_cq();
    GuestQp q1 = a.create_qp(acq, acq), q2 = g.create_qp(cq, cq);
    // The link to the newcomer needs a moment more than its own link state.
    EXPECT_TRUE(ba.run([&] { return connect(a, q1, g, q2, 7100); }));
}

TEST_P(FabricPair, DataFlowsWithoutTheManagerAndWithANewOne) {
    manager.reset();
    write_all();
    manager = std::make_unique<ManagerThread>(path);
    ASSERT_TRUE(ba.run([&] {
        return manager->status().find("\"10.0.0.1\"") != std::string::npos &&
               manager->status().find("\"10.0.0.2\"") != std::string::npos;
    }));
    write_all();
    std::this_thread::sleep_for(
        std::chrono::milliseconds(3500));  // past the time at which unconfirmed links are dropped
    write_all();
}

INSTANTIATE_TEST_SUITE_P(Paths, FabricPair, ::testing::Bool(),
                         [](const auto &info) { return std::string(info.param ? "Direct" : "Payload"); });

// --- trunks: two managers on loopback, a NIC at each ----------------------------------------------------------------

struct TrunkPair : ::testing::Test {
    std::string path = socket_path();
    std::unique_ptr<ManagerThread> left = std::make_unique<ManagerThread>(path + ".l"),
                                   right = std::make_unique<ManagerThread>(path + ".r");
    std::string address = "127.0.0.1:0";
    void trunk(ManagerThread &m, bool listens, const std::string &secret) {
        m.with([&](fabric::Manager &manager) {
            std::string error;
            EXPECT_TRUE(manager.set_secret(secret, &error)) << error;
            EXPECT_TRUE(listens ? manager.listen_trunk(address, &error) : manager.join_trunk(address, &error)) << error;
            if (listens) address = manager.trunk_address();
        });
    }
    static bool within(double seconds, const std::function<bool()> &done) {
        auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
        while (!done())
            if (std::chrono::steady_clock::now() > end) return false;
            else std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return true;
    }
    bool up(ManagerThread &m) { return m.status().find("\"state\":\"up\"") != std::string::npos; }
};

TEST_F(TrunkPair, CarriesVerifiedTrafficBothWaysAndSurvivesAReconnect) {
    trunk(*left, true, "a secret of sixteen bytes");
    trunk(*right, false, "a secret of sixteen bytes");
    ASSERT_TRUE(within(5, [&] { return up(*left) && up(*right); }));
    DeviceBoard ba{path + ".l", "10.0.0.1", 16 << 20}, bb{path + ".r", "10.0.0.2", 16 << 20};
    Guest a{ba}, b{bb};
    ASSERT_TRUE(ba.run([&] { return ba.link_up() && bb.link_up(); }));
    a.start();
    b.start();
    GuestCq acq = a.create_cq(), bcq = b.create_cq();
    constexpr uint32_t kBuf = 2 << 20;
    uint64_t abuf = a.alloc(kBuf), bbuf = b.alloc(kBuf);
    uint64_t akey = a.register_mr(abuf, kBuf, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
    for (uint32_t i = 0; i < kBuf; i += 4) *ba.at<uint32_t>(abuf + i) = i * 2654435761u;
    for (int round = 0; round < 2; round++) {
        GuestQp qa = a.create_qp(acq, acq), qb = b.create_qp(bcq, bcq);
        ASSERT_TRUE(ba.run([&] { return connect(a, qa, b, qb, static_cast<uint16_t>(7000 + round)); }))
            << "round " << round;
        uint64_t bkey = b.register_mr(bbuf, kBuf, SNIC_ACCESS_ALL, qb.qpn);
        std::memset(bb.ram(bbuf), 0, kBuf);
        snic_cqe c;
        a.post_send(qa, SNIC_WR_RDMA_WRITE, 1, {{abuf, akey, kBuf}}, bbuf, bkey);
        ASSERT_TRUE(a.wait(acq, c));
        ASSERT_EQ(c.status, SNIC_WC_SUCCESS);
        ASSERT_EQ(std::memcmp(ba.ram(abuf), bb.ram(bbuf), kBuf), 0);
        a.post_send(qa, SNIC_WR_RDMA_READ, 2, {{abuf, akey, kBuf}}, bbuf, bkey);
        ASSERT_TRUE(a.wait(acq, c));
        ASSERT_EQ(c.status, SNIC_WC_SUCCESS);
        if (round) break;
        // The other manager dies: the connection ends with the documented event; a new manager joins again.
        right.reset();
        snic_eqe e;
        ASSERT_TRUE(a.wait_event(SNIC_EV_DISCONNECTED, e));
        EXPECT_EQ(e.reason, SNIC_REASON_LINK_DOWN);
        right = std::make_unique<ManagerThread>(path + ".r");
        trunk(*right, false, "a secret of sixteen bytes");
        ASSERT_TRUE(within(10, [&] { return up(*right) && right->status().find("10.0.0.2") != std::string::npos; }));
    }
}

TEST_F(TrunkPair, RefusesAPeerWithAnotherSecret) {
    trunk(*left, true, "a secret of sixteen bytes");
    trunk(*right, false, "another secret, as long");
    ASSERT_TRUE(within(20, [&] {
        return right->status().find("the shared secrets differ") != std::string::npos ||
               right->status().find("is the secret the same?") != std::string::npos;
    })) << right->status();
    EXPECT_FALSE(up(*left) || up(*right));
}

TEST_F(TrunkPair, RefusesItselfAndNonsense) {
    trunk(*left, true, "a secret of sixteen bytes");
    left->with([&](fabric::Manager &m) {
        std::string error;
        EXPECT_TRUE(m.join_trunk(address, &error));
        EXPECT_FALSE(m.join_trunk("127.0.0.1:0", &error));
        EXPECT_NE(error.find("has port 0"), std::string::npos);
        EXPECT_FALSE(m.join_trunk("127.0.0.1:", &error));
        EXPECT_FALSE(m.join_trunk("nowhere", &error));
        EXPECT_NE(error.find("'nowhere' is not of the form"), std::string::npos);
        EXPECT_FALSE(right->with([&](fabric::Manager &r) { return r.set_secret("short", &error); }));
        EXPECT_NE(error.find("at least 16"), std::string::npos);
    });
    ASSERT_TRUE(within(20, [&] { return left->status().find("a manager does not join itself") != std::string::npos; }))
        << left->status();
    EXPECT_FALSE(up(*left));
}

// A port, and the test as the manager that it has just said HELLO to.
struct PortTest : ::testing::Test {
    std::string path = socket_path() + ".port", error, said;
    fabric::Fd listener = fabric::listen_unix(path, &error);
    World world{1};
    Machine &machine = world.add();
    fabric::Port port{config(), [this](int, const std::string &text) { said += text + '\n'; }};
    fabric::CtlSocket manager;
    fabric_ctl hello = {};

    void SetUp() override {
        ASSERT_TRUE(listener) << error;
        port.poll_control(machine.nic, 1);
        manager = fabric::CtlSocket(fabric::Fd(accept(listener.get(), nullptr, nullptr)));
        std::vector<fabric::Fd> fds;
        ASSERT_EQ(manager.receive(hello, fds), fabric::CtlSocket::Result::message);
        ASSERT_EQ(hello.type, FABRIC_CTL_HELLO);
    }
    void TearDown() override { unlink(path.c_str()); }
    fabric::PortConfig config() const {
        fabric::PortConfig c;
        c.path = path;
        c.name = "one";
        return c;
    }
};

TEST_F(PortTest, SaysThatAManagerOfAnotherVersionRefusesIt) {
    fabric_ctl refusal = hello;
    refusal.version = FABRIC_VERSION + 1;
    refusal.type = FABRIC_CTL_WELCOME;
    refusal.status = FABRIC_CTL_BAD_VERSION;
    ASSERT_TRUE(manager.send(refusal));
    port.poll_control(machine.nic, 2);
    EXPECT_NE(said.find("another version"), std::string::npos) << said;
    EXPECT_FALSE(port.joined());
}

TEST_F(PortTest, IsNotKeptAwakeByAPeerThatIsGone) {
    fabric::Fd memory = fabric::make_memfd("link", FABRIC_LINK_BYTES), wake(eventfd(0, EFD_NONBLOCK));
    auto tell = [&](uint16_t type, const std::vector<int> &descriptors) {
        fabric_ctl out = fabric::ctl_message(type);
        out.link = 7;
        out.nic.guid = 8;
        EXPECT_TRUE(manager.send(out, descriptors));
        port.poll_control(machine.nic, 2);
    };
    auto readable = [&] {
        pollfd p = {port.wait_fd(), POLLIN, 0};
        return poll(&p, 1, 0) == 1;
    };
    tell(FABRIC_CTL_WELCOME, {});
    tell(FABRIC_CTL_LINK, {memory.get(), wake.get(), wake.get()});
    EXPECT_FALSE(readable());
    ASSERT_EQ(eventfd_write(wake.get(), 1), 0);
    EXPECT_TRUE(readable());
    port.woken();
    EXPECT_FALSE(readable());
    tell(FABRIC_CTL_PEER_DOWN, {});
    ASSERT_EQ(eventfd_write(wake.get(), 1), 0);
    EXPECT_FALSE(readable());
}

TEST(Device, RefusesBadConfigurationWithOneLine) {
    snic_device_ops ops = {};
    ops.map = [](void *, uint64_t, size_t *, bool) -> void * { return nullptr; };
    ops.message = [](void *, unsigned) {};
    ops.line = [](void *, bool) {};
    auto error_of = [&](snic_device_config c) {
        char err[256] = "";
        EXPECT_EQ(snic_device_create(&c, nullptr, 0, &ops, nullptr, err, sizeof err), nullptr);
        return std::string(err);
    };
    snic_device_config c = {};
    c.ip = "10.0.0.999";
    EXPECT_EQ(error_of(c), "ip '10.0.0.999' is not an IPv4 address like 10.0.0.1");
    c.ip = "10.0.0.1";
    c.vectors = 33;
    EXPECT_EQ(error_of(c), "vectors 33 is not in 1..32");
    c.vectors = 0;
    c.prefix = 32;
    EXPECT_EQ(error_of(c), "prefix 32 is not in 1..31");
}

TEST(Device, LineInterruptFollowsCauseAndMask) {
    DeviceBoard board{"", "10.0.0.1", 8 << 20, true, false};
    Guest g{board};
    g.start();
    board.write_register(SNIC_REG_IRQ_MASK, 1, 4);
    EXPECT_TRUE(board.line_level) << "admin completions have raised cause bit 0";
    board.write_register(SNIC_REG_IRQ_CAUSE, 1, 4);
    EXPECT_FALSE(board.line_level);
    EXPECT_EQ(snic_device_mmio_read(board.device(), 0, SNIC_REG_IRQ_CAUSE, 4) & 1, 0u);
}

TEST(Device, OddAccessesReadZeroAndWriteNothing) {
    DeviceBoard board{"", "10.0.0.1", 8 << 20};
    for (unsigned size : {1u, 2u, 8u}) EXPECT_EQ(snic_device_mmio_read(board.device(), 0, 2, size), 0u);
    EXPECT_EQ(snic_device_mmio_read(board.device(), 0, SNIC_REG_AQ_DOORBELL, 4), 0u);
    EXPECT_EQ(snic_device_mmio_read(board.device(), 0, 1ull << 40, 4), 0u);
    EXPECT_EQ(snic_device_mmio_read(board.device(), 1, 0, 4), 0u);
    snic_device_mmio_write(board.device(), 0, SNIC_REG_CTRL, 1, 1);
    snic_device_mmio_write(board.device(), 2, 1ull << 40, 1, 4);
    snic_device_mmio_write(board.device(), 0, SNIC_REG_CTRL, SNIC_CTRL_ENABLE, 4);  // with AQ_SIZE 0
    EXPECT_TRUE(
        board.run([&] { return snic_device_mmio_read(board.device(), 0, SNIC_REG_ERROR, 4) == SNIC_FATAL_AQ_CONFIG; }));
    board.write_register(SNIC_REG_CTRL, SNIC_CTRL_RESET, 4);
    EXPECT_TRUE(board.run([&] { return snic_device_mmio_read(board.device(), 0, SNIC_REG_STATUS, 4) == 0; }));
}

TEST(Ring, ConsumerRefusesWhatLiesOutsideTheMapping) {
    fabric::Fd fd = fabric::make_memfd("ring", FABRIC_RING_STRIDE);
    fabric::Mapping m = fabric::Mapping::of(fd, 0, FABRIC_RING_STRIDE);
    fabric::RingWriter w(m.data());
    fabric::RingReader r(m.data());
    auto record = w.reserve(100);
    fabric_msg msg = {};
    msg.size = 100;
    msg.type = FABRIC_ACK;
    std::memcpy(record.data(), &msg, sizeof msg);
    w.commit();
    EXPECT_EQ(r.front().size(), 100u);
    r.pop();
    msg.size = 0x7FFFFFFF;
    record = w.reserve(64);
    std::memcpy(record.data(), &msg, sizeof msg);
    w.commit();
    EXPECT_TRUE(r.front().empty());
    EXPECT_TRUE(r.broken());
}

TEST(Ring, ProducerThatFoundNoRoomIsWokenOnce) {
    fabric::Fd fd = fabric::make_memfd("ring", FABRIC_RING_STRIDE);
    fabric::Mapping m = fabric::Mapping::of(fd, 0, FABRIC_RING_STRIDE);
    fabric::RingWriter w(m.data());
    fabric::RingReader r(m.data());
    fabric_msg msg = {};
    msg.size = 32768;
    msg.type = FABRIC_ACK;
    for (auto record = w.reserve(msg.size); !record.empty(); record = w.reserve(msg.size)) {
        EXPECT_FALSE(r.take_starved());
        std::memcpy(record.data(), &msg, sizeof msg);
        w.commit();
    }
    EXPECT_FALSE(r.front().empty());
    r.pop();
    EXPECT_TRUE(r.take_starved());
    EXPECT_FALSE(r.take_starved());
    EXPECT_FALSE(w.reserve(msg.size).empty());
}

TEST(Ring, RecordsSurviveManyWraps) {
    fabric::Fd fd = fabric::make_memfd("ring", FABRIC_RING_STRIDE);
    fabric::Mapping m = fabric::Mapping::of(fd, 0, FABRIC_RING_STRIDE);
    fabric::RingWriter w(m.data());
    fabric::RingReader r(m.data());
    uint32_t written = 0, seen = 0;
    for (int round = 0; round < 20000; round++) {
        uint32_t size = 64 + (round * 7919u) % 33000;
        auto record = w.reserve(size);
        if (record.empty()) {
            auto got = r.front();
            ASSERT_FALSE(got.empty());
            fabric_msg msg;
            std::memcpy(&msg, got.data(), sizeof msg);
            ASSERT_EQ(msg.psn, seen++);
            r.pop();
            continue;
        }
        fabric_msg msg = {};
        msg.size = size;
        msg.type = FABRIC_ACK;
        msg.psn = written++;
        std::memcpy(record.data(), &msg, sizeof msg);
        w.commit();
    }
    EXPECT_GT(seen, 1000u);
}

TEST(Manager, RefusesNonsenseOnTheControlSocketWithAReason) {
    std::string error;
    auto m = fabric::Manager::create(socket_path() + ".m", &error);
    ASSERT_TRUE(m) << error;
    EXPECT_NE(m->control("hello").find("not a JSON object"), std::string::npos);
    EXPECT_NE(m->control("{\"cmd\":\"fly\"}").find("unknown cmd 'fly'"), std::string::npos);
    EXPECT_NE(m->control("{\"cmd\":\"faults\",\"loss_ppm\":1000001}").find("from 0 to 1000000"), std::string::npos);
    EXPECT_NE(m->control("{\"cmd\":\"faults\",\"los\":1}").find("unknown fault 'los'"), std::string::npos);
    EXPECT_EQ(m->control("{\"cmd\":\"status\"}").find("{\"faults\""), 0u);
    EXPECT_FALSE(fabric::Manager::create(socket_path() + ".m", &error));
    EXPECT_NE(error.find("served by another process"), std::string::npos);
}

}  // namespace
