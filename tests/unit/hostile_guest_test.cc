// SPDX-License-Identifier: GPL-2.0-or-later
// What a hostile guest tries with registers, commands, doorbells and work entries: each a named status and nothing
// else, and the device works afterwards.
#include <gtest/gtest.h>

#include "sim/guest.h"

using namespace sim;

namespace {

constexpr uint64_t kNoRam = 0x7000'0000'0000;

struct Hostile : ::testing::Test {
    World world{1};
    Machine &ma = world.add(), &mb = world.add();
    SimBoard board_a{world, ma}, board_b{world, mb};
    Guest a{board_a}, b{board_b};
    GuestCq acq, bcq;

    void SetUp() override { start(); }
    void TearDown() override {
        ma.on_map = {};
        EXPECT_TRUE(works()) << "the device is of no use after that";
        EXPECT_EQ(ma.violations + mb.violations, 0u);
    }
    void start() {
        a.start();
        b.start();
        acq = a.create_cq();
        bcq = b.create_cq();
    }
    // A fresh connection carries data.
    bool works() {
        if (ma.nic.read_register(SNIC_REG_STATUS, 4) != (SNIC_STATUS_READY | SNIC_STATUS_LINK_UP)) {
            ma.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_RESET, 4);
            ma.nic.write_register(SNIC_REG_CTRL, 0, 4);
            a.start();
            acq = a.create_cq();
        }
        GuestQp qa = a.create_qp(acq, acq), qb = b.create_qp(bcq, bcq);
        if (!qa.qpn || !qb.qpn || !connect(a, qa, b, qb, 9000)) return false;
        uint64_t from = a.alloc(8192), to = b.alloc(8192);
        std::memset(ma.at<char>(from), 0x5A, 8192);
        uint64_t key = a.register_mr(from, 8192, SNIC_ACCESS_LOCAL_READ),
                 rkey = b.register_mr(to, 8192, SNIC_ACCESS_ALL, qb.qpn);
        a.post_send(qa, SNIC_WR_RDMA_WRITE, 7, {{from, key, 8192}}, to, rkey);
        snic_cqe c;
        while (a.wait(acq, c))
            if (c.qpn == qa.qpn)
                return c.status == SNIC_WC_SUCCESS && std::memcmp(ma.at<char>(from), mb.at<char>(to), 8192) == 0;
        return false;
    }
    template <typename T>
    void refuses(uint8_t opcode, const T &body, snic_status status, size_t field, const char *what) {
        Completion c = a.command(opcode, body);
        EXPECT_EQ(c.status, status) << what;
        EXPECT_EQ(c.detail, field) << what;
        for (uint64_t r : c.result) EXPECT_EQ(r, 0u) << what << ": a refused command returns something";
    }
    uint32_t objects() { return ma.nic.fabric_totals().qps + ma.nic.fabric_totals().mrs; }
    // Offset of a body's member in the command, as completions report it.
    static constexpr size_t in_body(size_t offset) { return offsetof(snic_cmd, body) + offset; }
};
#define FIELD(type, member) in_body(offsetof(type, member))

// --- registers
// -----------------------------------------------------------------------------------------------------------------

TEST_F(Hostile, EnableRefusesEveryBadRing) {
    struct {
        uint32_t size;
        uint64_t aq, acq;
    } cases[] = {{0, 0x100000, 0x110000},    {1, 0x100000, 0x110000},          {3, 0x100000, 0x110000},
                 {2048, 0x100000, 0x110000}, {0x80000000, 0x100000, 0x110000}, {UINT32_MAX, 0x100000, 0x110000},
                 {16, 0x100001, 0x110000},   {16, 0x100000, 0x110020}};
    for (auto &c : cases) {
        ma.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_RESET, 4);
        ma.nic.write_register(SNIC_REG_AQ_SIZE, c.size, 4);
        ma.nic.write_register(SNIC_REG_AQ_BASE, c.aq, 8);
        ma.nic.write_register(SNIC_REG_ACQ_BASE, c.acq, 8);
        ma.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_ENABLE, 4);
        EXPECT_EQ(ma.nic.read_register(SNIC_REG_ERROR, 4), SNIC_FATAL_AQ_CONFIG)
            << c.size << ' ' << c.aq << ' ' << c.acq;
        EXPECT_EQ(ma.nic.read_register(SNIC_REG_STATUS, 4) & SNIC_STATUS_READY, 0u);
    }
}

