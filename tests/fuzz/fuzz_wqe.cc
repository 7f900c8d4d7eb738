// SPDX-License-Identifier: GPL-2.0-or-later
// Hostile work elements and queue records on a connected QP. Memory that no region grants must stay as it is, on both
// machines.
#include "input.h"
#include "sim/guest.h"

using namespace sim;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz::Input in(data, size);
    World world(2);
    uint8_t shape = in.take<uint8_t>();
    Machine &ma = world.add({}, 512 << 10), &mb = world.add({}, 512 << 10);
    ma.share_ram = mb.share_ram = shape & 1;
    SimBoard ba{world, ma}, bb{world, mb};
    Guest a{ba}, b{bb};
    a.start();
    b.start();
    GuestCq acq = a.create_cq(64), bcq = b.create_cq(64);
    GuestQp qa = a.create_qp(acq, acq, 8, 512), qb = b.create_qp(bcq, bcq, 8, 512);
    fuzz::require(connect(a, qa, b, qb));
    uint64_t secret_a = a.alloc(8192), granted_a = a.alloc(8192), secret_b = b.alloc(8192), granted_b = b.alloc(8192);
    std::memset(ba.ram(secret_a), 0x5A, 8192);
    std::memset(bb.ram(secret_b), 0x5A, 8192);
    uint64_t ka = a.register_mr(granted_a, 8192, SNIC_ACCESS_LOCAL_READ | SNIC_ACCESS_LOCAL_WRITE);
    uint64_t kb = b.register_mr(granted_b, 8192, SNIC_ACCESS_ALL, qb.qpn);
    for (int n = 0; n < 30 && !in.empty(); n++) {
        uint8_t what = in.take<uint8_t>();
        bool receive = what & 1;
        snic_wqe w = {};
        w.opcode = in.take<uint8_t>() % 6;
        w.flags = in.take<uint8_t>();
        w.num_sge = what & 2 ? in.take<uint16_t>() : static_cast<uint16_t>(in.take<uint8_t>() % 18);
        w.wr_id = n;
        w.remote_va = what & 4 ? in.take<uint64_t>() : granted_b + in.take<uint16_t>();
        w.rkey = what & 8 ? in.take<uint64_t>() : kb;
        for (uint32_t i = 0; i < w.num_sge && i < SNIC_MAX_SGE; i++) {
            w.sge[i].va =
                what & 16 ? in.take<uint64_t>() : (receive ? granted_b : granted_a) + in.take<uint16_t>() % 9000;
            w.sge[i].key = what & 32 ? in.take<uint64_t>() : receive ? kb : ka;
            w.sge[i].length = what & 64 ? in.take<uint32_t>() : in.take<uint16_t>();
        }
        GuestQp &qp = receive ? qb : qa;
        Board &board = receive ? static_cast<Board &>(bb) : ba;
        uint32_t &pi = receive ? qp.rq_pi : qp.sq_pi;
        std::memcpy(board.ram((receive ? qp.rq : qp.sq) + pi % 8 * 512), &w, sizeof w);
        pi += what & 128 ? in.take<uint8_t>() : 1;
        auto *record = board.at<snic_qp_record>(qp.record);
        (receive ? record->rq_pi : record->sq_pi) = pi;
        if (!receive) ma.nic.doorbell(0, SNIC_DB_SQ, qp.qpn);
        for (int i = 0; i < 4; i++) world.turn();
        snic_cqe c;
        while (a.poll(acq, c) || b.poll(bcq, c)) {
        }
    }
    for (int i = 0; i < 100; i++) world.turn();
    for (uint32_t i = 0; i < 8192; i++)
        fuzz::require(*ba.at<uint8_t>(secret_a + i) == 0x5A && *bb.at<uint8_t>(secret_b + i) == 0x5A);
    return 0;
}
