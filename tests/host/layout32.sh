#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# The structures that a 32-bit provider shares with the 64-bit driver and the NIC. Two proofs, for every member of every structure:
# the x86 and the x64 Windows compiler place it alike (their objects' tables are compared, nothing runs); and code that the x86 Windows
# compiler made fills structures that 64-bit code reads, and the other way round. That code really runs: its object is linked into a
# 32-bit Linux program with no library, since there is no 32-bit nthost. What it does not show is the provider's own 32-bit code at work.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
headers=("$top/include/sanlab/sanproxy_ioctl.h" "$top/include/sanlab/snic_hw.h")
x86=i686-w64-mingw32 x64=x86_64-w64-mingw32
check "every structure of the contracts is read" python3 -B "$top/tests/host/layout.py" "${headers[@]}" --out "$work"
cat "$work/out"
check "x86 compiler: sizes and offsets as asserted" $x86-gcc-win32 -std=gnu11 -Werror -I"$top/include" -c "$top/tests/unit/contracts.c" -o "$work/contracts.o"

flags=(-std=gnu11 -O2 -Wall -Werror -Wno-address-of-packed-member -fno-tree-loop-distribute-patterns -fno-asynchronous-unwind-tables)
table() { # objcopy, object: the table's bytes
  "$1" -O binary --only-section=.layout "$2" "$2.bin" && test -s "$2.bin"
}
for compiler in $x86-gcc-win32 $x64-gcc-win32 gcc; do
  $compiler "${flags[@]}" -c "$work/layout.c" -o "$work/layout-$compiler.o" || not_ok "compiling the table with $compiler"
done
table $x86-objcopy "$work/layout-$x86-gcc-win32.o" && table $x64-objcopy "$work/layout-$x64-gcc-win32.o" && table objcopy "$work/layout-gcc.o"
equal() { # two tables: alike, or the first member that is not
  python3 - "$1" "$2" "$work/names.txt" <<'P'
import struct, sys
a, b = (open(p, "rb").read() for p in sys.argv[1:3])
names = open(sys.argv[3]).read().splitlines()
a, b = (struct.unpack_from(f"<{len(names)}I", t) for t in (a, b))
for name, x, y in zip(names, a, b):
    if x != y:
        sys.exit(f"{name}: {x} and {y}")
P
}
check "x86 and x64 Windows place every member alike" equal "$work/layout-$x86-gcc-win32.o.bin" "$work/layout-$x64-gcc-win32.o.bin"
check "so does Linux, where nthost and the NIC model run" equal "$work/layout-$x64-gcc-win32.o.bin" "$work/layout-gcc.o.bin"

# One program, twice: it fills (argument f) or checks (c) what it reads from its standard input.
cat >"$work/program.c" <<'C'
#ifdef THIRTY_TWO
/* The Windows compiler puts an underscore before names. */
unsigned layout_bytes(void) __asm__("_layout_bytes");
void layout_fill(unsigned char *) __asm__("_layout_fill");
unsigned layout_check(const unsigned char *) __asm__("_layout_check");
static int call(int number, int a, void *b, unsigned c) {
    int result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b), "d"(c) : "memory");
    return result;
}
static int read(int fd, void *p, unsigned n) { return call(3, fd, p, n); }
static int write(int fd, void *p, unsigned n) { return call(4, fd, p, n); }
#else
#include <stdlib.h>
#include <unistd.h>
unsigned layout_bytes(void);
void layout_fill(unsigned char *);
unsigned layout_check(const unsigned char *);
#endif
static unsigned char bytes[65536] __attribute__((aligned(16)));
static int work(char what) {
    unsigned n = layout_bytes(), done = 0;
    if (n > sizeof bytes) return 3;
    if (what == 'f') {
        layout_fill(bytes);
        return write(1, bytes, n) == (int)n ? 0 : 3;
    }
    for (int got; done < n && (got = read(0, bytes + done, n - done)) > 0;) done += (unsigned)got;
    if (done != n) return 3;
    return layout_check(bytes) ? 1 : 0;
}
#ifdef THIRTY_TWO
__attribute__((used)) static void start(unsigned *stack) {
    int status = work(((char **)(stack + 1))[1][0]);
    call(1, status, 0, 0);
    for (;;) {}
}
__asm__(".globl _start\n_start: mov %esp, %eax\n and $-16, %esp\n sub $12, %esp\n push %eax\n call start\n");
#else
int main(int argc, char **argv) { return argc == 2 ? work(argv[1][0]) : 2; }
#endif
C
build32() {
  $x86-gcc-win32 "${flags[@]}" -c "$work/members.c" -o "$work/members-x86.obj" &&
    $x86-objcopy -O elf32-i386 "$work/members-x86.obj" "$work/members-x86.o" &&
    clang-14 -m32 -O1 -ffreestanding -fno-pic -DTHIRTY_TWO -c "$work/program.c" -o "$work/program-x86.o" &&
    ld.lld-14 -m elf_i386 -static -o "$work/program32" "$work/program-x86.o" "$work/members-x86.o"
}
build64() { gcc "${flags[@]}" -o "$work/program64" "$work/program.c" "$work/members.c"; }
check "32-bit code of the Windows compiler links into a program" build32
check "64-bit code does" build64
"$work/program32" f >"$work/from32"
if [ $? -ge 126 ]; then
  echo "skip this system runs no 32-bit programs"
  skipped=1
  summary
  exit
fi
"$work/program64" f >"$work/from64"
check "64-bit code reads what 32-bit code wrote" sh -c "'$work/program64' c <'$work/from32'"
check "32-bit code reads what 64-bit code wrote" sh -c "'$work/program32' c <'$work/from64'"
check "both wrote the same bytes" cmp "$work/from32" "$work/from64"
# The checks above must be able to fail: one member's byte is changed.
python3 -c 'import sys; b = bytearray(open(sys.argv[1], "rb").read()); b[16 * 4 + 1] ^= 1; open(sys.argv[2], "wb").write(b)' "$work/from32" "$work/spoilt"
check "a single wrong byte is found out, on 64 bits" sh -c "! '$work/program64' c <'$work/spoilt'"
check "a single wrong byte is found out, on 32 bits" sh -c "! '$work/program32' c <'$work/spoilt'"
summary