TEST_F(Hostile, RingsOutsideRamStopTheDevice) {
    ma.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_RESET, 4);
    ma.nic.write_register(SNIC_REG_AQ_SIZE, 16, 4);
    for (auto [aq, acq] :
         {std::pair<uint64_t, uint64_t>{kNoRam, 0x110000}, {0x110000, kNoRam}, {UINT64_MAX - 63, 0x110000}}) {
        ma.nic.write_register(SNIC_REG_AQ_SIZE, 16, 4);
        ma.nic.write_register(SNIC_REG_AQ_BASE, aq, 8);
        ma.nic.write_register(SNIC_REG_ACQ_BASE, acq, 8);
        ma.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_ENABLE, 4);
        ma.nic.write_register(SNIC_REG_AQ_DOORBELL, 1, 4);
        ma.nic.step(16);
        EXPECT_EQ(ma.nic.read_register(SNIC_REG_ERROR, 4), SNIC_FATAL_AQ_DMA);
        ma.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_RESET, 4);
    }
}

TEST_F(Hostile, RingRegistersDoNotMoveWhileEnabled) {
    uint64_t base = ma.nic.read_register(SNIC_REG_AQ_BASE, 8);
    ma.nic.write_register(SNIC_REG_AQ_BASE, kNoRam, 8);
    ma.nic.write_register(SNIC_REG_AQ_BASE + 4, 0x7000, 4);
    ma.nic.write_register(SNIC_REG_AQ_SIZE, 2, 4);
    ma.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_ENABLE, 4);  // twice: no second initialisation
    EXPECT_EQ(ma.nic.read_register(SNIC_REG_AQ_BASE, 8), base);
    EXPECT_EQ(a.handle_command(SNIC_CMD_CREATE_PD, 0).status, SNIC_OK);
}

TEST_F(Hostile, CommandsBeforeEnableAreNotTaken) {
    ma.nic.write_register(SNIC_REG_CTRL, SNIC_CTRL_RESET, 4);
    ma.nic.write_register(SNIC_REG_AQ_DOORBELL, 1, 4);
    ma.nic.doorbell(0, SNIC_DB_SQ, 1);
    ma.nic.doorbell(0, SNIC_DB_CQ_ARM, 1);
    EXPECT_FALSE(ma.nic.step(16));
    EXPECT_EQ(ma.nic.read_register(SNIC_REG_STATUS, 4) & (SNIC_STATUS_READY | SNIC_STATUS_FATAL), 0u);
}

TEST_F(Hostile, ReadOnlyAndUnknownRegistersKeepTheirValues) {
    for (uint32_t offset = 0; offset < 0x100; offset += 4) {
        if (offset == SNIC_REG_CTRL || offset == SNIC_REG_AQ_DOORBELL || offset == SNIC_REG_IRQ_MODERATION) continue;
        uint64_t before = ma.nic.read_register(offset, 4);
        for (unsigned size : {1u, 2u, 4u, 8u}) ma.nic.write_register(offset, 0xA5A5A5A5A5A5A5A5u, size);
        EXPECT_EQ(ma.nic.read_register(offset, 4), before) << "register " << offset;
    }
    EXPECT_EQ(ma.nic.read_register(SNIC_REG_AQ_DOORBELL, 4), 0u) << "it is write-only";
}

TEST_F(Hostile, AdminDoorbellBeyondTheRingStopsTheDevice) {
    uint32_t size = static_cast<uint32_t>(ma.nic.read_register(SNIC_REG_AQ_SIZE, 4));
    ma.nic.write_register(SNIC_REG_AQ_DOORBELL, a.handle_command(SNIC_CMD_CREATE_PD, 0).status + size * 8, 4);
    EXPECT_EQ(ma.nic.read_register(SNIC_REG_ERROR, 4), SNIC_FATAL_AQ_INDEX);
}

// --- commands
// --------------------------------------------------------------------------------------------------------------------

TEST_F(Hostile, UnknownCommandsAreNamedSo) {
    snic_cmd_handle none = {};
    for (unsigned opcode : {0x00, 0x02, 0x0F, 0x12, 0x23, 0x32, 0x42, 0x55, 0x67, 0x72, 0x80, 0xFF})
        refuses(static_cast<uint8_t>(opcode), none, SNIC_ERR_OPCODE, 0, "opcode");
}

