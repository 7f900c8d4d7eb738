#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# docs/driver-debugging.md, "In a micro guest": gdb on QEMU's stub stops in the driver and in the provider inside a guest, with backtraces
# through PE files and nthost.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/../host/lib.sh"
export SANLAB_RUN=$work/run
cd "$top" || exit 1
if ! command -v gdb >/dev/null || ! command -v virsh >/dev/null; then
  echo "skip debugging in a guest: gdb or virsh is not installed (scripts/setup)"
  skipped=1
  summary
  exit
fi
trap '"$out/linux/sanlab" down >/dev/null 2>&1' EXIT
check "two guests boot" timeout 120 "$out/linux/sanlab" up
uri=$("$out/linux/sanlab" status | sed -nE 's/^libvirt ([^ ]+) .*/\1/p')
port=$((20000 + $$ % 10000))
check "QEMU's stub starts by libvirt" virsh -c "$uri" qemu-monitor-command --hmp sanlab-guest1 "gdbserver tcp:127.0.0.1:$port"
printf '%s\n' 'set pagination off' 'set debuginfod enabled off' "target remote 127.0.0.1:$port" \
  'break-in sanproxy.sys sanproxy::context_teardown' 'break-in sanprov.dll sanprov::san_bind' continue bt continue bt delete detach >"$work/commands"
SANLAB_PE_FILES=$out/windows timeout 120 gdb -batch -nx -x guest-images/nthost/gdb.py -x "$work/commands" "$out/linux/nthost" >"$work/gdb" 2>&1 &
debugger=$!
for _ in $(seq 100); do grep -q '^0x' "$work/gdb" && break; sleep 0.1; done # attached: the guest stands still until it is told to go on
check "the program runs to its end under gdb" timeout 120 "$out/linux/sanlab" run --timeout 100 santest --filter=WSD-054,WSD-036
wait $debugger
stops() {
  cat "$work/gdb"
  python3 - "$work/gdb" <<'P'
import re, sys
text = open(sys.argv[1], errors="replace").read()
for image in ("sanproxy.sys", "sanprov.dll"):
    assert re.search(rf"nthost: .*{image} at 0x", text), image
bind = text[text.index("Breakpoint 2,"):] if text.index("Breakpoint 2,") > text.find("Breakpoint 1,") else text[text.index("Breakpoint 2,"):text.index("Breakpoint 1,")]
for frame in ("sanprov::san_bind", "sanswitch::Socket::bind", " main ", "nth::run_program", "start_thread"):
    assert frame in bind, frame
teardown = text[text.index("Breakpoint 1, sanproxy::context_teardown"):]
for frame in ("sanproxy::dispatch_cleanup", "nth::call_driver", "CloseHandle", " main ", "nth::run_program", "start_thread"):
    assert frame in teardown, frame
P
}
check "it stops in driver and provider, with whole backtraces" stops
"$out/linux/sanlab" down >/dev/null 2>&1
summary
