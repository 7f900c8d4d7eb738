#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Checks Windows images: what they import must exist on the oldest system that they are for, and what they export must be
what is expected.

    check_imports.py [--lists DIR] [--bits 32|64] [--exports NAME[,NAME...]] IMAGE...

Every import is looked up in DIR/<module>.txt (one name a line; nt52-exports beside this file by default); for a 32-bit
image also in DIR/x86-only/<module>.txt, which lists names that the 32-bit module has besides. A driver's functions must
also have unwind information or be leaves, or structured exceptions could not pass through them.
Exit status 0 if all is well, 1 if not, 2 for images that cannot be read.
"""
import argparse
import pathlib
import struct
import sys


class Image:
    """A PE32 or PE32+ image, as far as these checks need it."""

    def __init__(self, path):
        self.path = path
        self.data = pathlib.Path(path).read_bytes()
        if self.data[:2] != b"MZ":
            raise ValueError("not a PE image: no MZ header")
        self.pe = struct.unpack_from("<I", self.data, 0x3C)[0]
        if self.data[self.pe:self.pe + 4] != b"PE\0\0":
            raise ValueError("not a PE image: no PE signature")
        (self.machine, sections, _, self.symtab, self.symbols, optional, self.flags) = struct.unpack_from(
            "<HHIIIHH", self.data, self.pe + 4)
        self.opt = self.pe + 24
        magic = struct.unpack_from("<H", self.data, self.opt)[0]
        if (magic, self.machine) not in ((0x20B, 0x8664), (0x10B, 0x14C)):
            raise ValueError(f"neither an x64 nor an x86 image: magic {magic:#x}, machine {self.machine:#x}")
        self.bits = 64 if magic == 0x20B else 32
        self.subsystem = struct.unpack_from("<H", self.data, self.opt + 68)[0]
        table = self.opt + (112 if self.bits == 64 else 96)
        count = struct.unpack_from("<I", self.data, table - 4)[0]
        self.dirs = [struct.unpack_from("<II", self.data, table + 8 * i) for i in range(count)]
        self.sections = []
        for i in range(sections):
            at = self.opt + optional + 40 * i
            vsize, rva, size, pos = struct.unpack_from("<IIII", self.data, at + 8)
            self.sections.append((rva, max(vsize, size), pos, size, struct.unpack_from("<I", self.data, at + 36)[0]))

    def offset(self, rva):
        for base, span, pos, size, _ in self.sections:
            if base <= rva < base + span and rva - base < size:
                return pos + rva - base
        raise ValueError(f"address {rva:#x} lies in no section")

    def text(self, rva):
        at = self.offset(rva)
        return self.data[at:self.data.index(b"\0", at)].decode()

    def directory(self, index):
        return self.dirs[index] if index < len(self.dirs) else (0, 0)

    def imports(self):
        """(module, name) pairs; name is an int for an import by ordinal."""
        rva, _ = self.directory(1)
        while rva:
            lookup, _, _, name, iat = struct.unpack_from("<IIIII", self.data, self.offset(rva))
            if name == 0:
                return
            module = self.text(name)
            at = self.offset(lookup or iat)
            while (entry := struct.unpack_from("<Q" if self.bits == 64 else "<I", self.data, at)[0]) != 0:
                yield module, (entry & 0xFFFF) if entry >> (self.bits - 1) else self.text((entry & 0x7FFFFFFF) + 2)
                at += self.bits // 8
            rva += 20

    def exports(self):
        rva, size = self.directory(0)
        if size == 0:
            return []
        names, table = struct.unpack_from("<I", self.data, self.offset(rva) + 24)[0], \
            struct.unpack_from("<I", self.data, self.offset(rva) + 32)[0]
        return [self.text(struct.unpack_from("<I", self.data, self.offset(table) + 4 * i)[0]) for i in range(names)]

    def functions(self):
        """{rva: name} from the COFF symbol table (empty in a stripped image)."""
        found = {}
        strings = self.symtab + 18 * self.symbols
        i = 0
        while i < self.symbols:
            raw = self.data[self.symtab + 18 * i:self.symtab + 18 * i + 18]
            value, section, kind, _, aux = struct.unpack_from("<IhHBB", raw, 8)
            if kind == 0x20 and 0 < section <= len(self.sections) and self.sections[section - 1][4] & 0x20:
                name = raw[:8].rstrip(b"\0").decode(errors="replace")
                if raw[:4] == b"\0\0\0\0":
                    at = strings + struct.unpack_from("<I", raw, 4)[0]
                    name = self.data[at:self.data.index(b"\0", at)].decode(errors="replace")
                found[self.sections[section - 1][0] + value] = name
            i += 1 + aux
        return found

    def unwind_ranges(self):
        rva, size = self.directory(3)
        return [struct.unpack_from("<II", self.data, self.offset(rva) + 12 * i) for i in range(size // 12)] if size else []


def module_list(lists, module, bits):
    stem = module.lower().rsplit(".", 1)[0]
    path, more = lists / f"{stem}.txt", lists / "x86-only" / f"{stem}.txt"
    if not path.exists():
        return None
    return set(path.read_text().split()) | (set(more.read_text().split()) if bits == 32 and more.exists() else set())


def check_imports(image, lists):
    problems = []
    for module, name in image.imports():
        known = module_list(lists, module, image.bits)
        if known is None:
            problems.append(f"imports from {module}, for which there is no list in {lists}")
        elif isinstance(name, int):
            problems.append(f"imports {module} #{name} by ordinal; only names are checked, so only names are accepted")
        elif name not in known:
            problems.append(f"imports {module}!{name}, which the oldest system lacks: look it up at run time")
    return sorted(set(problems))


def calls_something(code, start, functions):
    """Whether the bytes hold a near call to a known function, a call through the import table, or a pushed frame."""
    for i in range(len(code) - 5):
        if code[i] == 0xE8 and start + i + 5 + struct.unpack_from("<i", code, i + 1)[0] in functions:
            return True
        if code[i:i + 2] == b"\xff\x15":
            return True
    return code[:3] == b"\x48\x83\xec" or code[:3] == b"\x48\x81\xec"


def check_unwind(image):
    functions = image.functions()
    if not functions:
        return []
    ranges = image.unwind_ranges()
    starts = sorted(functions)
    problems = []
    for n, rva in enumerate(starts):
        if any(begin <= rva < end for begin, end in ranges):
            continue
        section = next(s for s in image.sections if s[0] <= rva < s[0] + s[1])
        end = starts[n + 1] if n + 1 < len(starts) else section[0] + section[3]
        end = min(end, section[0] + section[3], min((b for b, _ in ranges if b > rva), default=end))
        if calls_something(image.data[image.offset(rva):image.offset(rva) + end - rva], rva, functions):
            problems.append(f"{functions[rva]} has no unwind information and is not a leaf")
    return problems


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lists", type=pathlib.Path, default=here / "nt52-exports")
    parser.add_argument("--bits", type=int, choices=(32, 64), help="the images must be of this kind")
    parser.add_argument("--exports", help="the exact export names, comma separated")
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    args = parser.parse_args()
    failed = False
    for path in args.images:
        try:
            image = Image(path)
            problems = check_imports(image, args.lists)
            if args.bits not in (None, image.bits):
                problems.append(f"a {image.bits}-bit image; expected {args.bits} bits")
            if image.subsystem == 1:
                problems += check_unwind(image)
            if args.exports is not None:
                want, have = sorted(args.exports.split(",")), sorted(image.exports())
                if want != have:
                    problems.append(f"exports {', '.join(have) or 'nothing'}; expected {', '.join(want)}")
            count = len(list(image.imports()))
        except (OSError, ValueError, struct.error) as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 2
        for problem in problems:
            print(f"{path}: {problem}")
        failed |= bool(problems)
        if not problems:
            print(f"{path}: ok, {count} imports")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
