// SPDX-License-Identifier: GPL-2.0-or-later
// A hostile peer: any records on a link that carries a connection. Only what is exposed to that connection may change.
#include "input.h"
#include "sim/guest.h"

using namespace sim;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz::Input in(data, size);
    World world(3);
    Machine &ma = world.add({}, 512 << 10), &mb = world.add({}, 512 << 10);
    ma.share_ram = mb.share_ram = in.take<uint8_t>() & 1;
    SimBoard ba{world, ma}, bb{world, mb};
    Guest a{ba}, b{bb};
    a.start();
    b.start();
    GuestCq acq = a.create_cq(64), bcq = b.create_cq(64);
    GuestQp qa = a.create_qp(acq, acq, 8, 512), qb = b.create_qp(bcq, bcq, 8, 512);
    fuzz::require(connect(a, qa, b, qb));
    snic_cmd_listen l = {};
    l.port = 9;
    l.backlog = 2;
    l.eqn = b.eqn;
    b.command(SNIC_CMD_LISTEN, l);
    uint64_t secret = b.alloc(8192), exposed = b.alloc(8192), inbox = b.alloc(8192);
    std::memset(bb.ram(secret), 0x5A, 8192);
    uint64_t key = b.register_mr(exposed, 8192, SNIC_ACCESS_ALL, qb.qpn);
    uint64_t local = b.register_mr(inbox, 8192, SNIC_ACCESS_LOCAL_WRITE);
    for (uint64_t i = 0; i < 4; i++) b.post_recv(qb, i, {{inbox, local, 2000}});
    b.post_send(qb, SNIC_WR_RDMA_READ, 9, {{inbox, local, 100}}, 1, 2);
    uint32_t psn = in.take<uint32_t>();
    for (int n = 0; n < 40 && !in.empty(); n++) {
        uint8_t what = in.take<uint8_t>();
        std::vector<std::byte> record(sizeof(fabric_msg) + in.take<uint16_t>() % 4096);
        fabric_msg m = {};
        m.size = what & 1 ? in.take<uint32_t>() : static_cast<uint32_t>(record.size());
        m.type = in.take<uint8_t>() % 16;
        m.flags = in.take<uint8_t>();
        m.syndrome = in.take<uint8_t>();
        m.fragments = in.take<uint8_t>();
        m.dst_qpn = what & 2 ? in.take<uint32_t>() : qb.qpn;
        m.src_qpn = what & 4 ? in.take<uint32_t>() : qa.qpn;
        m.psn = what & 8 ? in.take<uint32_t>() : psn++;
        m.length = what & 16 ? in.take<uint32_t>() : static_cast<uint32_t>(record.size() - sizeof m);
        m.remote_va = what & 32 ? in.take<uint64_t>() : exposed + in.take<uint16_t>();
        m.rkey = what & 64 ? in.take<uint64_t>() : key;
        m.msg_length = in.take<uint32_t>() % 5000;
        m.msg_offset = in.take<uint8_t>();
        m.imm = in.take<uint32_t>();
        std::memcpy(record.data(), &m, sizeof m);
        in.copy(record.data() + sizeof m, record.size() - sizeof m);
        mb.nic.receive(1, record);
        mb.nic.step(8);
        if (what & 128) world.now += in.take<uint32_t>();
    }
    for (int i = 0; i < 60; i++) world.turn();
    for (uint32_t i = 0; i < 8192; i++) fuzz::require(*bb.at<uint8_t>(secret + i) == 0x5A);
    return 0;
}