TEST_F(Hostile, HandlesThatNameNothingAreRefused) {
    for (uint32_t handle : {0u, 0xFFFFFFFFu, 0x00100001u, 0x000FFFFFu}) {
        for (uint8_t opcode : {SNIC_CMD_DESTROY_PD, SNIC_CMD_DESTROY_EQ, SNIC_CMD_DESTROY_CQ, SNIC_CMD_DESTROY_QP,
                               SNIC_CMD_QUERY_QP, SNIC_CMD_UNLISTEN, SNIC_CMD_DISCONNECT, SNIC_CMD_DETACH_DOORBELL}) {
            snic_cmd_handle h = {};
            h.handle = handle;
            refuses(opcode, h, SNIC_ERR_HANDLE, in_body(0), "a handle of nothing");
        }
        snic_cmd_modify_qp m = {handle, SNIC_QP_ERROR, {}};
        refuses(SNIC_CMD_MODIFY_QP, m, SNIC_ERR_HANDLE, FIELD(snic_cmd_modify_qp, qpn), "qpn");
        snic_cmd_deregister_mr d = {handle, {}};
        refuses(SNIC_CMD_DEREGISTER_MR, d, SNIC_ERR_HANDLE, FIELD(snic_cmd_deregister_mr, key), "key");
        snic_cmd_get_request g = {handle, 0, 0, {}};
        refuses(SNIC_CMD_GET_REQUEST, g, SNIC_ERR_HANDLE, FIELD(snic_cmd_get_request, request), "request");
        snic_cmd_reply r = {};
        r.request = handle;
        refuses(SNIC_CMD_ACCEPT, r, SNIC_ERR_STATE, FIELD(snic_cmd_reply, request), "request");
        refuses(SNIC_CMD_REJECT, r, SNIC_ERR_STATE, FIELD(snic_cmd_reply, request), "request");
    }
}

TEST_F(Hostile, DestroyingTwiceIsRefusedTheSecondTime) {
    GuestCq cq = a.create_cq();
    GuestQp qp = a.create_qp(cq, cq);
    uint64_t key = a.register_mr(a.alloc(4096), 4096, SNIC_ACCESS_LOCAL_READ);
    EXPECT_EQ(a.handle_command(SNIC_CMD_DESTROY_CQ, cq.cqn).status, SNIC_ERR_IN_USE);
    EXPECT_EQ(a.handle_command(SNIC_CMD_DESTROY_PD, a.pd).status, SNIC_ERR_IN_USE);
    EXPECT_EQ(a.handle_command(SNIC_CMD_DESTROY_EQ, a.eqn).status, SNIC_ERR_IN_USE);
    EXPECT_EQ(a.handle_command(SNIC_CMD_DESTROY_QP, qp.qpn).status, SNIC_OK);
    EXPECT_EQ(a.handle_command(SNIC_CMD_DESTROY_QP, qp.qpn).status, SNIC_ERR_HANDLE);
    EXPECT_EQ(a.handle_command(SNIC_CMD_DESTROY_CQ, cq.cqn).status, SNIC_OK);
    EXPECT_EQ(a.handle_command(SNIC_CMD_DESTROY_CQ, cq.cqn).status, SNIC_ERR_HANDLE);
    snic_cmd_deregister_mr d = {key, {}};
    EXPECT_EQ(a.command(SNIC_CMD_DEREGISTER_MR, d).status, SNIC_OK);
    EXPECT_EQ(a.command(SNIC_CMD_DEREGISTER_MR, d).status, SNIC_ERR_HANDLE);
    uint32_t page = static_cast<uint32_t>(a.handle_command(SNIC_CMD_ATTACH_DOORBELL, 0).result[0]);
    EXPECT_EQ(a.handle_command(SNIC_CMD_DETACH_DOORBELL, page).status, SNIC_OK);
    EXPECT_EQ(a.handle_command(SNIC_CMD_DETACH_DOORBELL, page).status, SNIC_ERR_HANDLE);
}

