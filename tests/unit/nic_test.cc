// SPDX-License-Identifier: GPL-2.0-or-later
// The NIC's checks, one test each, and the plain life of a connection.
#include <gtest/gtest.h>

#include "sim/guest.h"

using namespace sim;

namespace {

struct Pair : ::testing::TestWithParam<bool> {  // parameter: RAM is shared (direct copies)
    World world{1};
    Machine &ma = world.add(), &mb = world.add();
    SimBoard board_a{world, ma}, board_b{world, mb};
    Guest a{board_a}, b{board_b};
    GuestCq acq, bcq;
    GuestQp qa, qb;
    static constexpr uint32_t kBuf = 1 << 20;
    uint64_t abuf = 0, bbuf = 0, akey = 0, bkey = 0;

    void SetUp() override {
        ma.share_ram = mb.share_ram = GetParam();
        a.start();
        b.start();
        acq = a.create_cq();
        bcq = b.create_cq();
        qa = a.create_qp(acq, acq);
        qb = b.create_qp(bcq, bcq);
        ASSERT_TRUE(qa.qpn && qb.qpn);
        ASSERT_TRUE(connect(a, qa, b, qb));
        abuf = a.alloc(kBuf);
        bbuf = b.alloc(kBuf);
        akey = a.register_mr(abuf, kBuf, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
        bkey = b.register_mr(bbuf, kBuf, SNIC_ACCESS_ALL, qb.qpn);
        ASSERT_TRUE(akey && bkey);
        for (uint32_t i = 0; i < kBuf; i++) *ma.at<uint8_t>(abuf + i) = static_cast<uint8_t>(i * 7 + (i >> 8));
    }
    snic_cqe send_and_wait(uint8_t op, const std::vector<Sge> &sges, uint64_t rva = 0, uint64_t rkey = 0) {
        a.post_send(qa, op, 42, sges, rva, rkey);
        snic_cqe c = {};
        EXPECT_TRUE(a.wait(acq, c)) << "no completion";
        return c;
    }
    // Lets simulated time pass.
    void pass_time(uint64_t ns) {
        uint64_t end = world.now + ns;
        world.run([&] { return world.now >= end; });
    }
    bool untouched() {
        for (uint32_t i = 0; i < kBuf; i++)
            if (*mb.at<uint8_t>(bbuf + i)) return false;
        return true;
    }
    // The requester sees REM_ACCESS_ERR, nothing was written, both QPs are in ERROR.
    void expect_remote_refusal(snic_cqe c) {
        EXPECT_EQ(c.status, SNIC_WC_REM_ACCESS_ERR);
        EXPECT_TRUE(untouched());
        EXPECT_EQ(a.handle_command(SNIC_CMD_QUERY_QP, qa.qpn).result[0], SNIC_QP_ERROR);
        EXPECT_EQ(b.handle_command(SNIC_CMD_QUERY_QP, qb.qpn).result[0], SNIC_QP_ERROR);
    }
};

TEST_P(Pair, WritePlacesEveryByteAcrossSegments) {
    snic_cqe c = send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf + 3, akey, kBuf - 8}}, bbuf + 5, bkey);
    EXPECT_EQ(c.status, SNIC_WC_SUCCESS);
    EXPECT_EQ(c.byte_len, kBuf - 8);
    EXPECT_EQ(std::memcmp(ma.at<char>(abuf + 3), mb.at<char>(bbuf + 5), kBuf - 8), 0);
    EXPECT_EQ(*mb.at<uint8_t>(bbuf + 4), 0);
    EXPECT_EQ(*mb.at<uint8_t>(bbuf + kBuf - 3), 0);
}

TEST_P(Pair, NicBehindAFullLinkSleepsUntilThereIsRoom) {
    ma.link_capacity = 2;
    a.post_send(qa, SNIC_WR_RDMA_WRITE, 1, {{abuf, akey, kBuf}}, bbuf, bkey);
    // Only this NIC runs: nobody empties its link.
    int turns = 0;
    while (ma.nic.step(16)) ASSERT_LT(turns++, 1000) << "it works on although it can do nothing";
    EXPECT_TRUE(ma.nic.prepare_sleep());
    EXPECT_EQ(world.under_way(0, 1), 2u);
    ma.link_capacity = 256;
    EXPECT_TRUE(ma.nic.step(1)) << "there is room, and more to send";
    snic_cqe c;
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.status, SNIC_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(ma.at<char>(abuf), mb.at<char>(bbuf), kBuf), 0);
}

