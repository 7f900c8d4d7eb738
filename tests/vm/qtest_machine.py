# SPDX-License-Identifier: GPL-2.0-or-later
"""A QEMU with the snic device and no guest: qtest plays the guest, QMP the administrator. And the counting of checks."""
import json
import os
import socket
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
        try:
            self.qmp_file.readline()
            self.qmp("qmp_capabilities")
        except (OSError, ValueError):
            raise RuntimeError("QEMU ended: " + self.process.communicate()[1][-500:]) from None

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

    def peek(self, at, size):
        return bytes.fromhex(self.cmd(f"read {at:#x} {size:#x}")[1][2:])

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


def finish():
    """Prints the total and ends the program."""
    print(f"{passed} passed, {failed} failed, 0 skipped")
    sys.exit(failed != 0)