TEST_F(Hostile, QueuesOfBadShapeAreRefused) {
    uint64_t ring = a.alloc(65536), record = a.alloc(4096);
    auto eq = [&](auto change) {
        snic_cmd_create_eq c = {16, 1, {ring, 0, 12, 0, 0}, record, {}};
        change(c);
        return c;
    };
    for (uint32_t n : {0u, 8u, 17u, 131072u, 0x80000000u, UINT32_MAX})
        refuses(SNIC_CMD_CREATE_EQ, eq([&](auto &c) { c.entries = n; }), SNIC_ERR_PARAM,
                FIELD(snic_cmd_create_eq, entries), "entries");
    refuses(SNIC_CMD_CREATE_EQ, eq([&](auto &c) { c.vector = 4; }), SNIC_ERR_PARAM, FIELD(snic_cmd_create_eq, vector),
            "vector");
    refuses(SNIC_CMD_CREATE_EQ, eq([&](auto &c) { c.record += 32; }), SNIC_ERR_PARAM, FIELD(snic_cmd_create_eq, record),
            "record");
    auto cq = [&](auto change) {
        snic_cmd_create_cq c = {16, a.eqn, {ring, 0, 12, 0, 0}, record, 0, 0, 0};
        change(c);
        return c;
    };
    for (uint32_t n : {0u, 8u, 24u, 131072u, 0x80000000u, UINT32_MAX})
        refuses(SNIC_CMD_CREATE_CQ, cq([&](auto &c) { c.entries = n; }), SNIC_ERR_PARAM,
                FIELD(snic_cmd_create_cq, entries), "entries");
    refuses(SNIC_CMD_CREATE_CQ, cq([&](auto &c) { c.eqn = 77; }), SNIC_ERR_HANDLE, FIELD(snic_cmd_create_cq, eqn),
            "eqn");
    for (uint32_t page : {1u, 256u, UINT32_MAX})
        refuses(SNIC_CMD_CREATE_CQ, cq([&](auto &c) { c.doorbell_page = page; }), SNIC_ERR_HANDLE,
                FIELD(snic_cmd_create_cq, doorbell_page), "page");
    struct {
        snic_page_list list;
        snic_status status;
    } lists[] = {{{ring + 64, 0, 12, 0, 0}, SNIC_ERR_PARAM},
                 {{ring, 4096, 12, 0, 0}, SNIC_ERR_PARAM},
                 {{ring, 0, 11, 0, 0}, SNIC_ERR_PARAM},
                 {{ring, 0, 64, 0, 0}, SNIC_ERR_PARAM},
                 {{ring, 0, 255, 0, 0}, SNIC_ERR_PARAM},
                 {{ring, 0, 12, 4, 0}, SNIC_ERR_PARAM},
                 {{ring, 0, 12, 255, 0}, SNIC_ERR_PARAM},
                 {{kNoRam, 0, 12, 1, 0}, SNIC_ERR_DMA},
                 {{UINT64_MAX - 4095, 0, 12, 0, 0}, SNIC_ERR_PARAM},
                 {{UINT64_MAX - 4095, 0, 12, 2, 0}, SNIC_ERR_DMA}};
    for (auto &l : lists)
        refuses(SNIC_CMD_CREATE_CQ, cq([&](auto &c) { c.pages = l.list; }), l.status, FIELD(snic_cmd_create_cq, pages),
                "page list");
}