TEST_P(Pair, ReadScattersIntoSixteenElements) {
    for (uint32_t i = 0; i < kBuf; i++) *mb.at<uint8_t>(bbuf + i) = static_cast<uint8_t>(i * 13 + (i >> 9));
    std::vector<Sge> sges;
    for (uint32_t i = 0; i < 16; i++) sges.push_back({abuf + i * 65536 + i, akey, 40000 + i});
    uint64_t at = 0;
    snic_cqe c = send_and_wait(SNIC_WR_RDMA_READ, sges, bbuf + 17, bkey);
    ASSERT_EQ(c.status, SNIC_WC_SUCCESS);
    for (const Sge &s : sges) {
        EXPECT_EQ(std::memcmp(ma.at<char>(s.va), mb.at<char>(bbuf + 17 + at), s.length), 0);
        at += s.length;
    }
}

TEST_P(Pair, SendFillsOneReceiveInOrderWithItsLength) {
    uint64_t rbuf = b.alloc(200000);
    uint64_t rkey = b.register_mr(rbuf, 200000, SNIC_ACCESS_LOCAL_WRITE);
    b.post_recv(qb, 1, {{rbuf, rkey, 100}, {rbuf + 4096, rkey, 90000}});
    b.post_recv(qb, 2, {{rbuf + 100000, rkey, 5000}});
    a.post_send(qa, SNIC_WR_SEND, 10, {{abuf, akey, 70000}}, 0, 0, SNIC_WQE_SIGNALED, 77);
    a.post_send(qa, SNIC_WR_SEND, 11, {{abuf + 9, akey, 5}});
    snic_cqe c;
    ASSERT_TRUE(b.wait(bcq, c));
    EXPECT_EQ(c.wr_id, 1u);
    EXPECT_EQ(c.byte_len, 70000u);
    EXPECT_EQ(c.imm, 77u);
    ASSERT_TRUE(b.wait(bcq, c));
    EXPECT_EQ(c.wr_id, 2u);
    EXPECT_EQ(c.byte_len, 5u);
    EXPECT_EQ(std::memcmp(mb.at<char>(rbuf), ma.at<char>(abuf), 100), 0);
    EXPECT_EQ(std::memcmp(mb.at<char>(rbuf + 4096), ma.at<char>(abuf + 100), 69900), 0);
    EXPECT_EQ(std::memcmp(mb.at<char>(rbuf + 100000), ma.at<char>(abuf + 9), 5), 0);
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.wr_id, 10u);
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.wr_id, 11u);
}

TEST_P(Pair, SendWithoutReceiveWaitsInsteadOfFailing) {
    a.post_send(qa, SNIC_WR_SEND, 1, {{abuf, akey, 64}});
    pass_time(50'000'000);
    snic_cqe c;
    EXPECT_FALSE(a.poll(acq, c));
    b.post_recv(qb, 9, {{bbuf, bkey, 64}});
    ASSERT_TRUE(b.wait(bcq, c));
    EXPECT_EQ(c.wr_id, 9u);
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.status, SNIC_WC_SUCCESS);
}

TEST_P(Pair, ZeroLengthWriteNeedsNoKey) {
    EXPECT_EQ(send_and_wait(SNIC_WR_RDMA_WRITE, {}, 12345, 0).status, SNIC_WC_SUCCESS);
}

// --- the checks of a remote access, in their order ------------------------------------------------------------------

