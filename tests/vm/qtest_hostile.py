#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""A hostile guest, through QEMU: commands, doorbells and work entries that lie, resets and unplugging in the middle of transfers. The
model's own tests go through more of them; these show that nothing between a guest and the model makes a difference."""
import json
import os
import socket
import struct
import subprocess
import tempfile

from qtest_driver import *  # pylint: disable=wildcard-import,unused-wildcard-import
from qtest_machine import QEMU, Machine, check, finish

NO_RAM = 0x700000000000
work = tempfile.mkdtemp(prefix="sanlab-hostile-")
fabric = f"{work}/fabric"
manager = subprocess.Popen([os.path.join(os.path.dirname(QEMU), "sanfabricd"), "-q", "--with-parent", fabric])


def fabric_nics():
    try:
        s = socket.socket(socket.AF_UNIX)
        s.connect(fabric + ".ctl")
        s.sendall(b'{"cmd":"status"}\n')
        return len(json.loads(s.makefile().readline())["nics"])
    except OSError:
        return -1


def nic(number, extra=""):
    return f"snic,ip=10.0.0.{number},name=nic{number},id=snic0,addr=0x10,fabric={fabric},max-pages=100000{extra}"


a_machine = Machine(nic(1))
a_machine.until(lambda: fabric_nics() >= 0)
b_machine = Machine(nic(2))
check("two devices join the fabric", a_machine.until(lambda: fabric_nics() == 2))
a, b = Driver(a_machine), Driver(b_machine)
port = 7000


def works():
    """A fresh connection carries 16 KiB."""
    global port
    port += 1
    cq_a, done = a.create_cq()
    cq_b, _ = b.create_cq()
    qa, qb = a.create_qp(cq_a), b.create_qp(cq_b)
    if not connect(a, qa, b, qb, port):
        return False
    source, target = a.alloc(16384), b.alloc(16384)
    data = bytes((i * 7 + port) & 255 for i in range(16384))
    a_machine.poke(source, data)
    a.post_send(qa, WRITE, [(source, a.register(source, 16384, 1), 16384)], target, b.register(target, 16384, 0xF, qb["qpn"]))
    c = done.wait()
    good = bool(c) and c[21] == 0 and b_machine.peek(target, 16384) == data
    a.command(DESTROY_QP, struct.pack("<I", qa["qpn"]))
    b.command(DESTROY_QP, struct.pack("<I", qb["qpn"]))
    a.next, b.next = 0x800000, 0x800000  # what follows may use the memory again
    return good


check("they carry data", works())

# --- commands: name, opcode, body, status, detail ---------------------------------------------------------------------------------
at = a.alloc(65536)
cqn, _ = a.create_cq()
self_list = a.alloc(4096)
a_machine.poke(self_list, struct.pack("<Q", self_list) * 512)


def eq(entries=16, vector=1, pages=page_list(at), record=at):
    return struct.pack("<II", entries, vector) + pages + struct.pack("<Q", record)


def cq(entries=16, eqn=0, pages=page_list(at), record=at, page=0):
    return struct.pack("<II", entries, eqn) + pages + struct.pack("<QIIQ", record, page, 0, 0)


def mr(pd=a.pd, access=1, va=at, length=8192, pages=page_list(at), qpn=0):
    return struct.pack("<IIQQ", pd, access, va, length) + pages + struct.pack("<II", qpn, 0)


def qp(**change):
    return struct.pack("<Q", a.qp_params(cqn, **change))


