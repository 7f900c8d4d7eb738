// SPDX-License-Identifier: GPL-2.0-or-later
// The latency and bandwidth model, measured in simulated time.
#include <gtest/gtest.h>

#include "sim/guest.h"

using namespace sim;

namespace {

struct Timed {
    World world{3};
    Machine &ma, &mb;
    SimBoard ba, bb;
    Guest a, b;
    GuestCq acq, bcq;
    GuestQp qa, qb;
    static constexpr uint32_t kBuf = 1 << 20;
    uint64_t abuf = 0, bbuf = 0, akey = 0, bkey = 0;

    explicit Timed(const snic::Config &config)
        : ma(world.add(config, 8 << 20)), mb(world.add(config, 8 << 20)), ba(world, ma), bb(world, mb), a(ba), b(bb) {
        world.faults.delay_ns = 0;
        a.start();
        b.start();
        acq = a.create_cq();
        bcq = b.create_cq();
        qa = a.create_qp(acq, acq);
        qb = b.create_qp(bcq, bcq);
        EXPECT_TRUE(connect(a, qa, b, qb));
        abuf = a.alloc(kBuf);
        bbuf = b.alloc(kBuf);
        akey = a.register_mr(abuf, kBuf, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
        bkey = b.register_mr(bbuf, kBuf, SNIC_ACCESS_ALL, qb.qpn);
    }
    // Simulated nanoseconds of `count` operations with at most 32 outstanding.
    uint64_t run(uint8_t opcode, uint32_t length, uint32_t count) {
        uint64_t start = world.now;
        snic_cqe c;
        for (uint32_t posted = 0, done = 0; done < count;) {
            for (; posted < count && posted - done < 32; posted++)
                a.post_send(qa, opcode, posted, {{abuf, akey, length}}, bbuf, bkey);
            if (!a.wait(acq, c)) {
                ADD_FAILURE() << "no completion";
                return 0;
            }
            EXPECT_EQ(c.status, SNIC_WC_SUCCESS);
            done++;
        }
        return world.now - start;
    }
    uint64_t retransmits() { return ma.nic.fabric_totals().retransmits + mb.nic.fabric_totals().retransmits; }
};

void expect_within_tenth(double seen, double wanted) {
    EXPECT_GT(seen, wanted * 0.9);
    EXPECT_LT(seen, wanted * 1.1);
}

TEST(TimingModel, WritesKeepToTheLinkRate) {
    snic::Config config;
    config.link_rate = 1'000'000'000;
    Timed t(config);
    expect_within_tenth(static_cast<double>(t.run(SNIC_WR_RDMA_WRITE, 1 << 20, 40)), 40.0 * (1 << 20));
    EXPECT_EQ(t.retransmits(), 0u);
}

TEST(TimingModel, ReadsKeepToTheRateOfTheNicThatSends) {
    snic::Config config;
    config.link_rate = 250'000'000;
    Timed t(config);
    expect_within_tenth(static_cast<double>(t.run(SNIC_WR_RDMA_READ, 1 << 20, 20)), 20.0 * (1 << 20) * 4);
    EXPECT_EQ(t.retransmits(), 0u);
}

TEST(TimingModel, ASlowLinkIsNotTakenForALossyOne) {
    snic::Config config;
    config.link_rate = 2'000'000;  // 131 ms for a segment of 256 KiB, longer than the first time-out
    Timed t(config);
    expect_within_tenth(static_cast<double>(t.run(SNIC_WR_RDMA_WRITE, 1 << 20, 3)), 3.0 * (1 << 20) * 500);
    EXPECT_EQ(t.retransmits(), 0u);
}

TEST(TimingModel, OneSmallWriteTakesTheDelayThereAndBack) {
    snic::Config config;
    config.delay = 25'000;
    Timed t(config);
    expect_within_tenth(static_cast<double>(t.run(SNIC_WR_RDMA_WRITE, 8, 1)), 50'000);
}

TEST(TimingModel, JitterAddsItsMeanAndKeepsOrder) {
    snic::Config config;
    config.delay = 20'000;
    config.jitter = 40'000;
    Timed t(config);
    double total = 0;
    for (int i = 0; i < 400; i++) total += static_cast<double>(t.run(SNIC_WR_RDMA_WRITE, 8, 1));
    expect_within_tenth(total / 400, 2 * (20'000 + 20'000));
    EXPECT_EQ(t.retransmits(), 0u);
}

TEST(TimingModel, OperationCostLimitsTheMessageRate) {
    snic::Config config;
    config.op_cost = 2'000;
    Timed t(config);
    expect_within_tenth(static_cast<double>(t.run(SNIC_WR_RDMA_WRITE, 8, 2000)), 2000 * 2'000.0);
}

TEST(TimingModel, IsOffByDefault) {
    Timed t(snic::Config{});
    EXPECT_LT(t.run(SNIC_WR_RDMA_WRITE, 1 << 20, 40), 40u * 100'000);
}

}  // namespace