TEST_F(Hostile, QueuePairsOfBadShapeAreRefusedFieldByField) {
    GuestQp unused;
    snic_qp_params good = a.qp_params(acq, acq, unused);
    uint64_t at = a.alloc(4096);
    auto with = [&](auto change, snic_status status, size_t field, const char *what) {
        snic_qp_params p = good;
        change(p);
        *ma.at<snic_qp_params>(at) = p;
        snic_cmd_create_qp c = {at, {}};
        refuses(SNIC_CMD_CREATE_QP, c, status, field, what);
    };
#define QP_FIELD(member, value, status) \
    with([&](snic_qp_params &p) { p.member = value; }, status, offsetof(snic_qp_params, member), #member)
    QP_FIELD(pd, 0, SNIC_ERR_HANDLE);
    QP_FIELD(send_cqn, 0, SNIC_ERR_HANDLE);
    QP_FIELD(recv_cqn, 0xFFFFFFFF, SNIC_ERR_HANDLE);
    QP_FIELD(eqn, 0, SNIC_ERR_HANDLE);
    QP_FIELD(doorbell_page, 256, SNIC_ERR_HANDLE);
    for (uint32_t n : {0u, 1u, 3u, 32768u, 0x80000000u, UINT32_MAX}) {
        QP_FIELD(sq_entries, n, SNIC_ERR_PARAM);
        QP_FIELD(rq_entries, n, SNIC_ERR_PARAM);
    }
    for (uint32_t n : {0u, 32u, 100u, 1024u, UINT32_MAX}) {
        QP_FIELD(sq_stride, n, SNIC_ERR_PARAM);
        QP_FIELD(rq_stride, n, SNIC_ERR_PARAM);
    }
    QP_FIELD(rnr_retry, 8, SNIC_ERR_PARAM);
    QP_FIELD(retry_count, 8, SNIC_ERR_PARAM);
    QP_FIELD(access, SNIC_ACCESS_LOCAL_WRITE, SNIC_ERR_PARAM);
    QP_FIELD(record, good.record + 8, SNIC_ERR_PARAM);
    QP_FIELD(record, kNoRam, SNIC_ERR_DMA);
    with([&](snic_qp_params &p) { p.sq_pages.levels = 9; }, SNIC_ERR_PARAM, offsetof(snic_qp_params, sq_pages),
         "sq_pages");
    with(
        [&](snic_qp_params &p) {
            p.rq_pages = {kNoRam, 0, 12, 1, 0};
        },
        SNIC_ERR_DMA, offsetof(snic_qp_params, rq_pages), "rq_pages");
    snic_cmd_create_qp crossing = {at + 4096 - 64, {}}, outside = {kNoRam, {}};
    refuses(SNIC_CMD_CREATE_QP, crossing, SNIC_ERR_PARAM, FIELD(snic_cmd_create_qp, params), "params across a page");
    refuses(SNIC_CMD_CREATE_QP, outside, SNIC_ERR_DMA, FIELD(snic_cmd_create_qp, params), "params outside RAM");
    EXPECT_EQ(objects(), 0u);
    EXPECT_EQ(a.handle_command(SNIC_CMD_DESTROY_CQ, acq.cqn).status, SNIC_OK)
        << "a refused queue pair still counts as a user";
    acq = a.create_cq();
}

TEST_F(Hostile, RegionsOfBadShapeAreRefused) {
    uint64_t at = a.alloc(8192);
    auto with = [&](auto change, snic_status status, size_t field, const char *what) {
        snic_cmd_register_mr c = {a.pd, SNIC_ACCESS_LOCAL_READ, at, 8192, {at, 0, 12, 0, 0}, 0, 0};
        change(c);
        refuses(SNIC_CMD_REGISTER_MR, c, status, field, what);
    };
    with([](auto &c) { c.pd = 0; }, SNIC_ERR_HANDLE, FIELD(snic_cmd_register_mr, pd), "pd");
    with([](auto &c) { c.access = 0x10; }, SNIC_ERR_PARAM, FIELD(snic_cmd_register_mr, access), "access");
    with([](auto &c) { c.length = 0; }, SNIC_ERR_PARAM, FIELD(snic_cmd_register_mr, length), "no length");
    with([](auto &c) { c.length = UINT64_MAX; }, SNIC_ERR_PARAM, FIELD(snic_cmd_register_mr, length), "length");
    with([](auto &c) { c.length = (1ull << 38) + 1; }, SNIC_ERR_PARAM, FIELD(snic_cmd_register_mr, length),
         "more than the most");
    with(
        [](auto &c) {
            c.va = UINT64_MAX - 4095;
            c.pages.offset = 0;
        },
        SNIC_ERR_PARAM, FIELD(snic_cmd_register_mr, length), "wraps");
    with([](auto &c) { c.va += 8; }, SNIC_ERR_PARAM, FIELD(snic_cmd_register_mr, pages),
         "offset differs from the address");
    with([](auto &c) { c.bound_qpn = 5; }, SNIC_ERR_HANDLE, FIELD(snic_cmd_register_mr, bound_qpn), "binding");
    with(
        [&](auto &c) {
            c.pages = {kNoRam, 0, 12, 1, 0};
        },
        SNIC_ERR_DMA, FIELD(snic_cmd_register_mr, pages), "list outside RAM");
    EXPECT_EQ(objects(), 0u);
}

TEST_F(Hostile, ListsThatNameThemselvesCostNoMoreThanTheBudget) {
    World small{2};
    snic::Config config;
    config.max_pages = 100'000;
    Machine &m = small.add(config, 8 << 20);
    SimBoard board{small, m};
    Guest g{board};
    g.start();
    uint64_t list = g.alloc(4096);
    for (uint32_t i = 0; i < SNIC_PAGE_LIST_ENTRIES; i++) m.at<uint64_t>(list)[i] = list;
    auto reg = [&](uint64_t pages) {
        snic_cmd_register_mr c = {g.pd, SNIC_ACCESS_LOCAL_READ, list, pages * 4096, {list, 0, 12, 3, 0}, 0, 0};
        return g.command(SNIC_CMD_REGISTER_MR, c);
    };
    Completion whole = reg(1ull << 26), first = reg(60'000), second = reg(60'000);
    EXPECT_EQ(whole.status, SNIC_ERR_RESOURCES);
    EXPECT_EQ(whole.detail, FIELD(snic_cmd_register_mr, pages));
    EXPECT_EQ(first.status, SNIC_OK);
    EXPECT_EQ(second.status, SNIC_ERR_RESOURCES);
    snic_cmd_deregister_mr d = {first.result[0], {}};
    EXPECT_EQ(g.command(SNIC_CMD_DEREGISTER_MR, d).status, SNIC_OK);
    EXPECT_EQ(reg(60'000).status, SNIC_OK) << "a deregistered region's share is not given back";
    m.at<uint64_t>(list)[3] = 12345;
    for (int i = 0; i < 10; i++) EXPECT_EQ(reg(30'000).status, SNIC_ERR_DMA);
    m.at<uint64_t>(list)[3] = list;
    EXPECT_EQ(reg(30'000).status, SNIC_OK) << "refused lists keep a share";
    board.write_register(SNIC_REG_CTRL, SNIC_CTRL_RESET, 4);
    g.start();
    EXPECT_EQ(reg(90'000).status, SNIC_OK) << "reset gives everything back";
}

TEST_F(Hostile, ConnectionCommandsOfBadShapeAreRefused) {
    GuestQp qp = a.create_qp(acq, acq);
    snic_cmd_connect good = {};
    good.qpn = qp.qpn;
    good.dst_ip = board_b.ip();
    good.dst_port = 1;
    good.timeout_ms = 10;
    auto with = [&](auto change, snic_status status, size_t field, const char *what) {
        snic_cmd_connect c = good;
        change(c);
        refuses(SNIC_CMD_CONNECT, c, status, field, what);
    };
    with([](auto &c) { c.qpn++; }, SNIC_ERR_HANDLE, FIELD(snic_cmd_connect, qpn), "qpn");
    with([](auto &c) { c.timeout_ms = 0; }, SNIC_ERR_PARAM, FIELD(snic_cmd_connect, timeout_ms), "no time");
    with([](auto &c) { c.timeout_ms = 60001; }, SNIC_ERR_PARAM, FIELD(snic_cmd_connect, timeout_ms), "time");
    with([](auto &c) { c.dst_port = 0; }, SNIC_ERR_PARAM, FIELD(snic_cmd_connect, dst_port), "port");
    with([](auto &c) { c.src_ip = 5; }, SNIC_ERR_PARAM, FIELD(snic_cmd_connect, src_ip), "another's address");
    with([](auto &c) { c.private_len = 257; }, SNIC_ERR_PARAM, FIELD(snic_cmd_connect, private_len), "private data");
    with([](auto &c) { c.private_len = UINT32_MAX; }, SNIC_ERR_PARAM, FIELD(snic_cmd_connect, private_len),
         "private data");
    with(
        [](auto &c) {
            c.private_len = 2;
            c.private_data = 4095;
        },
        SNIC_ERR_PARAM, FIELD(snic_cmd_connect, private_data), "across a page");
    with(
        [](auto &c) {
            c.private_len = 2;
            c.private_data = kNoRam;
        },
        SNIC_ERR_DMA, FIELD(snic_cmd_connect, private_data), "outside RAM");
    auto listen = [&](auto change, snic_status status, size_t field, const char *what) {
        snic_cmd_listen l = {};
        l.port = 5;
        l.backlog = 1;
        l.eqn = a.eqn;
        change(l);
        refuses(SNIC_CMD_LISTEN, l, status, field, what);
    };
    listen([](auto &l) { l.port = 0; }, SNIC_ERR_PARAM, FIELD(snic_cmd_listen, port), "port");
    listen([](auto &l) { l.backlog = 0; }, SNIC_ERR_PARAM, FIELD(snic_cmd_listen, backlog), "no backlog");
    listen([](auto &l) { l.backlog = 1025; }, SNIC_ERR_PARAM, FIELD(snic_cmd_listen, backlog), "backlog");
    listen([](auto &l) { l.ip = 9; }, SNIC_ERR_PARAM, FIELD(snic_cmd_listen, ip), "another's address");
    listen([](auto &l) { l.eqn = 0; }, SNIC_ERR_HANDLE, FIELD(snic_cmd_listen, eqn), "eqn");
    listen([](auto &l) { l.listener = 99; }, SNIC_ERR_HANDLE, FIELD(snic_cmd_listen, listener), "listener");
    snic_cmd_modify_qp m = {qp.qpn, SNIC_QP_RTS, {}};
    refuses(SNIC_CMD_MODIFY_QP, m, SNIC_ERR_PARAM, FIELD(snic_cmd_modify_qp, state), "a state that only the NIC sets");
    snic_cmd_query_device q = {4095, {}}, out = {kNoRam, {}};
    refuses(SNIC_CMD_QUERY_DEVICE, q, SNIC_ERR_PARAM, FIELD(snic_cmd_query_device, out), "across a page");
    refuses(SNIC_CMD_QUERY_DEVICE, out, SNIC_ERR_DMA, FIELD(snic_cmd_query_device, out), "outside RAM");
}

TEST_F(Hostile, EveryTableEndsAtItsLimit) {
    World small{3};
    snic::Config config;
    config.max_pd = config.max_cq = config.max_qp = config.max_mr = 3;
    config.doorbell_pages = 4;
    Machine &m = small.add(config, 8 << 20);
    SimBoard board{small, m};
    Guest g{board};
    g.start();
    auto until_full = [&](auto make) {
        for (int i = 0; i < 10; i++) {
            snic_status s = make();
            if (s == SNIC_ERR_LIMIT) return i;
            EXPECT_EQ(s, SNIC_OK);
        }
        return 10;
    };
    EXPECT_EQ(until_full([&] { return g.handle_command(SNIC_CMD_CREATE_PD, 0).status; }), 2);  // one is start()'s
    EXPECT_EQ(until_full([&] { return g.handle_command(SNIC_CMD_ATTACH_DOORBELL, 0).status; }), 3);
    GuestCq cq = g.create_cq();
    uint64_t ring = g.alloc(4096), record = g.alloc(4096);
    snic_cmd_create_cq c = {16, 0, {ring, 0, 12, 0, 0}, record, 0, 0, 0};
    EXPECT_EQ(until_full([&] { return g.command(SNIC_CMD_CREATE_CQ, c).status; }), 2);
    GuestQp qp;
    uint64_t params = g.alloc(4096);
    *m.at<snic_qp_params>(params) = g.qp_params(cq, cq, qp);
    snic_cmd_create_qp q = {params, {}};
    EXPECT_EQ(until_full([&] { return g.command(SNIC_CMD_CREATE_QP, q).status; }), 3);
    snic_cmd_register_mr r = {g.pd, SNIC_ACCESS_LOCAL_READ, ring, 4096, {ring, 0, 12, 0, 0}, 0, 0};
    EXPECT_EQ(until_full([&] { return g.command(SNIC_CMD_REGISTER_MR, r).status; }), 3);
}

TEST_F(Hostile, CompletionsCarryNothingThatWasThereBefore) {
    // The whole completion ring, filled with a pattern: of a slot that completes no byte of it survives.
    uint64_t acq_base = ma.nic.read_register(SNIC_REG_ACQ_BASE, 8);
    std::memset(ma.at<char>(acq_base + 64), 0xAA, 63 * 64);
    uint32_t number = a.post_command(0xFF, "", 0);
    Completion done;
    ASSERT_TRUE(board_a.run([&] { return a.completed(number, done); }));
    auto *slot = ma.at<uint8_t>(acq_base + number % 64 * 64);
    for (size_t i = 16; i < 64; i++) EXPECT_EQ(slot[i], 0) << "byte " << i;
}

// --- memory that changes or vanishes under the device
// ------------------------------------------------------------------------------

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

// --- work entries
// ----------------------------------------------------------------------------------------------------------------

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

// --- reset
// -------------------------------------------------------------------------------------------------------------------------

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
