# SPDX-License-Identifier: GPL-2.0-or-later
"""A small driver for the snic device over qtest: commands, queues and connections as docs/snic.md describes them."""
import struct

CREATE_PD, DESTROY_PD, REGISTER_MR, MODIFY_MR, DEREGISTER_MR = 0x10, 0x11, 0x20, 0x21, 0x22
CREATE_EQ, DESTROY_EQ, CREATE_CQ, DESTROY_CQ = 0x30, 0x31, 0x40, 0x41
CREATE_QP, DESTROY_QP, MODIFY_QP, QUERY_QP = 0x50, 0x51, 0x52, 0x53
LISTEN, UNLISTEN, CONNECT, ACCEPT, DISCONNECT = 0x60, 0x61, 0x62, 0x64, 0x66
OK, OPCODE, PARAM, HANDLE, LIMIT, DMA, IN_USE, STATE, UNSUPPORTED, LINK, RESOURCES = range(11)
SEND, WRITE, READ, RECV = 1, 2, 3, 4
EV_QP_FATAL, EV_CONN_REQUEST, EV_CONN_ESTABLISHED, EV_CONN_FAILED, EV_DISCONNECTED = 3, 4, 5, 6, 7
BODY = 16  # offset of a command's body


def page_list(root, offset=0, shift=12, levels=0):
    return struct.pack("<QIBBH", root, offset, shift, levels, 0)


class Queue:
    """A ring of the NIC's: entries with a phase in their last four bytes."""

    def __init__(self, machine, ring, entries, size):
        self.machine, self.ring, self.entries, self.size, self.index = machine, ring, entries, size, 0

    def take(self):
        raw = self.machine.peek(self.ring + self.index % self.entries * self.size, self.size)
        if struct.unpack_from("<I", raw, self.size - 4)[0] != self.index // self.entries + 1:
            return None
        self.index += 1
        return raw

    def wait(self):
        found = []
        self.machine.until(lambda: found.append(self.take()) or found[-1])
        return found[-1]


class Driver:
    AQ, ACQ, SIZE = 0x100000, 0x101000, 16

    def __init__(self, machine):
        self.m = machine
        machine.enable_bars()
        self.start()

    def start(self):
        self.next, self.posted = 0x200000, 0
        self.m.poke(self.ACQ, bytes(64 * self.SIZE))
        self.m.enable_nic(self.AQ, self.ACQ, self.SIZE)
        self.pd = self.command(CREATE_PD)[2][0]
        ring = self.alloc(16384)
        self.eqn = self.command(CREATE_EQ, struct.pack("<II", 256, 1) + page_list(ring) + struct.pack("<Q", self.alloc(4096)))[2][0]
        self.events = Queue(self.m, ring, 256, 64)

    def alloc(self, size):
        at = self.next
        self.next += size + 4095 & ~4095
        self.m.cmd(f"memset {at:#x} {size:#x} 0x0")
        return at

    def post(self, opcode, body=b""):
        slot = self.posted % self.SIZE
        self.m.poke(self.AQ + 64 * slot, struct.pack("<BBHIQ", opcode, 0, 0, 0, self.posted) + body.ljust(48, b"\0"))
        self.posted += 1
        self.m.write(self.m.REG + 0x48, self.posted)
        return self.posted - 1

    def command(self, opcode, body=b""):
        """Returns status, detail, results; None when no completion came."""
        number = self.post(opcode, body)
        slot, phase = self.ACQ + 64 * (number % self.SIZE), number // self.SIZE + 1
        if not self.m.until(lambda: self.m.read(slot) == phase):
            return None
        raw = self.m.peek(slot, 64)
        status, detail = struct.unpack_from("<HH", raw, 4)
        return status, detail, struct.unpack_from("<6Q", raw, 16)

    def create_cq(self, entries=64):
        ring = self.alloc(32 * entries)
        cqn = self.command(CREATE_CQ, struct.pack("<II", entries, 0) + page_list(ring) + struct.pack("<QIIQ", self.alloc(4096), 0, 0, 0))[2][0]
        return cqn, Queue(self.m, ring, entries, 32)

    def qp_params(self, cqn, **change):
        self.sq, self.rq, self.record = self.alloc(16384), self.alloc(16384), self.alloc(4096)
        p = dict(pd=self.pd, send_cqn=cqn, recv_cqn=cqn, doorbell_page=0, eqn=self.eqn, sq_entries=32, rq_entries=32, sq_stride=512,
                 rq_stride=512, rnr_retry=7, retry_count=7, access=0xC, record=self.record, sq=page_list(self.sq), rq=page_list(self.rq))
        p.update(change)
        at = self.alloc(4096)
        self.m.poke(at, struct.pack("<12IQQ", *(p[k] for k in list(p)[:12]), p["record"], 0) + p["sq"] + p["rq"])
        self.m.poke(self.record + 32, b"\1")
        return at

    def create_qp(self, cqn):
        at = self.qp_params(cqn)
        qp = dict(sq=self.sq, rq=self.rq, record=self.record, sq_pi=0, rq_pi=0)
        qp["qpn"] = self.command(CREATE_QP, struct.pack("<Q", at))[2][0]
        return qp

    def register(self, at, length, access, qpn=0):
        result = self.command(REGISTER_MR, struct.pack("<IIQQ", self.pd, access, at, length) + page_list(at & ~4095, at & 4095) + struct.pack("<II", qpn, 0))
        return result[2][0]

    def post_send(self, qp, opcode, sges, remote=0, rkey=0, wr_id=1, flags=1, num_sge=None):
        slot = qp["sq"] + 512 * (qp["sq_pi"] % 32)
        wqe = struct.pack("<BBHIQQQQ", opcode, flags, len(sges) if num_sge is None else num_sge, 0, wr_id, remote, rkey, 0)
        self.m.poke(slot, wqe + b"".join(struct.pack("<QQII", va, key, length, 0) for va, key, length in sges))
        qp["sq_pi"] += 1
        self.m.poke(qp["record"], struct.pack("<I", qp["sq_pi"] & 0xFFFFFFFF))
        self.m.write(self.m.DB, qp["qpn"])

    def event(self, kind):
        """The next event of that type; others are dropped."""
        while (e := self.events.wait()) and e[0] != kind:
            pass
        return e


def connect(a, qa, b, qb, port, ip_b=0x0A000002):
    listener = b.command(LISTEN, struct.pack("<IHHIIIIQ", 0, port, 0, 4, b.eqn, 0, 0, 0))[2][0]
    a.command(CONNECT, struct.pack("<IIIHHQII", qa["qpn"], ip_b, 0, port, 1, 0, 0, 20000))
    request = b.event(EV_CONN_REQUEST)
    if not request:
        return False
    b.command(ACCEPT, struct.pack("<IIQII", struct.unpack_from("<I", request, 16)[0], qb["qpn"], 0, 0, 0))
    good = a.event(EV_CONN_ESTABLISHED) and b.event(EV_CONN_ESTABLISHED)
    b.command(UNLISTEN, struct.pack("<I", listener))
    return bool(good)
