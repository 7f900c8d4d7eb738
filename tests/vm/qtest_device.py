#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The device inside QEMU: properties, registers, DMA, introspection, migration, random accesses, hot plug."""
import json
import random
import struct
import subprocess

from qtest_machine import QEMU, Machine, check, finish


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

finish()