cases = [
    ("an opcode that does not exist", 0xFF, b"", OPCODE, 0),
    ("the opcode 0", 0x00, b"", OPCODE, 0),
    ("a queue of no entries", CREATE_EQ, eq(entries=0), PARAM, BODY),
    ("a queue of 2^31 entries", CREATE_CQ, cq(entries=1 << 31), PARAM, BODY),
    ("a queue of 17 entries", CREATE_CQ, cq(entries=17), PARAM, BODY),
    ("a vector that does not exist", CREATE_EQ, eq(vector=4), PARAM, BODY + 4),
    ("an event queue that does not exist", CREATE_CQ, cq(eqn=99), HANDLE, BODY + 4),
    ("a doorbell page that is not attached", CREATE_CQ, cq(page=7), HANDLE, BODY + 32),
    ("a page list of 4 levels", CREATE_CQ, cq(pages=page_list(at, levels=4)), PARAM, BODY + 8),
    ("a page shift of 255", CREATE_CQ, cq(pages=page_list(at, shift=255)), PARAM, BODY + 8),
    ("a page list outside RAM", CREATE_CQ, cq(pages=page_list(NO_RAM, levels=1)), DMA, BODY + 8),
    ("a page list in the device's registers", CREATE_CQ, cq(pages=page_list(Machine.REG, levels=1)), DMA, BODY + 8),
    ("a region of no bytes", REGISTER_MR, mr(length=0), PARAM, BODY + 16),
    ("a region of 2^64 - 1 bytes", REGISTER_MR, mr(length=2**64 - 1), PARAM, BODY + 16),
    ("a region that wraps", REGISTER_MR, mr(va=2**64 - 4096, length=8192), PARAM, BODY + 16),
    ("rights that do not exist", REGISTER_MR, mr(access=0x10), PARAM, BODY + 4),
    ("another's protection domain", REGISTER_MR, mr(pd=12345), HANDLE, BODY),
    ("a list that names itself", REGISTER_MR, mr(va=0, length=1 << 38, pages=page_list(self_list, levels=3)), RESOURCES, BODY + 24),
    ("a key of nothing", DEREGISTER_MR, struct.pack("<Q", 2**64 - 1), HANDLE, BODY),
    ("a key 0", MODIFY_MR, struct.pack("<QII", 0, 0, 0), HANDLE, BODY),
    ("parameters across a page", CREATE_QP, struct.pack("<Q", at + 4096 - 64), PARAM, BODY),
    ("parameters outside RAM", CREATE_QP, struct.pack("<Q", NO_RAM), DMA, BODY),
    ("parameters in the device's doorbells", CREATE_QP, struct.pack("<Q", Machine.DB), DMA, BODY),
    ("a send queue of 3 entries", CREATE_QP, qp(sq_entries=3), PARAM, 20),
    ("a send queue of 2^32 - 1 entries", CREATE_QP, qp(sq_entries=2**32 - 1), PARAM, 20),
    ("a stride of 7 bytes", CREATE_QP, qp(rq_stride=7), PARAM, 32),
    ("a record outside RAM", CREATE_QP, qp(record=NO_RAM), DMA, 48),
    ("a record in the device's registers", CREATE_QP, qp(record=Machine.REG), DMA, 48),
    ("a completion queue that does not exist", CREATE_QP, qp(send_cqn=0), HANDLE, 4),
    ("a queue pair that does not exist", DESTROY_QP, struct.pack("<I", 2**32 - 1), HANDLE, BODY),
    ("a protection domain in use", DESTROY_PD, struct.pack("<I", a.pd), IN_USE, BODY),
]
for name, opcode, body, status, detail in cases:
    result = a.command(opcode, body)
    check(f"refused: {name}", result is not None and result[:2] == (status, detail) and not any(result[2]), result)
check("destroyed twice", [a.command(DESTROY_CQ, struct.pack("<I", cqn))[0] for _ in range(2)] == [OK, HANDLE])
check("and the device works", works())

# --- work entries, on a connection each --------------------------------------------------------------------------------------------
buffer = a.alloc(8192)
key = a.register(buffer, 8192, 3)
target = b.alloc(8192)
pattern = bytes(range(256)) * 32
entries = [  # name, opcode, sges, remote, rkey (None: the right one), flags, num_sge, statuses
    ("an opcode that does not exist", 9, [], 0, 0, 1, None, {2}),
    ("a receive in the send queue", RECV, [], 0, 0, 1, None, {2}),
    ("flags that do not exist", WRITE, [], 0, 0, 0xF1, None, {2}),
    ("65,535 pieces", WRITE, [], target, None, 1, 65535, {2}),
    ("17 pieces", WRITE, [(buffer, key, 8)] * 16, target, None, 1, 17, {2}),
    ("pieces whose lengths overflow", WRITE, [(buffer, key, 2**32 - 1)] * 16, target, None, 1, None, {1, 3}),
    ("a piece beyond its region", WRITE, [(buffer + 8191, key, 2)], target, None, 1, None, {3}),
    ("a piece that wraps", WRITE, [(2**64 - 1, key, 2)], target, None, 1, None, {3}),
    ("a local key of nothing", WRITE, [(buffer, 2**64 - 1, 8)], target, None, 1, None, {3}),
    ("a remote key of nothing", WRITE, [(buffer, key, 8)], target, 2**64 - 1, 1, None, {6}),
    ("a write one byte beyond", WRITE, [(buffer, key, 8)], target + 4096 - 7, None, 1, None, {6}),
    ("a write below", WRITE, [(buffer, key, 8)], target - 1, None, 1, None, {6}),
    ("a remote address that wraps", READ, [(buffer, key, 8)], 2**64 - 4, None, 1, None, {6}),
]
for name, opcode, sges, remote, rkey, flags, num_sge, statuses in entries:
    port += 1
    cq_a, done = a.create_cq()
    cq_b, _ = b.create_cq()
    qa, qb = a.create_qp(cq_a), b.create_qp(cq_b)
    b_machine.poke(target - 4096, pattern + pattern[:4096])
    if not connect(a, qa, b, qb, port):
        check(f"refused: {name}", False, "cannot connect")
        continue
    right = b.register(target, 4096, 0xF, qb["qpn"])
    a.post_send(qa, opcode, sges, remote, right if rkey is None else rkey, flags=flags, num_sge=num_sge)
    c = done.wait()
    good = bool(c) and c[21] in statuses and b_machine.peek(target - 4096, 12288) == pattern + pattern[:4096]
    check(f"refused: {name}", good, f"status {c[21] if c else 'none'}")