TEST_P(Pair, RemoteKeyOfNoRegionIsRefused) {
    expect_remote_refusal(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, akey, 8}}, bbuf, bkey + 1));
}
TEST_P(Pair, RemoteKeyWithWrongVariantIsRefused) {
    expect_remote_refusal(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, akey, 8}}, bbuf, bkey ^ (1ull << 40)));
}
TEST_P(Pair, RemoteKeyOfAnotherProtectionDomainIsRefused) {
    uint32_t pd2 = static_cast<uint32_t>(b.command(SNIC_CMD_CREATE_PD, snic_cmd_pd{}).result[0]);
    uint64_t key2 = b.register_mr(bbuf, kBuf, SNIC_ACCESS_ALL, 0, pd2);
    ASSERT_TRUE(key2);
    expect_remote_refusal(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, akey, 8}}, bbuf, key2));
}
TEST_P(Pair, RemoteKeyBoundToAnotherConnectionIsRefused) {
    GuestQp other = b.create_qp(bcq, bcq);
    uint64_t key2 = b.register_mr(bbuf, kBuf, SNIC_ACCESS_ALL, other.qpn);
    ASSERT_TRUE(key2);
    expect_remote_refusal(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, akey, 8}}, bbuf, key2));
}
TEST_P(Pair, WriteToReadOnlyExposureIsRefused) {
    uint64_t key2 = b.register_mr(bbuf, kBuf, SNIC_ACCESS_REMOTE_READ | SNIC_ACCESS_LOCAL_WRITE, qb.qpn);
    expect_remote_refusal(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, akey, 8}}, bbuf, key2));
}
TEST_P(Pair, ReadOfWriteOnlyExposureIsRefused) {
    uint64_t key2 = b.register_mr(bbuf, kBuf, SNIC_ACCESS_REMOTE_WRITE | SNIC_ACCESS_LOCAL_READ, qb.qpn);
    std::memset(ma.at<char>(abuf), 0x55, 8);
    expect_remote_refusal(send_and_wait(SNIC_WR_RDMA_READ, {{abuf, akey, 8}}, bbuf, key2));
    EXPECT_EQ(*ma.at<uint64_t>(abuf), 0x5555555555555555u);
}
TEST_P(Pair, WriteBelowTheRegionIsRefused) {
    uint64_t key2 = b.register_mr(bbuf + 4096, 4096, SNIC_ACCESS_ALL, qb.qpn);
    expect_remote_refusal(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, akey, 8}}, bbuf + 4095, key2));
}
TEST_P(Pair, WriteOneByteBeyondTheRegionIsRefused) {
    uint64_t key2 = b.register_mr(bbuf, 4096, SNIC_ACCESS_ALL, qb.qpn);
    expect_remote_refusal(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, akey, 8}}, bbuf + 4089, key2));
}
TEST_P(Pair, RemoteAddressThatWrapsIsRefused) {
    expect_remote_refusal(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, akey, 16}}, UINT64_MAX - 7, bkey));
}
TEST_P(Pair, RevokedKeyIsRefusedAndTheNewOneWorks) {
    snic_cmd_modify_mr m = {};
    m.key = bkey;
    m.access = SNIC_ACCESS_ALL;
    m.bound_qpn = qb.qpn;
    Completion c = b.command(SNIC_CMD_MODIFY_MR, m);
    ASSERT_EQ(c.status, SNIC_OK);
    ASSERT_NE(c.result[0], bkey);
    EXPECT_EQ(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, akey, 0}}, bbuf, c.result[0]).status, SNIC_WC_SUCCESS);
    expect_remote_refusal(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, akey, 8}}, bbuf, bkey));
}
TEST_P(Pair, DeregisteredKeyIsRefused) {
    snic_cmd_deregister_mr d = {};
    d.key = bkey;
    ASSERT_EQ(b.command(SNIC_CMD_DEREGISTER_MR, d).status, SNIC_OK);
    expect_remote_refusal(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, akey, 8}}, bbuf, bkey));
}
TEST_P(Pair, QpWithoutRemoteRightsRefusesWhateverTheKeyAllows) {
    GuestCq cq = b.create_cq();
    GuestQp q1 = a.create_qp(acq, acq), q2;
    uint64_t params = b.alloc(4096);
    *mb.at<snic_qp_params>(params) = b.qp_params(cq, cq, q2);
    mb.at<snic_qp_params>(params)->access = SNIC_ACCESS_REMOTE_READ;
    snic_cmd_create_qp q = {};
    q.params = params;
    q2.qpn = static_cast<uint32_t>(b.command(SNIC_CMD_CREATE_QP, q).result[0]);
    ASSERT_TRUE(connect(a, q1, b, q2, 7001));
    uint64_t key = b.register_mr(bbuf, 4096, SNIC_ACCESS_ALL);
    a.post_send(q1, SNIC_WR_RDMA_WRITE, 1, {{abuf, akey, 8}}, bbuf, key);
    snic_cqe c;
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.status, SNIC_WC_REM_ACCESS_ERR);
    EXPECT_TRUE(untouched());
}

// --- local checks ---------------------------------------------------------------------------------------------------

