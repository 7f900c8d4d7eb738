// SPDX-License-Identifier: GPL-2.0-or-later
// A hostile guest's memory: structures that change or vanish under the device, work entries and doorbells that lie, and a reset at
// any moment of a transfer.
#include "hostile_guest.h"

using namespace sim;

namespace {

// --- memory that changes or vanishes under the device ---------------------------------------------------------------

TEST_F(Hostile, QueuePairParametersAreReadOnce) {
    GuestQp qp;
    uint64_t params = a.alloc(4096);
    snic_qp_params good = a.qp_params(acq, acq, qp), evil = good;
    evil.sq_entries = 0x80000000;
    evil.sq_stride = 7;
    evil.pd = 0;
    evil.sq_pages = {kNoRam, 0, 12, 0, 0};
    *ma.at<snic_qp_params>(params) = good;
    unsigned reads = 0;
    ma.on_map = [&](uint64_t addr, size_t, bool) {
        if (addr == params && reads++) *ma.at<snic_qp_params>(params) = evil;
        return true;
    };
    snic_cmd_create_qp c = {params, {}};
    EXPECT_EQ(a.command(SNIC_CMD_CREATE_QP, c).status, SNIC_OK);
    EXPECT_EQ(reads, 1u);
}

TEST_F(Hostile, CommandIsReadOnce) {
    uint64_t aq = ma.nic.read_register(SNIC_REG_AQ_BASE, 8), at = a.alloc(4096);
    unsigned reads = 0;
    ma.on_map = [&](uint64_t addr, size_t, bool write) {
        if (!write && addr >= aq && addr < aq + 64 * 64) reads++;
        return true;
    };
    snic_cmd_register_mr c = {a.pd, SNIC_ACCESS_LOCAL_READ, at, 4096, {at, 0, 12, 0, 0}, 0, 0};
    EXPECT_EQ(a.command(SNIC_CMD_REGISTER_MR, c).status, SNIC_OK);
    EXPECT_EQ(reads, 1u);
}

TEST_F(Hostile, WorkEntryThatChangesAfterItWasReadMovesWhatItSaidThen) {
    GuestQp qa = a.create_qp(acq, acq), qb = b.create_qp(bcq, bcq);
    ASSERT_TRUE(connect(a, qa, b, qb));
    uint64_t from = a.alloc(1 << 20), to = b.alloc(1 << 20);
    std::memset(ma.at<char>(from), 7, 1 << 20);
    uint64_t key = a.register_mr(from, 1 << 20, SNIC_ACCESS_LOCAL_READ),
             rkey = b.register_mr(to, 1 << 20, SNIC_ACCESS_ALL, qb.qpn);
    bool header_read = false;
    ma.on_map = [&](uint64_t addr, size_t, bool) {
        if (header_read && addr != qa.sq + SNIC_WQE_HEADER_SIZE) std::memset(ma.at<char>(qa.sq), 0xFF, 512);
        if (addr == qa.sq) header_read = true;
        return true;
    };
    a.post_send(qa, SNIC_WR_RDMA_WRITE, 42, {{from, key, 1 << 20}}, to, rkey);
    snic_cqe c;
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.status, SNIC_WC_SUCCESS);
    EXPECT_EQ(c.wr_id, 42u);
    EXPECT_EQ(std::memcmp(ma.at<char>(from), mb.at<char>(to), 1 << 20), 0);
}

TEST_F(Hostile, PageListIsNotLookedAtAgain) {
    GuestQp qa = a.create_qp(acq, acq), qb = b.create_qp(bcq, bcq);
    ASSERT_TRUE(connect(a, qa, b, qb));
    uint64_t list = b.alloc(4096), first = b.alloc(4096), gap = b.alloc(4096), second = b.alloc(4096),
             from = a.alloc(8192);
    mb.at<uint64_t>(list)[0] = first;
    mb.at<uint64_t>(list)[1] = second;
    snic_cmd_register_mr c = {b.pd, SNIC_ACCESS_ALL, 0x10000, 8192, {list, 0, 12, 1, 0}, qb.qpn, 0};
    uint64_t rkey = b.command(SNIC_CMD_REGISTER_MR, c).result[0],
             key = a.register_mr(from, 8192, SNIC_ACCESS_LOCAL_READ);
    mb.at<uint64_t>(list)[0] = mb.at<uint64_t>(list)[1] = gap;
    std::memset(ma.at<char>(from), 9, 8192);
    a.post_send(qa, SNIC_WR_RDMA_WRITE, 1, {{from, key, 8192}}, 0x10000, rkey);
    snic_cqe done;
    ASSERT_TRUE(a.wait(acq, done));
    EXPECT_EQ(done.status, SNIC_WC_SUCCESS);
    EXPECT_EQ(*mb.at<uint8_t>(second + 4095), 9);
    EXPECT_EQ(*mb.at<uint8_t>(gap), 0);
}