check("and the devices work", works())

# --- a producer index that never was, doorbells of everything ----------------------------------------------------------------------
port += 1
cq_a, _ = a.create_cq()
cq_b, _ = b.create_cq()
qa, qb = a.create_qp(cq_a), b.create_qp(cq_b)
check("connected", connect(a, qa, b, qb, port))
a_machine.poke(qa["record"], struct.pack("<I", 0x40000000))
a_machine.write(a_machine.DB, qa["qpn"])
e = a.event(EV_QP_FATAL)
check("a producer index beyond the ring fails the queue pair", bool(e) and struct.unpack_from("<I", e, 4)[0] == qa["qpn"] and e[2] == 2)
for page in (0, 1, 255):
    for offset in (0, 4, 8, 4092):
        for value in (0, qa["qpn"], 0xFFFFFFFF):
            for size in (1, 2, 4, 8):
                a_machine.write(a_machine.DB + 4096 * page + offset, value, size)
check("and the devices work", works())

# --- reset and unplug in the middle of transfers ----------------------------------------------------------------------------------
bad = []
for round_number in range(25):
    port += 1
    cq_a, done = a.create_cq()
    cq_b, b_done = b.create_cq()
    qa, qb = a.create_qp(cq_a), b.create_qp(cq_b)
    if not connect(a, qa, b, qb, port):
        bad.append((round_number, "connect"))
        break
    source, sink = a.alloc(1 << 20), b.alloc(1 << 20)
    akey, bkey = a.register(source, 1 << 20, 3), b.register(sink, 1 << 20, 0xF, qb["qpn"])
    for i in range(16):
        a.post_send(qa, (WRITE, READ)[i % 2], [(source, akey, 1 << 20)], sink, bkey, wr_id=i)
    if round_number % 2:
        a_machine.qmp("system_reset")
        a_machine.enable_bars()
    else:
        a_machine.reset_nic()
    a_machine.cmd(f"memset {source:#x} {1 << 20:#x} 0x77")
    if not b.event(EV_DISCONNECTED):
        bad.append((round_number, "the peer was not told"))
    if a_machine.peek(source, 1 << 20) != b"\x77" * (1 << 20):
        bad.append((round_number, "memory changed after the reset"))
    a.start()
    b.next = 0x800000
check("25 resets in the middle of transfers", not bad, bad)
check("and the devices work", works())
a_machine.close()
check("a machine that ends leaves the fabric", b_machine.until(lambda: fabric_nics() == 1))

c_machine = Machine(device=None, extra=["-device", "pcie-root-port,id=rp0,slot=1"])
check("hot plug joins", "return" in c_machine.qmp("device_add", driver="snic", id="snic0", bus="rp0", ip="10.0.0.1", fabric=fabric) and
      c_machine.until(lambda: fabric_nics() == 2))
c_machine.qmp("device_del", id="snic0")
c_machine.qmp("system_reset")
check("surprise removal leaves the fabric", b_machine.until(lambda: fabric_nics() == 1) and c_machine.alive())
c_machine.close()
check("the other device lives", b_machine.alive() and b.command(CREATE_PD)[0] == OK)
b_machine.close()
manager.terminate()
manager.wait(10)
os.rmdir(work)
finish()