TEST_P(Pair, LocalKeyWithoutReadRightFailsTheSend) {
    uint64_t wo = a.register_mr(abuf, 4096, SNIC_ACCESS_LOCAL_WRITE);
    EXPECT_EQ(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, wo, 8}}, bbuf, bkey).status, SNIC_WC_LOC_PROT_ERR);
    EXPECT_TRUE(untouched());
}
TEST_P(Pair, LocalKeyWithoutWriteRightFailsTheRead) {
    uint64_t ro = a.register_mr(abuf, 4096, SNIC_ACCESS_LOCAL_READ);
    EXPECT_EQ(send_and_wait(SNIC_WR_RDMA_READ, {{abuf, ro, 8}}, bbuf, bkey).status, SNIC_WC_LOC_PROT_ERR);
}
TEST_P(Pair, LocalRangeBeyondTheRegionFails) {
    uint64_t k = a.register_mr(abuf, 4096, SNIC_ACCESS_LOCAL_READ);
    EXPECT_EQ(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf + 4090, k, 8}}, bbuf, bkey).status, SNIC_WC_LOC_PROT_ERR);
}
TEST_P(Pair, LocalRegionOfAnotherPdFails) {
    uint32_t pd2 = static_cast<uint32_t>(a.command(SNIC_CMD_CREATE_PD, snic_cmd_pd{}).result[0]);
    uint64_t k = a.register_mr(abuf, 4096, SNIC_ACCESS_LOCAL_READ, 0, pd2);
    EXPECT_EQ(send_and_wait(SNIC_WR_RDMA_WRITE, {{abuf, k, 8}}, bbuf, bkey).status, SNIC_WC_LOC_PROT_ERR);
}
TEST_P(Pair, UnknownOpcodeFailsWithLocQpOpErr) {
    EXPECT_EQ(send_and_wait(99, {{abuf, akey, 8}}).status, SNIC_WC_LOC_QP_OP_ERR);
}
TEST_P(Pair, MessageLongerThanTheReceiveFailsBothSides) {
    b.post_recv(qb, 5, {{bbuf, bkey, 10}});
    EXPECT_EQ(send_and_wait(SNIC_WR_SEND, {{abuf, akey, 11}}).status, SNIC_WC_REM_INV_REQ_ERR);
    snic_cqe c;
    ASSERT_TRUE(b.wait(bcq, c));
    EXPECT_EQ(c.status, SNIC_WC_LOC_LEN_ERR);
    EXPECT_TRUE(untouched());
}
TEST_P(Pair, ReceiveIntoReadOnlyMemoryFailsAndTouchesNothing) {
    uint64_t ro = b.register_mr(bbuf, 4096, SNIC_ACCESS_LOCAL_READ);
    b.post_recv(qb, 5, {{bbuf, ro, 64}});
    EXPECT_EQ(send_and_wait(SNIC_WR_SEND, {{abuf, akey, 11}}).status, SNIC_WC_REM_OP_ERR);
    EXPECT_TRUE(untouched());
}

// --- errors and the end ---------------------------------------------------------------------------------------------

TEST_P(Pair, EverythingPostedIsFlushedExactlyOnce) {
    for (uint64_t i = 0; i < 5; i++) a.post_recv(qa, 100 + i, {{abuf, akey, 64}});
    a.post_send(qa, SNIC_WR_RDMA_WRITE, 0, {{abuf, akey, 8}}, bbuf, bkey ^ (1ull << 33));
    for (uint64_t i = 1; i < 6; i++) a.post_send(qa, SNIC_WR_RDMA_WRITE, i, {{abuf, akey, 8}}, bbuf, bkey);
    std::map<uint64_t, int> seen;
    snic_cqe c;
    for (int i = 0; i < 11; i++) {
        ASSERT_TRUE(a.wait(acq, c)) << i;
        seen[c.wr_id]++;
        EXPECT_EQ(c.status, c.wr_id == 0 ? SNIC_WC_REM_ACCESS_ERR : SNIC_WC_WR_FLUSH_ERR) << c.wr_id;
    }
    EXPECT_EQ(seen.size(), 11u);
    world.run([] { return false; }, 2000);
    EXPECT_FALSE(a.poll(acq, c));
    EXPECT_TRUE(untouched());
}

TEST_P(Pair, DisconnectTellsThePeerAndFlushesItsReceives) {
    b.post_recv(qb, 7, {{bbuf, bkey, 64}});
    ASSERT_EQ(a.handle_command(SNIC_CMD_DISCONNECT, qa.qpn).status, SNIC_OK);
    snic_cqe c;
    ASSERT_TRUE(b.wait(bcq, c));
    EXPECT_EQ(c.status, SNIC_WC_WR_FLUSH_ERR);
    snic_eqe e;
    ASSERT_TRUE(b.wait_event(SNIC_EV_DISCONNECTED, e));
    EXPECT_EQ(e.reason, SNIC_REASON_PEER_CLOSED);
    EXPECT_EQ(a.handle_command(SNIC_CMD_DESTROY_QP, qa.qpn).status, SNIC_OK);
    EXPECT_EQ(b.handle_command(SNIC_CMD_DESTROY_QP, qb.qpn).status, SNIC_OK);
}

