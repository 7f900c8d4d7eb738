#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The device inside QEMU, without a guest: qtest plays a hostile one, QMP the administrator. Prints ok / not ok lines and the total."""
import json
import os
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time

QEMU = sys.argv[1]
passed = failed = 0


def check(name, good, detail=""):
    global passed, failed
    print(("ok " if good else "not ok ") + name + ("" if good else f": {detail}"), flush=True)
    passed, failed = passed + bool(good), failed + (not good)


class Machine:
    REG, DB, MSIX = 0xE0000000, 0xE0100000, 0xE0300000

    def __init__(self, device="snic,ip=10.0.0.1,id=snic0,addr=0x10", extra=()):
        self.dir = tempfile.mkdtemp(prefix="sanlab-qtest-")
        paths = {n: f"{self.dir}/{n}" for n in ("qtest", "qmp")}
        listeners = {}
        for n, p in paths.items():
            listeners[n] = socket.socket(socket.AF_UNIX)
            listeners[n].bind(p)
            listeners[n].listen(1)
            listeners[n].settimeout(20)
        args = [QEMU, "-nodefaults", "-display", "none", "-machine", "q35", "-accel", "qtest", "-m", "64M",
                "-object", "memory-backend-memfd,id=ram,size=64M,share=on", "-machine", "memory-backend=ram",
                "-qtest", f"unix:{paths['qtest']}", "-qtest-log", "/dev/null", "-qmp", f"unix:{paths['qmp']}", *extra]
        if device:
            args += ["-device", device]
        self.process = subprocess.Popen(args, stderr=subprocess.PIPE, text=True)
        self.qtest = listeners["qtest"].accept()[0].makefile("rw")
        self.qmp_file = listeners["qmp"].accept()[0].makefile("rw")
        self.qmp_file.readline()
        self.qmp("qmp_capabilities")

    def cmd(self, line):
        self.qtest.write(line + "\n")
        self.qtest.flush()
        while True:
            answer = self.qtest.readline()
            if not answer:
                raise RuntimeError("QEMU is gone: " + self.process.stderr.read()[-500:])
            if answer.startswith(("OK", "FAIL")):
                return answer.split()

    def qmp(self, command, **arguments):
        self.qmp_file.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.qmp_file.flush()
        while True:
            answer = json.loads(self.qmp_file.readline())
            if "return" in answer or "error" in answer:
                return answer

    def config(self, offset, value):
        self.cmd(f"outl 0xcf8 {0x80000000 | 0x10 << 11 | offset:#x}")
        self.cmd(f"outl 0xcfc {value:#x}")

    def enable_bars(self):
        for bar, at in ((0x10, self.REG), (0x18, self.DB), (0x20, self.MSIX)):
            self.config(bar, at)
            self.config(bar + 4, 0)
        self.config(0x04, 0x6)  # memory, bus master

    def write(self, at, value, size=4):
        self.cmd(f"write{ {1: 'b', 2: 'w', 4: 'l', 8: 'q'}[size]} {at:#x} {value:#x}")

    def read(self, at, size=4):
        return int(self.cmd(f"read{ {1: 'b', 2: 'w', 4: 'l', 8: 'q'}[size]} {at:#x}")[1], 16)

    def poke(self, at, data):
        self.cmd(f"write {at:#x} {len(data):#x} 0x{data.hex()}")

    def until(self, condition, seconds=5):
        end = time.time() + seconds
        while not condition():
            if time.time() > end:
                return False
            time.sleep(0.005)
        return True

    def reset_nic(self):
        self.write(self.REG + 0x08, 2)
        return self.until(lambda: self.read(self.REG + 0x0C) & 2 == 0)

    def enable_nic(self, aq=0x100000, acq=0x101000, size=16):
        self.write(self.REG + 0x34, size)
        self.write(self.REG + 0x38, aq, 8)
        self.write(self.REG + 0x40, acq, 8)
        self.write(self.REG + 0x08, 1)
        return self.until(lambda: self.read(self.REG + 0x0C) & (1 | 8))

    def state(self):
        return json.loads(self.qmp("qom-get", path="/machine/peripheral/snic0", property="state")["return"])

    def alive(self):
        return self.process.poll() is None

    def close(self):
        try:
            self.qmp("quit")
        except (OSError, ValueError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        subprocess.run(["rm", "-rf", self.dir], check=False)


def refuses(device, text):
    r = subprocess.run([QEMU, "-nodefaults", "-display", "none", "-machine", "q35", "-accel", "qtest", "-device", device], capture_output=True, text=True, timeout=30)
    check(f"refuses -device {device}", r.returncode == 1 and text in r.stderr, r.stderr)


refuses("snic", "property 'ip' is missing")
refuses("snic,ip=10.0.0.300", "ip '10.0.0.300' is not an IPv4 address")
refuses("snic,ip=10.0.0.1,vectors=99", "vectors 99 is not in 1..32")
refuses("snic,ip=10.0.0.1,revoke=never", "revoke 'never' is not one of: key, deregister")
refuses("snic,ip=10.0.0.1,doorbell-pages=5000", "doorbell-pages 5000 is not in 2..4096")
text = subprocess.run([QEMU, "-device", "snic,help"], capture_output=True, text=True).stdout
check("every property is described", all(f" {p}=" in text for p in ("fabric", "ip", "revoke", "direct", "link-rate")) and text.count(" - ") > 15, text)

m = Machine()
m.enable_bars()
check("version and vectors", m.read(m.REG) == 0x10000 and m.read(m.REG + 0x1C) == 4, hex(m.read(m.REG)))
check("odd sizes and offsets read zero", all(m.read(m.REG + o, s) == 0 for o, s in ((0, 1), (0, 2), (2, 2), (0x48, 4), (0x800, 4), (0x7F8, 8))))
check("the link is down without a fabric", m.read(m.REG + 0x0C) & 4 == 0)
m.write(m.REG + 0x08, 1)
check("ENABLE without rings is a fatal error with its cause", m.until(lambda: m.read(m.REG + 0x0C) & 8) and m.read(m.REG + 0x10) == 1)
check("RESET leads out of it", m.reset_nic() and m.read(m.REG + 0x10) == 0)
for name, target in (("the device's own registers", m.REG), ("its doorbells", m.DB), ("an address that nobody has", 0x7000000000)):
    m.enable_nic(aq=target)
    m.write(m.REG + 0x48, 1)
    check(f"DMA to {name} is refused", m.until(lambda: m.read(m.REG + 0x10) == 2) and m.alive())
    m.reset_nic()
m.enable_nic()
m.write(m.REG + 0x48, 17)
check("a doorbell beyond the ring is a fatal error", m.until(lambda: m.read(m.REG + 0x10) == 3))
m.reset_nic()
m.enable_nic()
m.poke(0x100000, struct.pack("<BBHIQ", 0x10, 0, 0, 0, 0x1234) + bytes(48))
m.write(m.REG + 0x48, 1)
check("a command completes", m.until(lambda: m.read(0x101000) == 1) and m.read(0x101008, 8) == 0x1234 and m.read(0x101004, 2) == 0)
state = m.state()
check("the state property is JSON and shows the PD", len(state["pd"]) == 1 and state["ready"] is True, state)
check("info qtree shows the device", "dev: snic" in m.qmp("human-monitor-command", **{"command-line": "info qtree"})["return"])
answer = m.qmp("human-monitor-command", **{"command-line": "savevm x"})
blocked = m.qmp("migrate", uri="exec:cat >/dev/null")
check("migration is refused", "error" in blocked and "snic" in json.dumps(blocked), blocked)

rng = random.Random(5)
for i in range(3000):
    what = rng.randrange(8)
    if what < 3:
        m.write(m.REG + rng.randrange(0, 0x100), rng.getrandbits(32), rng.choice((1, 2, 4, 8)))
    elif what < 5:
        m.write(m.DB + rng.randrange(0, 1 << 20), rng.getrandbits(32), rng.choice((1, 2, 4, 8)))
    elif what == 5:
        m.read(m.REG + rng.randrange(0, 0x1000), rng.choice((1, 2, 4, 8)))
    elif what == 6:
        m.poke(0x100000 + 64 * rng.randrange(16), bytes([rng.randrange(0x80)]) + rng.randbytes(63))
    elif rng.randrange(4) == 0:
        m.reset_nic()
        m.enable_nic()
    elif rng.randrange(40) == 0:
        m.qmp("system_reset")
        m.enable_bars()
    else:
        m.write(m.REG + 0x48, rng.randrange(20))
check("3,000 random accesses, commands and resets leave QEMU alive", m.alive())
m.enable_bars()
check("and the device usable", m.reset_nic() and m.enable_nic() and m.read(m.REG + 0x0C) & 1 == 1)
m.close()

m = Machine(device=None, extra=["-device", "pcie-root-port,id=rp0,slot=1"])
for round in range(3):
    added = m.qmp("device_add", driver="snic", id="snic0", bus="rp0", ip="10.0.0.1")
    check(f"hot plug {round + 1}", "return" in added, added)
    check(f"its state can be read {round + 1}", m.state()["ip"] == "10.0.0.1")
    m.qmp("device_del", id="snic0")
    # No guest acknowledges; a machine reset completes the removal.
    m.qmp("system_reset")
    gone = m.until(lambda: "error" in m.qmp("qom-get", path="/machine/peripheral/snic0", property="state"))
    check(f"hot unplug {round + 1}", gone and m.alive())
m.close()

print(f"{passed} passed, {failed} failed, 0 skipped")
sys.exit(failed != 0)
