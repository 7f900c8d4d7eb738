# SPDX-License-Identifier: GPL-2.0-or-later
"""gdb for PE code in nthost:  gdb -x guest-images/nthost/gdb.py --args out/linux/nthost --driver ... -- out/windows/santest.exe

- Symbols of each PE file are loaded when nthost maps it, so pending breakpoints in drivers and DLLs resolve.
- PE frames are unwound by their .pdata (there is no DWARF for that), so that `bt`, `up` and `finish` go through mixed stacks.
- break-in IMAGE FUNCTION: a breakpoint in the processor's registers, set when that image is loaded (the way for a guest).
- PE files that are not where nthost found them (a guest's /san) are looked for in out/windows, or $SANLAB_PE_FILES.
"""
import os
import struct

import gdb
from gdb.unwinder import Unwinder

REGISTERS = ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"]
KEPT = ["rbx", "rsp", "rbp", "rsi", "rdi", "r12", "r13", "r14", "r15"]  # by functions, in Windows' calling convention
images = {}  # base -> Image
wanted = []  # break-in: (image, function)


def memory(address, size):
    return bytes(gdb.selected_inferior().read_memory(address, size))


def u32(address):
    return struct.unpack("<I", memory(address, 4))[0]


def u64(address):
    return struct.unpack("<Q", memory(address, 8))[0]


class Image:
    def __init__(self, path, base):
        self.path, self.base = path, base
        pe = base + u32(base + 0x3C)
        self.size = u32(pe + 24 + 56)
        rva, size = u32(pe + 24 + 112 + 3 * 8), u32(pe + 24 + 112 + 3 * 8 + 4)
        data = memory(base + rva, size) if rva else b""
        self.functions = list(struct.iter_unpack("<III", data[: len(data) // 12 * 12]))

    def function(self, pc):
        low, high = 0, len(self.functions)
        while low < high:
            middle = (low + high) // 2
            if self.functions[middle][0] <= pc - self.base:
                low = middle + 1
            else:
                high = middle
        if low and pc - self.base < self.functions[low - 1][1]:
            return self.functions[low - 1]
        return None


def image_of(pc):
    for image in images.values():
        if image.base <= pc < image.base + image.size:
            return image
    return None


def local_file(path):
    if os.path.exists(path):
        return path
    return os.path.join(os.environ.get("SANLAB_PE_FILES", "out/windows"), os.path.basename(path))


def image_loaded(path, base, preferred):
    path = local_file(path)
    images[base] = Image(path, base)
    offset = base - preferred
    gdb.execute(f"add-symbol-file {path} -o {offset}" if offset else f"add-symbol-file {path}", to_string=True)
    print(f"nthost: {path} at {base:#x}")
    for image, function in wanted:
        if os.path.basename(path) == image:
            gdb.Breakpoint(function, type=gdb.BP_HARDWARE_BREAKPOINT)


class ImageLoaded(gdb.Breakpoint):
    """nthost_image_loaded(path, base, preferred)"""

    def __init__(self):
        super().__init__("nthost_image_loaded", internal=True)
        self.silent = True

    def stop(self):
        image_loaded(gdb.parse_and_eval("(char *)$rdi").string(), int(gdb.parse_and_eval("$rsi")), int(gdb.parse_and_eval("$rdx")))
        return False


class BreakIn(gdb.Command):
    """break-in IMAGE FUNCTION: stop at a function of a PE file, as soon as nthost has loaded it. At most four."""

    def __init__(self):
        super().__init__("break-in", gdb.COMMAND_BREAKPOINTS)

    def invoke(self, text, tty):
        if len(text.split()) != 2:
            raise gdb.GdbError("break-in takes the name of an image and a function: break-in sanproxy.sys sanproxy::context_teardown")
        wanted.append(tuple(text.split()))


class FrameId:
    def __init__(self, sp, pc):
        self.sp, self.pc = sp, pc


class PeUnwinder(Unwinder):
    def __init__(self):
        super().__init__("nthost-pe")

    def __call__(self, pending):
        pc = int(pending.read_register("rip"))
        image = image_of(pc)
        if image is None:
            return None
        values = {name: int(pending.read_register(name)) & (2**64 - 1) for name in KEPT}
        saved = {name: 0 for name in REGISTERS} | values
        function = image.function(pc)
        if function is not None:
            self.undo(image, function, pc, saved)
        caller = u64(saved["rsp"])
        saved["rsp"] += 8
        info = pending.create_unwind_info(FrameId(gdb.Value(saved["rsp"]), gdb.Value(image.base + function[0] if function else pc)))
        kind = gdb.lookup_type("unsigned long")
        info.add_saved_register("rip", gdb.Value(caller).cast(kind))
        for name in KEPT:
            info.add_saved_register(name, gdb.Value(saved[name]).cast(kind))
        return info

    @staticmethod
    def undo(image, function, pc, regs):
        offset = pc - image.base - function[0]
        first = True
        while function is not None:
            info = image.base + function[2]
            flags, prolog, count, frame = struct.unpack("<BBBB", memory(info, 4))
            codes = struct.unpack(f"<{count}H", memory(info + 4, 2 * count))
            in_prolog = first and offset < prolog
            fp, fp_offset = REGISTERS[frame & 15], (frame >> 4) * 16
            base = regs[fp] - fp_offset if frame & 15 and not in_prolog else regs["rsp"]
            i = 0
            while i < count:
                at, op, detail = codes[i] & 0xFF, codes[i] >> 8 & 15, codes[i] >> 12
                extra = codes[i + 1 : i + 3]
                slots = {1: 2 if detail == 0 else 3, 4: 2, 5: 3, 6: 2, 7: 3, 8: 2, 9: 3}.get(op, 1)
                i += slots
                if in_prolog and at > offset:
                    continue
                if op == 0:
                    regs[REGISTERS[detail]] = u64(regs["rsp"])
                    regs["rsp"] += 8
                elif op == 1:
                    regs["rsp"] += extra[0] * 8 if detail == 0 else extra[0] | extra[1] << 16
                elif op == 2:
                    regs["rsp"] += detail * 8 + 8
                elif op == 3:
                    regs["rsp"] = regs[fp] - fp_offset
                elif op == 4:
                    regs[REGISTERS[detail]] = u64(base + extra[0] * 8)
                elif op == 5:
                    regs[REGISTERS[detail]] = u64(base + (extra[0] | extra[1] << 16))
            function = None
            if flags >> 3 & 4:  # chained
                function = struct.unpack("<III", memory(info + 4 + 2 * ((count + 1) & ~1), 12))
                first = False


gdb.execute("handle SIGSEGV SIGUSR2 nostop noprint pass", to_string=True)
gdb.execute("set breakpoint pending on")
gdb.execute("set confirm off")
gdb.unwinder.register_unwinder(None, PeUnwinder(), replace=True)
BreakIn()
ImageLoaded()