TEST_P(Pair, LostPeerEndsOperationsWithRetryExceeded) {
    b.post_recv(qb, 7, {{bbuf, bkey, 64}});
    for (uint64_t i = 0; i < 3; i++) a.post_send(qa, SNIC_WR_RDMA_WRITE, i, {{abuf, akey, 65536}}, bbuf, bkey);
    world.turn();
    world.sever(0, 1);
    snic_cqe c;
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.status, SNIC_WC_RETRY_EXC_ERR);
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.status, SNIC_WC_WR_FLUSH_ERR);
    snic_eqe e;
    ASSERT_TRUE(a.wait_event(SNIC_EV_DISCONNECTED, e));
    EXPECT_EQ(e.reason, SNIC_REASON_LINK_DOWN);
    ASSERT_TRUE(b.wait(bcq, c));
    EXPECT_EQ(c.status, SNIC_WC_WR_FLUSH_ERR);
}

TEST_P(Pair, SilentPeerExhaustsTheRetries) {
    world.faults.loss_ppm = 1'000'000;
    a.post_send(qa, SNIC_WR_RDMA_WRITE, 1, {{abuf, akey, 8}}, bbuf, bkey);
    snic_cqe c;
    uint64_t start = world.now;
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.status, SNIC_WC_RETRY_EXC_ERR);
    EXPECT_LT(world.now - start, 5'000'000'000u);
}

TEST_P(Pair, DeregistrationWaitsForTheOperationInFlight) {
    a.post_send(qa, SNIC_WR_SEND, 1, {{abuf, akey, 4096}});  // no receive: stays in flight
    pass_time(3'000'000);
    snic_cmd_deregister_mr d = {};
    d.key = akey;
    uint32_t n = a.post_command(SNIC_CMD_DEREGISTER_MR, &d, sizeof d);
    Completion c;
    pass_time(10'000'000);
    EXPECT_FALSE(a.completed(n, c));
    b.post_recv(qb, 1, {{bbuf, bkey, 4096}});
    ASSERT_TRUE(world.run([&] { return a.completed(n, c); }));
    EXPECT_EQ(c.status, SNIC_OK);
    snic_cqe cqe;
    ASSERT_TRUE(a.poll(acq, cqe)) << "the operation ended before its memory was released";
}

TEST_P(Pair, RegionThatIsBeingDeregisteredTakesNoNewUse) {
    b.post_send(qb, SNIC_WR_SEND, 1, {{bbuf, bkey, 64}});  // no receive at the peer: keeps the region in use
    pass_time(3'000'000);
    snic_cmd_deregister_mr d = {};
    d.key = bkey;
    uint32_t n = b.post_command(SNIC_CMD_DEREGISTER_MR, &d, sizeof d);
    pass_time(5'000'000);
    Completion c;
    ASSERT_FALSE(b.completed(n, c));
    a.post_send(qa, SNIC_WR_RDMA_WRITE, 2, {{abuf, akey, 8}}, bbuf, bkey);
    snic_cqe cqe;
    ASSERT_TRUE(a.wait(acq, cqe));
    EXPECT_EQ(cqe.status, SNIC_WC_REM_ACCESS_ERR);
    EXPECT_TRUE(untouched());
    EXPECT_TRUE(world.run([&] { return b.completed(n, c); })) << "the QP's end releases the region";
}

TEST_P(Pair, DamagedRecordIsDroppedAndSentAgain) {
    world.faults.corrupt_ppm = 300'000;
    for (uint64_t i = 0; i < 30; i++) a.post_send(qa, SNIC_WR_RDMA_WRITE, i, {{abuf, akey, 5000}}, bbuf, bkey);
    snic_cqe c;
    for (uint64_t i = 0; i < 30; i++) {
        ASSERT_TRUE(a.wait(acq, c));
        ASSERT_EQ(c.status, SNIC_WC_SUCCESS);
    }
    EXPECT_EQ(std::memcmp(ma.at<char>(abuf), mb.at<char>(bbuf), 5000), 0);
    EXPECT_GT(ma.nic.counters().bad_records + mb.nic.counters().bad_records, 0u);
}

