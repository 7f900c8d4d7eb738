// SPDX-License-Identifier: GPL-2.0-or-later
// What a hostile peer puts on the wire: records that are malformed, out of place, or lie about memory. Nothing outside
// what was granted is touched, at worst the connection of that peer ends, and the device goes on.
#include <gtest/gtest.h>

#include "sim/guest.h"

using namespace sim;

namespace {

struct HostilePeer : ::testing::TestWithParam<bool> {  // parameter: RAM is shared (direct copies)
    World world{1};
    Machine &evil = world.add(), &victim = world.add(), &other = world.add();
    SimBoard board_e{world, evil}, board_v{world, victim}, board_o{world, other};
    Guest e{board_e}, v{board_v}, o{board_o};
    GuestCq ecq, vcq, ocq;
    GuestQp qe, qv;
    static constexpr uint32_t kBuf = 64 << 10;
    uint64_t ebuf = 0, vbuf = 0, ekey = 0, vkey = 0;
    static constexpr snic::PeerId kEvil = 1, kOther = 3;  // as the victim knows them
    uint32_t epsn = 0;                                    // what the victim expects next

    void SetUp() override {
        evil.share_ram = victim.share_ram = other.share_ram = GetParam();
        e.start();
        v.start();
        o.start();
        ecq = e.create_cq();
        vcq = v.create_cq();
        ocq = o.create_cq();
        ebuf = e.alloc(kBuf);
        vbuf = v.alloc(kBuf);
        std::memset(evil.at<char>(ebuf), 0x66, kBuf);
        ekey = e.register_mr(ebuf, kBuf, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
        join();
    }
    void TearDown() override {
        EXPECT_EQ(victim.violations, 0u);
        // An honest peer is served.
        EXPECT_TRUE(carries_data(o, ocq, v, vcq)) << "the victim is of no use after that";
    }
    void join() {
        qe = e.create_qp(ecq, ecq);
        qv = v.create_qp(vcq, vcq);
        ASSERT_TRUE(connect(e, qe, v, qv));
        // A read-write window in the middle; all around it must stay as it is.
        vkey = v.register_mr(vbuf + 16384, 16384, SNIC_ACCESS_ALL, qv.qpn);
        std::memset(victim.at<char>(vbuf), 0, kBuf);
        // One real segment tells which number comes next.
        e.post_send(qe, SNIC_WR_RDMA_WRITE, 1, {}, 0, 0);
        snic_cqe c;
        ASSERT_TRUE(e.wait(ecq, c));
        auto j = evil.nic.state_json();
        size_t at = j.find("\"sq-psn\":", j.find("\"lqpn\":" + std::to_string(qe.qpn)));
        epsn = static_cast<uint32_t>(std::stoul(j.substr(at + 9)));
    }
    fabric_msg message(uint8_t type) {
        fabric_msg m = {};
        m.type = type;
        m.flags = FABRIC_FLAG_FIRST | FABRIC_FLAG_LAST | FABRIC_FLAG_ACK_REQ;
        m.dst_qpn = qv.qpn;
        m.src_qpn = qe.qpn;
        m.psn = epsn;
        m.remote_va = vbuf + 16384;
        m.rkey = vkey;
        return m;
    }
    // As it arrives at the victim. `size`: what the header claims; 0: the truth.
    void inject(fabric_msg m, const std::vector<std::byte> &tail, snic::PeerId from = kEvil, uint32_t size = 0) {
        std::vector<std::byte> record(sizeof m + tail.size());
        m.size = size ? size : static_cast<uint32_t>(record.size());
        std::memcpy(record.data(), &m, sizeof m);
        if (!tail.empty()) std::memcpy(record.data() + sizeof m, tail.data(), tail.size());
        victim.nic.receive(from, record);
        for (int i = 0; i < 4; i++) victim.nic.step(16);
    }
    static std::vector<std::byte> bytes(size_t n) { return std::vector<std::byte>(n, std::byte{0xEE}); }
    template <typename T>
    static std::vector<std::byte> as_bytes(const std::vector<T> &items) {
        std::vector<std::byte> out(items.size() * sizeof(T));
        if (!out.empty()) std::memcpy(out.data(), items.data(), out.size());
        return out;
    }
    bool untouched() {
        for (uint32_t i = 0; i < kBuf; i++)
            if (*victim.at<uint8_t>(vbuf + i)) return false;
        return true;
    }
    uint64_t state_of(GuestQp &q) { return v.handle_command(SNIC_CMD_QUERY_QP, q.qpn).result[0]; }
    // The victim refuses: its memory is as it was, its side of that connection is over.
    void expect_refused(const char *what) {
        EXPECT_TRUE(untouched()) << what;
        EXPECT_EQ(state_of(qv), SNIC_QP_ERROR) << what;
        join();
    }
    void expect_ignored(const char *what) {
        EXPECT_TRUE(untouched()) << what;
        EXPECT_EQ(state_of(qv), SNIC_QP_RTS) << what;
    }
};

TEST_P(HostilePeer, RecordsThatAreNoRecordsAreIgnored) {
    for (size_t n : {size_t{0}, size_t{1}, size_t{63}}) victim.nic.receive(kEvil, bytes(n));
    expect_ignored("shorter than a header");
    for (uint32_t size : {1u, 63u, 65u, 0x80000000u, UINT32_MAX}) inject(message(FABRIC_WRITE), {}, kEvil, size);
    expect_ignored("a size that is not the record's");
    for (unsigned type : {0u, 1u, 14u, 100u, 255u}) inject(message(static_cast<uint8_t>(type)), bytes(64));
    expect_ignored("types that do not exist");
    fabric_msg m = message(FABRIC_WRITE);
    m.length = 64;
    m.crc = 0x12345678;
    inject(m, bytes(64));
    expect_ignored("a wrong checksum");
}

TEST_P(HostilePeer, RecordsForSomeoneElseAreIgnored) {
    fabric_msg m = message(FABRIC_WRITE);
    m.length = 64;
    for (uint32_t qpn : {0u, qv.qpn ^ 0x00100000u, 0xFFFFFFFFu}) {
        fabric_msg k = m;
        k.dst_qpn = qpn;
        inject(k, bytes(64));
        k = m;
        k.src_qpn = qpn;
        inject(k, bytes(64));
    }
    inject(m, bytes(64), kOther);  // the right numbers, from another NIC
    expect_ignored("numbers of another connection");
}

TEST_P(HostilePeer, SequenceNumbersFromAnywhereMoveNothing) {
    for (uint32_t psn : {epsn + 1, epsn + 1000, epsn + 0x7FFFFFFF, epsn - 1, epsn - 1000, epsn - 0x7FFFFFFF}) {
        fabric_msg m = message(FABRIC_WRITE);
        m.psn = psn;
        m.length = 64;
        inject(m, bytes(64));
    }
    expect_ignored("numbers ahead and behind");
}

TEST_P(HostilePeer, LengthsThatLieAreRefused) {
    for (uint8_t type : {FABRIC_WRITE, FABRIC_SEND})
        for (uint32_t length : {63u, 65u, FABRIC_PAYLOAD_SEGMENT + 1, 0x80000000u, UINT32_MAX}) {
            v.post_recv(qv, 1, {{vbuf + 16384, vkey, 4096}});
            fabric_msg m = message(type);
            m.length = m.msg_length = length;
            inject(m, bytes(64));
            expect_refused("a length that is not the payload's");
        }
    for (uint32_t length : {FABRIC_PAYLOAD_SEGMENT + 1, 0x80000000u, UINT32_MAX}) {
        fabric_msg m = message(FABRIC_READ);
        m.length = length;
        inject(m, {});
        expect_refused("a read of more than a segment");
    }
    fabric_msg m = message(FABRIC_READ);
    m.length = 64;
    inject(m, bytes(64));
    expect_refused("a read that brings data");
}

TEST_P(HostilePeer, KeysAndBoundsThatLieAreRefused) {
    uint64_t base = vbuf + 16384;
    struct {
        uint64_t va, key;
        uint32_t length;
    } cases[] = {
        {base - 1, vkey, 64}, {base + 16384 - 63, vkey, 64}, {base + 16384, vkey, 1},       {UINT64_MAX - 10, vkey, 64},
        {0, vkey, 1},         {base, vkey ^ 1ull << 32, 64}, {base, vkey ^ 1ull << 63, 64}, {base, vkey + 1, 64},
        {base, 0, 64},        {base, UINT64_MAX, 64},        {base, vkey & UINT32_MAX, 64}};
    for (auto &k : cases)
        for (uint8_t type : {FABRIC_WRITE, FABRIC_READ}) {
            uint64_t key = k.key == vkey ? vkey : k.key;  // join() changes vkey
            fabric_msg m = message(type);
            m.remote_va = k.va;
            m.rkey = &k < cases + 5 ? vkey : key;
            m.length = k.length;
            inject(m, type == FABRIC_WRITE ? bytes(k.length) : std::vector<std::byte>{});
            expect_refused("key or bounds");
        }
}

TEST_P(HostilePeer, FragmentsThatLieAreRefused) {
    uint64_t ram = evil.ram.size();
    std::vector<std::vector<fabric_fragment>> lists = {
        {},
        {{0, 32, 0, 0}},
        {{0, 65, 0, 0}},
        {{0, 32, 0, 0}, {0, 33, 0, 0}},
        {{ram, 64, 0, 0}},
        {{ram - 63, 64, 0, 0}},
        {{UINT64_MAX, 64, 0, 0}},
        {{UINT64_MAX - 63, 64, 0, 0}},
        {{0, 64, 1, 0}},
        {{0, 64, 8, 0}},
        {{0, 64, UINT16_MAX, 0}},
        {{0, UINT32_MAX, 0, 0}, {0, 65, 0, 0}},
    };
    for (auto &list : lists)
        for (uint8_t type : {FABRIC_WRITE, FABRIC_READ}) {
            fabric_msg m = message(type);
            m.flags |= FABRIC_FLAG_DIRECT;
            m.length = 64;
            m.fragments = static_cast<uint8_t>(list.size());
            inject(m, as_bytes(list));
            expect_refused("fragments");
        }
    for (unsigned count : {1u, 129u, 255u}) {
        fabric_msg m = message(FABRIC_WRITE);
        m.flags |= FABRIC_FLAG_DIRECT;
        m.length = 64;
        m.fragments = static_cast<uint8_t>(count);
        inject(m, count == 1 ? bytes(8) : bytes(count * sizeof(fabric_fragment)));
        expect_refused("a number of fragments");
    }
}

TEST_P(HostilePeer, SendsInPiecesThatDoNotFitAreRefused) {
    auto piece = [&](uint8_t flags, uint32_t length, uint32_t offset, uint32_t whole) {
        fabric_msg m = message(FABRIC_SEND);
        m.flags = flags;
        m.length = length;
        m.msg_offset = offset;
        m.msg_length = whole;
        inject(m, bytes(length));
        epsn++;
    };
    const uint8_t first = FABRIC_FLAG_FIRST, last = FABRIC_FLAG_LAST;
    struct {
        uint8_t flags;
        uint32_t length, offset, whole;
    } seconds[] = {{first, 64, 0, 128}, {last, 64, 32, 128},         {last, 63, 64, 128},       {0, 64, 64, 128},
                   {last, 64, 64, 256}, {last, 64, UINT32_MAX, 128}, {last, 64, 64, UINT32_MAX}};
    for (auto &s : seconds) {
        uint64_t at = v.alloc(4096), key = v.register_mr(at, 4096, SNIC_ACCESS_LOCAL_WRITE);
        v.post_recv(qv, 1, {{at, key, 128}});
        piece(first, 64, 0, 128);
        piece(s.flags, s.length, s.offset, s.whole);
        for (uint32_t i = 128; i < 4096; i++) ASSERT_EQ(*victim.at<uint8_t>(at + i), 0) << "beyond the receive";
        expect_refused("a second piece");
    }
    v.post_recv(qv, 1, {{vbuf + 16384, vkey, 4096}});
    piece(last, 64, 64, 128);
    expect_refused("a message without a beginning");
    v.post_recv(qv, 1, {{vbuf + 16384, vkey, 128}});
    piece(first, 64, 0, UINT32_MAX);
    expect_refused("a message longer than any");
    uint64_t at = v.alloc(4096), key = v.register_mr(at, 4096, SNIC_ACCESS_LOCAL_WRITE);
    v.post_recv(qv, 1, {{at, key, 128}});
    piece(first, 64, 0, 128);
    fabric_msg m = message(FABRIC_WRITE);
    m.length = 64;
    inject(m, bytes(64));
    expect_refused("a write inside a message");
}

TEST_P(HostilePeer, AnswersToQuestionsNobodyAskedAreIgnored) {
    for (uint32_t psn : {0u, epsn, epsn + 100, UINT32_MAX}) {
        for (uint8_t type : {FABRIC_ACK, FABRIC_NAK, FABRIC_READ_RESPONSE})
            for (unsigned syndrome : {0u, 1u, 2u, 3u, 4u, 5u, 77u, 255u}) {
                fabric_msg m = message(type);
                m.psn = psn;
                m.syndrome = static_cast<uint8_t>(syndrome);
                m.length = 64;
                inject(m, type == FABRIC_READ_RESPONSE ? bytes(64) : std::vector<std::byte>{});
            }
    }
    expect_ignored("nothing is outstanding");
}

TEST_P(HostilePeer, ReadResponsesThatLieTouchOnlyWhatWasAskedFor) {
    // The victim reads; the evil one answers something else than it should.
    uint64_t at = v.alloc(8192), key = v.register_mr(at, 8192, SNIC_ACCESS_LOCAL_WRITE);
    for (uint32_t length : {0u, 63u, 65u, 4096u}) {
        if (state_of(qv) != SNIC_QP_RTS) join();
        std::memset(victim.at<char>(at), 0, 8192);
        v.post_send(qv, SNIC_WR_RDMA_READ, 9, {{at, key, 64}}, ebuf, ekey);
        victim.nic.step(16);
        auto j = victim.nic.state_json();
        size_t where = j.find("\"una-psn\":", j.find("\"lqpn\":" + std::to_string(qv.qpn)));
        fabric_msg m = message(FABRIC_READ_RESPONSE);
        m.psn = static_cast<uint32_t>(std::stoul(j.substr(where + 10)));
        m.length = length;
        inject(m, bytes(length));
        for (uint32_t i = 64; i < 8192; i++)
            ASSERT_EQ(*victim.at<uint8_t>(at + i), 0) << length << " bytes, byte " << i;
        snic_cqe c;
        ASSERT_TRUE(v.wait(vcq, c)) << length;
        EXPECT_NE(c.status, SNIC_WC_SUCCESS) << "the evil one never granted that read";
    }
}

TEST_P(HostilePeer, ConnectionMessagesThatLieEndNothingOfOthers) {
    fabric_cm cm = {};
    cm.src_ip = board_e.ip();
    cm.dst_ip = board_v.ip();
    auto send = [&](uint8_t type, uint32_t private_len, size_t tail, snic::PeerId from, uint64_t connection) {
        fabric_msg m = message(type);
        cm.private_len = private_len;
        cm.connection = connection;
        std::vector<std::byte> t(sizeof cm + tail, std::byte{0x77});
        std::memcpy(t.data(), &cm, sizeof cm);
        inject(m, t, from);
    };
    for (uint8_t type : {FABRIC_CM_REQ, FABRIC_CM_REP, FABRIC_CM_RTU, FABRIC_CM_REJ, FABRIC_CM_DREQ, FABRIC_CM_DREP}) {
        for (uint64_t connection : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) {
            send(type, 0, 0, kOther, connection);  // guessed by a NIC that is not the peer
            send(type, 0, 0, kEvil, connection);   // guessed by the peer, of a connection that it does not have
            send(type, 257, 257, kEvil, connection);
            send(type, 256, 255, kEvil, connection);
            send(type, UINT32_MAX, 0, kEvil, connection);
        }
        fabric_msg m = message(type);
        for (size_t n : {size_t{0}, size_t{1}, sizeof cm - 1}) inject(m, bytes(n));
    }
    expect_ignored("connection messages");
}

TEST_P(HostilePeer, FloodOfConnectionRequestsFillsTheBacklogAndNothingElse) {
    snic_cmd_listen l = {};
    l.port = 5;
    l.backlog = 4;
    l.eqn = v.eqn;
    uint32_t listener = static_cast<uint32_t>(v.command(SNIC_CMD_LISTEN, l).result[0]);
    for (uint64_t i = 1; i <= 5000; i++) {
        fabric_msg m = message(FABRIC_CM_REQ);
        fabric_cm cm = {i, board_e.ip(), board_v.ip(), 1, 5, 256, 0};
        std::vector<std::byte> t(sizeof cm + 256, std::byte{1});
        std::memcpy(t.data(), &cm, sizeof cm);
        inject(m, t);
    }
    auto j = victim.nic.state_json();
    EXPECT_NE(j.find("\"request\":4"), std::string::npos) << "count of pending requests";
    EXPECT_EQ(v.handle_command(SNIC_CMD_UNLISTEN, listener).status, SNIC_OK);
    v.poll_events();
    EXPECT_EQ(v.events.size(), 4u);
    v.events.clear();
    expect_ignored("a flood of requests");
}

INSTANTIATE_TEST_SUITE_P(Memory, HostilePeer, ::testing::Bool(),
                         [](const auto &info) { return std::string(info.param ? "Shared" : "Private"); });

}  // namespace
