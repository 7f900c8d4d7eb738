#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes C that knows every structure of the given contract headers, member by member, so that none is forgotten:

    layout.py HEADER... --out DIR

DIR/layout.c: a table, in the section .layout, of each structure's size and each member's offset and size.
DIR/members.c: layout_fill() gives every member, array elements included, a value of its own; layout_check() returns 0, or the number of
the first member that has another value; layout_bytes() is how many bytes both use.
DIR/names.txt: the members by their numbers. Exit status 2 for a header that it cannot read.
"""
import argparse
import pathlib
import re
import sys

SCALARS = {"uint8_t": 1, "uint16_t": 2, "uint32_t": 4, "uint64_t": 8, "int32_t": 4}


def structures(text):
    """(name, [(type, member, array length or None)]) in order."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
    for match in re.finditer(r"\bstruct\s+(\w+)\s*\{([^{}]*)\}\s*;", text):
        members = []
        for declaration in filter(None, (d.strip() for d in match[2].split(";"))):
            kind, names = re.match(r"((?:struct\s+)?\w+)\s+(.*)", declaration, flags=re.S).groups()
            for name in names.split(","):
                parts = re.fullmatch(r"\s*(\w+)\s*(?:\[(.+)\])?\s*", name)
                if not parts:
                    raise ValueError(f"struct {match[1]}: cannot read '{declaration}'")
                members.append((" ".join(kind.split()), parts[1], parts[2]))
        yield match[1], members
    opened = len(re.findall(r"\bstruct\s+\w+\s*\{", text))
    read = len(re.findall(r"\bstruct\s+\w+\s*\{[^{}]*\}\s*;", text))
    if opened != read:
        raise ValueError(f"{opened - read} structures with braces in them")


def scalars(kind, path, length, known, depth=0):
    """(C loop header or '', expression) for every scalar below a member."""
    loops = []
    if length is not None:
        variable = f"i{depth}"
        loops.append(f"for (unsigned {variable} = 0; {variable} < ({length}); ++{variable}) ")
        path, depth = f"{path}[{variable}]", depth + 1
    if kind in SCALARS:
        yield "".join(loops), path, SCALARS[kind]
        return
    name = kind.removeprefix("struct ")
    if name not in known:
        raise ValueError(f"unknown type {kind}")
    for inner, member, inner_length in known[name]:
        for loop, expression, size in scalars(inner, f"{path}.{member}", inner_length, known, depth):
            yield "".join(loops) + loop, expression, size


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("headers", nargs="+", type=pathlib.Path)
    parser.add_argument("--out", required=True, type=pathlib.Path)
    args = parser.parse_args()
    try:
        known = {name: members for h in args.headers for name, members in structures(h.read_text())}
        include = "".join(f'#include "{h.resolve()}"\n' for h in args.headers) + "#include <stddef.h>\n"
        names, table, fill, check = [], [], [], []
        for name, members in known.items():
            table.append(f"sizeof(struct {name})")
            names.append(f"size of struct {name}")
            fill.append(f"    {{ struct {name} *p = (struct {name} *)(bytes + at); at += (sizeof *p + 15) / 16 * 16;")
            check.append(f"    {{ const struct {name} *p = (const struct {name} *)(bytes + at); at += (sizeof *p + 15) / 16 * 16;")
            for kind, member, length in members:
                table += [f"offsetof(struct {name}, {member})", f"sizeof(((struct {name} *)0)->{member})"]
                names += [f"offset of {name}.{member}", f"size of {name}.{member}"]
                for loop, path, size in scalars(kind, f"p->{member}", length, known):
                    fill.append(f"    {loop}{{ ++n; {path} = VALUE{8 * size}(n); }}")
                    check.append(f"    {loop}{{ ++n; if ({path} != VALUE{8 * size}(n)) return n; }} /* {name} */")
            fill.append("    }")
            check.append("    }")
    except (OSError, ValueError) as error:
        print(f"layout.py: {error}", file=sys.stderr)
        return 2
    values = ("#define VALUE8(n) (uint8_t)((n) * 37u + 11u)\n#define VALUE16(n) (uint16_t)((n) * 40503u + 1u)\n"
              "#define VALUE32(n) (uint32_t)((n) * 2654435761u)\n#define VALUE64(n) (uint64_t)((n) * 0x9E3779B97F4A7C15ull)\n")
    total = " + ".join(f"(sizeof(struct {n}) + 15) / 16 * 16" for n in known)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "names.txt").write_text("\n".join(names) + "\n")
    (args.out / "layout.c").write_text(
        include + '__attribute__((section(".layout"), used)) const uint32_t layout[] = {\n    ' + ",\n    ".join(table) + "};\n")
    (args.out / "members.c").write_text(
        include + values + f"unsigned layout_bytes(void) {{ return {total}; }}\n"
        "void layout_fill(unsigned char *bytes) {\n    unsigned at = 0, n = 0;\n" + "\n".join(fill) + "\n    (void)at;\n}\n"
        "unsigned layout_check(const unsigned char *bytes) {\n    unsigned at = 0, n = 0;\n" + "\n".join(check) + "\n    (void)at;\n    return 0;\n}\n")
    print(f"{len(known)} structures, {len(names)} sizes and offsets")
    return 0


if __name__ == "__main__":
    sys.exit(main())