TEST_P(Pair, ReceiverNotReadyRetriesAreLimitedWhenAsked) {
    GuestQp q1, q2 = b.create_qp(bcq, bcq);
    uint64_t params = a.alloc(4096);
    *ma.at<snic_qp_params>(params) = a.qp_params(acq, acq, q1);
    ma.at<snic_qp_params>(params)->rnr_retry = 2;
    snic_cmd_create_qp q = {};
    q.params = params;
    q1.qpn = static_cast<uint32_t>(a.command(SNIC_CMD_CREATE_QP, q).result[0]);
    ASSERT_TRUE(connect(a, q1, b, q2, 7003));
    a.post_send(q1, SNIC_WR_SEND, 1, {{abuf, akey, 8}});
    snic_cqe c;
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.status, SNIC_WC_RNR_RETRY_EXC_ERR);
}

TEST_P(Pair, FencedSendDoesNotOvertakeARead) {
    std::memset(mb.at<char>(bbuf), 0x77, kBuf);
    b.post_recv(qb, 1, {{bbuf, bkey, 16}});
    a.post_send(qa, SNIC_WR_RDMA_READ, 1, {{abuf, akey, kBuf}}, bbuf, bkey);
    a.post_send(qa, SNIC_WR_SEND, 2, {{abuf + kBuf - 16, akey, 16}}, 0, 0, SNIC_WQE_SIGNALED | SNIC_WQE_FENCE);
    snic_cqe c;
    ASSERT_TRUE(b.wait(bcq, c));
    // What the send carries is what the read brought: it started after the read had ended.
    EXPECT_EQ(*mb.at<uint8_t>(bbuf + 15), 0x77);
}

TEST_P(Pair, NumSgeBeyondTheSlotFailsTheRequest) {
    a.post_send(qa, SNIC_WR_SEND, 3, std::vector<Sge>(16, Sge{abuf, akey, 1}));
    ma.at<snic_wqe>(qa.sq + (qa.sq_pi - 1) % qa.sq_entries * qa.stride)->num_sge = 17;
    snic_cqe c;
    ASSERT_TRUE(a.wait(acq, c));
    EXPECT_EQ(c.status, SNIC_WC_LOC_QP_OP_ERR);
}

TEST_P(Pair, ProducerIndexBeyondTheRingFailsTheQp) {
    // Every slot holds a request that is right in itself.
    snic_wqe w = {};
    w.opcode = SNIC_WR_RDMA_WRITE;
    w.flags = SNIC_WQE_SIGNALED;
    for (uint32_t i = 0; i < qa.sq_entries; i++) *ma.at<snic_wqe>(qa.sq + i * qa.stride) = w;
    ma.at<snic_qp_record>(qa.record)->sq_pi = qa.sq_entries + 1;
    ma.nic.doorbell(0, SNIC_DB_SQ, qa.qpn);
    snic_eqe e;
    ASSERT_TRUE(a.wait_event(SNIC_EV_QP_FATAL, e));
    EXPECT_EQ(e.status, SNIC_WC_LOC_QP_OP_ERR);
    snic_cqe c;
    EXPECT_FALSE(a.poll(acq, c)) << "nothing was executed";
}

TEST_P(Pair, RequestToAQpInErrorTouchesNothing) {
    std::string state = mb.nic.state_json();
    uint32_t psn = static_cast<uint32_t>(std::stoul(state.substr(state.find("\"rq-psn\":") + 9)));
    snic_cmd_modify_qp m = {};
    m.qpn = qb.qpn;
    m.state = SNIC_QP_ERROR;
    ASSERT_EQ(b.command(SNIC_CMD_MODIFY_QP, m).status, SNIC_OK);
    struct {
        fabric_msg msg = {};
        char data[64];
    } record;
    std::memset(record.data, 0x77, sizeof record.data);
    record.msg.size = sizeof record;
    record.msg.type = FABRIC_WRITE;
    record.msg.flags = FABRIC_FLAG_FIRST | FABRIC_FLAG_LAST;
    record.msg.dst_qpn = qb.qpn;
    record.msg.src_qpn = qa.qpn;
    record.msg.psn = psn;
    record.msg.length = sizeof record.data;
    record.msg.remote_va = bbuf;
    record.msg.rkey = bkey;
    mb.nic.receive(1, std::as_bytes(std::span(&record, 1)));
    EXPECT_TRUE(untouched());
}

