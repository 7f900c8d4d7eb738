// SPDX-License-Identifier: GPL-2.0-or-later
// What a hostile guest tries with registers and commands: each a named status and nothing else.
#include "hostile_guest.h"

using namespace sim;

namespace {

// --- registers ------------------------------------------------------------------------------------------------------

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

// --- commands -------------------------------------------------------------------------------------------------------

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

}  // namespace