// RAM that goes away: each kind of structure in turn.
TEST_F(Hostile, MemoryThatVanishesBecomesAStatusOrAnEvent) {
    GuestQp qa = a.create_qp(acq, acq), qb = b.create_qp(bcq, bcq);
    ASSERT_TRUE(connect(a, qa, b, qb));
    uint64_t from = a.alloc(1 << 20), to = b.alloc(1 << 20);
    uint64_t key = a.register_mr(from, 1 << 20, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
    uint64_t rkey = b.register_mr(to, 1 << 20, SNIC_ACCESS_ALL, qb.qpn);
    uint64_t lo = 0, hi = 0;
    ma.on_map = [&](uint64_t addr, size_t, bool) { return addr < lo || addr >= hi; };
    auto vanish = [&](uint64_t at, uint64_t len) { lo = at, hi = at + len; };
    auto reconnect = [&] {
        qa = a.create_qp(acq, acq);
        qb = b.create_qp(bcq, bcq);
        ASSERT_TRUE(connect(a, qa, b, qb));
        rkey = b.register_mr(to, 1 << 20, SNIC_ACCESS_ALL, qb.qpn);
    };
    snic_cqe c;
    snic_eqe e;
    vanish(from + 300'000, 4096);  // in the middle of the data
    a.post_send(qa, SNIC_WR_RDMA_WRITE, 1, {{from, key, 1 << 20}}, to, rkey);
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.status, SNIC_WC_LOC_PROT_ERR);
    ASSERT_TRUE(a.wait_event(SNIC_EV_QP_FATAL, e));
    EXPECT_EQ(e.status, SNIC_WC_LOC_PROT_ERR);
    vanish(0, 0);
    reconnect();
    vanish(qa.sq, 4096);  // the send queue
    a.post_send(qa, SNIC_WR_RDMA_WRITE, 2, {{from, key, 8}}, to, rkey);
    ASSERT_TRUE(a.wait_event(SNIC_EV_QP_FATAL, e));
    EXPECT_EQ(e.handle, qa.qpn);
    EXPECT_EQ(e.status, SNIC_WC_LOC_QP_OP_ERR);
    vanish(0, 0);
    reconnect();
    vanish(acq.ring, 4096);  // the completion queue
    a.post_send(qa, SNIC_WR_RDMA_WRITE, 3, {{from, key, 8}}, to, rkey);
    ASSERT_TRUE(a.wait_event(SNIC_EV_CQ_ERROR, e));
    EXPECT_EQ(e.handle, acq.cqn);
    vanish(0, 0);
    acq = a.create_cq();
    reconnect();
    vanish(a.eq_ring, 65536);  // the event ring: nothing can be told any more
    snic_cmd_handle h = {};
    h.handle = qb.qpn;
    b.command(SNIC_CMD_DISCONNECT, h);
    ASSERT_TRUE(board_a.run([&] { return ma.nic.read_register(SNIC_REG_ERROR, 4) == SNIC_FATAL_EQ_DMA; }));
}

// --- work entries ---------------------------------------------------------------------------------------------------

TEST_F(Hostile, LengthsThatOverflowTogetherAreRefused) {
    GuestQp qa = a.create_qp(acq, acq), qb = b.create_qp(bcq, bcq);
    uint64_t from = a.alloc(4096);
    uint64_t key = a.register_mr(from, 4096, SNIC_ACCESS_LOCAL_READ);
    struct {
        std::vector<Sge> sges;
    } cases[] = {{std::vector<Sge>(16, Sge{from, key, UINT32_MAX})},
                 {{{from, key, 4097}}},
                 {{{UINT64_MAX, key, 2}}},
                 {{{from + 4095, key, 2}}},
                 {{{from - 1, key, 2}}},
                 {{{from, 0, 1}}},
                 {{{from, UINT64_MAX, 1}}},
                 {{{from, key ^ 1ull << 63, 1}}}};
    for (auto &k : cases) {
        qa = a.create_qp(acq, acq);
        qb = b.create_qp(bcq, bcq);
        ASSERT_TRUE(connect(a, qa, b, qb));
        a.post_send(qa, SNIC_WR_SEND, 5, k.sges);
        snic_cqe c;
        ASSERT_TRUE(a.wait(acq, c));
        EXPECT_TRUE(c.status == SNIC_WC_LOC_PROT_ERR || c.status == SNIC_WC_LOC_LEN_ERR) << int{c.status};
    }
}

TEST_F(Hostile, FlagsAndOpcodesThatDoNotExistAreRefused) {
    for (auto [opcode, flags] : {std::pair<uint8_t, uint8_t>{0, 1},
                                 {SNIC_WR_RECV, 1},
                                 {255, 1},
                                 {SNIC_WR_SEND, 0xF8},
                                 {SNIC_WR_RDMA_READ, 0x81}}) {
        GuestQp qa = a.create_qp(acq, acq), qb = b.create_qp(bcq, bcq);
        ASSERT_TRUE(connect(a, qa, b, qb));
        a.post_send(qa, opcode, 5, {}, 0, 0, flags);
        snic_cqe c;
        ASSERT_TRUE(a.wait(acq, c));
        EXPECT_EQ(c.status, SNIC_WC_LOC_QP_OP_ERR) << int{opcode};
    }
}

TEST_F(Hostile, DoorbellsOfEveryNumberAndPageDoNothingWrong) {
    GuestQp qa = a.create_qp(acq, acq);
    for (uint32_t page : {0u, 1u, 255u})
        for (uint32_t offset : {0u, 4u, 8u, 12u, 4092u})
            for (uint32_t value : {0u, qa.qpn, qa.qpn ^ 0x00100000u, acq.cqn, 0xFFFFFFFFu})
                ma.nic.doorbell(page, offset, value);
    world.run([] { return false; }, 100);
    EXPECT_EQ(a.handle_command(SNIC_CMD_QUERY_QP, qa.qpn).result[0], SNIC_QP_INIT);
}

// --- reset ----------------------------------------------------------------------------------------------------------

TEST(Reset, AtAnyMomentOfATransferLeavesADeviceThatWorks) {
    for (uint64_t moment = 0; moment < 160; moment++) {
        World world{moment + 1};
        Machine &ma = world.add(), &mb = world.add();
        SimBoard board_a{world, ma}, board_b{world, mb};
        Guest a{board_a}, b{board_b};
        constexpr uint32_t kBytes = 256 << 10;
        for (int life = 0; life < 2; life++) {
            a.start();
            if (life == 0) b.start();
            GuestCq acq = a.create_cq(), bcq = b.create_cq();
            GuestQp qa = a.create_qp(acq, acq), qb = b.create_qp(bcq, bcq);
            ASSERT_TRUE(connect(a, qa, b, qb, static_cast<uint16_t>(7000 + life))) << "moment " << moment;
            uint64_t from = a.alloc(kBytes), to = b.alloc(kBytes);
            std::memset(ma.at<char>(from), 3 + life, kBytes);
            uint64_t key = a.register_mr(from, kBytes, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
            uint64_t rkey = b.register_mr(to, kBytes, SNIC_ACCESS_ALL, qb.qpn);
            a.post_send(qa, SNIC_WR_RDMA_WRITE, 1, {{from, key, kBytes}}, to, rkey);
            a.post_send(qa, SNIC_WR_RDMA_READ, 2, {{from, key, kBytes}}, to, rkey);
            if (life == 0) {
                world.run([] { return false; }, moment);
                ma.nic.reset();
                // Nothing of the old life touches the machine's memory any more.
                ma.forbidden_read.assign(ma.forbidden_read.size(), true);
                ma.forbidden_write = ma.forbidden_read;
                world.run([] { return false; }, 300);
                EXPECT_EQ(ma.violations, 0u) << "moment " << moment;
                ma.forbidden_read.assign(ma.forbidden_read.size(), false);
                ma.forbidden_write = ma.forbidden_read;
                continue;
            }
            snic_cqe c;
            for (int i = 0; i < 2; i++) {
                ASSERT_TRUE(a.wait(acq, c)) << "moment " << moment;
                ASSERT_EQ(c.status, SNIC_WC_SUCCESS) << "moment " << moment;
            }
            ASSERT_EQ(std::memcmp(ma.at<char>(from), mb.at<char>(to), kBytes), 0);
        }
    }
}

}  // namespace