TEST_P(Pair, CompletionQueueOverflowIsAnEventAndFailsItsQps) {
    GuestCq small = a.create_cq(16);
    GuestQp q = a.create_qp(small, acq);
    GuestQp p = b.create_qp(bcq, bcq);
    ASSERT_TRUE(connect(a, q, b, p, 7002));
    uint64_t key = b.register_mr(bbuf, kBuf, SNIC_ACCESS_ALL, p.qpn);
    for (uint64_t i = 0; i < 20; i++) a.post_send(q, SNIC_WR_RDMA_WRITE, i, {{abuf, akey, 8}}, bbuf, key);
    snic_eqe e;
    ASSERT_TRUE(a.wait_event(SNIC_EV_CQ_ERROR, e));
    EXPECT_EQ(e.handle, small.cqn);
    EXPECT_EQ(a.handle_command(SNIC_CMD_QUERY_QP, q.qpn).result[0], SNIC_QP_ERROR);
}

TEST_P(Pair, ArmedQueueRaisesOneEventAlsoForWhatWasThereBefore) {
    a.post_send(qa, SNIC_WR_RDMA_WRITE, 1, {{abuf, akey, 8}}, bbuf, bkey);
    world.run([] { return false; }, 500);
    ma.nic.doorbell(0, SNIC_DB_CQ_ARM, acq.cqn);
    snic_eqe e;
    ASSERT_TRUE(a.wait_event(SNIC_EV_CQ, e));
    EXPECT_EQ(e.handle, acq.cqn);
    EXPECT_GE(ma.interrupts[1], 1u);
    world.run([] { return false; }, 500);
    a.poll_events();
    EXPECT_TRUE(a.events.empty());
}

TEST_P(Pair, DoorbellOfAnotherPageIsIgnoredAndCounted) {
    uint32_t page = static_cast<uint32_t>(a.command(SNIC_CMD_ATTACH_DOORBELL, snic_cmd_handle{}).result[0]);
    ASSERT_GT(page, 0u);
    uint64_t before = ma.nic.counters().bad_doorbells;
    ma.nic.doorbell(page, SNIC_DB_SQ, qa.qpn);
    ma.nic.doorbell(0, SNIC_DB_SQ, 0xFFFFFFFF);
    EXPECT_EQ(ma.nic.counters().bad_doorbells, before + 2);
}

TEST_P(Pair, RebindHandsTheQpToAnotherOwnerAndKeepsTheConnection) {
    b.post_recv(qb, 1, {{bbuf, bkey, 64}});          // dropped
    a.post_recv(qa, 77, {{abuf + 4096, akey, 64}});  // the peer's receive survives
    GuestCq cq2 = b.create_cq();
    GuestQp q2;
    uint64_t params = b.alloc(sizeof(snic_qp_params));
    *mb.at<snic_qp_params>(params) = b.qp_params(cq2, cq2, q2);
    snic_cmd_rebind_qp r = {};
    r.qpn = qb.qpn;
    r.params = params;
    ASSERT_EQ(b.command(SNIC_CMD_REBIND_QP, r).status, SNIC_OK);
    q2.qpn = qb.qpn;
    b.post_recv(q2, 2, {{bbuf + 8192, bkey, 64}});
    a.post_send(qa, SNIC_WR_SEND, 5, {{abuf, akey, 20}});
    snic_cqe c;
    ASSERT_TRUE(b.wait(cq2, c));
    EXPECT_EQ(c.wr_id, 2u);
    EXPECT_EQ(c.status, SNIC_WC_SUCCESS);
    b.post_send(q2, SNIC_WR_SEND, 6, {{bbuf + 8192, bkey, 20}});
    ASSERT_TRUE(a.wait(acq, c));
    ASSERT_TRUE(c.wr_id == 77 || a.wait(acq, c));
    EXPECT_EQ(c.status, SNIC_WC_SUCCESS);
    EXPECT_FALSE(b.poll(bcq, c)) << "the dropped receive completes nowhere";
    // The old owner's queues are free of it.
    EXPECT_EQ(b.handle_command(SNIC_CMD_DESTROY_CQ, bcq.cqn).status, SNIC_OK);
}

TEST_P(Pair, RebindIsRefusedWhileASendIsOutstanding) {
    b.post_send(qb, SNIC_WR_SEND, 1, {{bbuf, bkey, 64}});  // no receive posted at the peer
    pass_time(3'000'000);
    GuestQp q2;
    uint64_t params = b.alloc(sizeof(snic_qp_params));
    *mb.at<snic_qp_params>(params) = b.qp_params(bcq, bcq, q2);
    snic_cmd_rebind_qp r = {};
    r.qpn = qb.qpn;
    r.params = params;
    EXPECT_EQ(b.command(SNIC_CMD_REBIND_QP, r).status, SNIC_ERR_STATE);
}

TEST_P(Pair, ResetDropsEverythingAndThePeerLearns) {
    ma.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_RESET, 4);
    snic_eqe e;
    ASSERT_TRUE(b.wait_event(SNIC_EV_DISCONNECTED, e));
    EXPECT_EQ(ma.nic.read_register(SNIC_REG_STATUS, 4) & SNIC_STATUS_READY, 0u);
    a.start();
    EXPECT_NE(a.pd, 0u);
}

// What a peer copies by itself, as a READ of ours asks it to, must have ended when the driver gives the memory away.
TEST_P(Pair, AResetIsOverWhenThePeerCopiesNoMore) {
    auto resetting = [&] { return ma.nic.read_register(SNIC_REG_STATUS, 4) & SNIC_STATUS_RESETTING; };
    for (bool silent : {false, true}) {  // a peer that does not answer must not hold it up for ever
        std::memset(mb.at<char>(bbuf), 0x55, kBuf);
        for (int i = 0; i < 8; i++) a.post_send(qa, SNIC_WR_RDMA_READ, 1, {{abuf, akey, kBuf}}, bbuf, bkey);
        ma.nic.step(64);
        if (silent) world.flap(0, 1, 100'000'000'000);
        ma.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_RESET, 4);
        EXPECT_EQ(resetting() != 0, GetParam());
        uint64_t began = world.now;
        ASSERT_TRUE(world.run([&] { return !resetting(); }));
        if (silent) EXPECT_LT(world.now - began, 2'000'000'000u) << "longer than drivers wait";
        else EXPECT_LT(world.now - began, 50'000'000u) << "the peer's answer was not taken";
        std::memset(ma.at<char>(abuf), 0x77, kBuf);
        pass_time(200'000'000'000);
        for (uint32_t i = 0; i < kBuf; i++) ASSERT_EQ(*ma.at<uint8_t>(abuf + i), 0x77) << i;
        if (silent) break;
        a.start();
        acq = a.create_cq();
        qa = a.create_qp(acq, acq);
        qb = b.create_qp(bcq, bcq);
        ASSERT_TRUE(connect(a, qa, b, qb, 9001));
        abuf = a.alloc(kBuf);
        akey = a.register_mr(abuf, kBuf, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
        bkey = b.register_mr(bbuf, kBuf, SNIC_ACCESS_ALL, qb.qpn);
    }
}

INSTANTIATE_TEST_SUITE_P(Paths, Pair, ::testing::Bool(),
                         [](const auto &info) { return std::string(info.param ? "Direct" : "Payload"); });

// --- faults on purpose: x-fail-command ------------------------------------------------------------------------------

TEST(FailCommand, TheNumberedCommandFailsAndChangesNothingTheNextOneWorks) {
    World world{1};
    snic::Config config;
    config.fail_command = 4;  // two are of Guest::start
    config.fail_status = SNIC_ERR_LIMIT;
    Machine &m = world.add(config);
    SimBoard board{world, m};
    Guest g{board};
    g.start();
    EXPECT_TRUE(g.create_cq().cqn);
    EXPECT_FALSE(g.create_cq().cqn);
    EXPECT_TRUE(g.create_cq().cqn);
}

TEST(FailCommand, ACommandThatIsNeverAnsweredHoldsUpNoOtherAndResetEndsIt) {
    World world{1};
    snic::Config config;
    config.fail_command = 3;
    config.fail_status = snic::Config::no_answer;
    Machine &m = world.add(config);
    SimBoard board{world, m};
    Guest g{board};
    g.start();
    uint32_t number = g.post_command(SNIC_CMD_CREATE_PD, nullptr, 0);
    EXPECT_TRUE(g.create_cq().cqn);  // behind it
    Completion c;
    EXPECT_FALSE(g.completed(number, c));
    m.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_RESET, 4);
    m.nic.write_register(SNIC_REG_CTRL, 0, 4);
    g.start();
    EXPECT_TRUE(g.create_cq().cqn);  // and counting goes on: once is enough
}

}  // namespace
