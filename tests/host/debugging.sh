#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# The commands of docs/driver-debugging.md for this machine: breakpoints in driver and provider, a backtrace through both and nthost, a
# bugcheck and where it happened, a failing call and a failing seed that come again.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$top" || exit 1
if ! command -v gdb >/dev/null; then
  echo "skip debugging: gdb is not installed (scripts/setup)"
  skipped=1
  summary
  exit
fi
debug() { # log, gdb's commands; then nthost's arguments
  local log=$1 commands=$2
  shift 2
  printf '%s\n' 'set pagination off' 'set debuginfod enabled off' "$commands" >"$work/commands"
  timeout 100 gdb -batch -nx -x guest-images/nthost/gdb.py -x "$work/commands" --args "$out/linux/nthost" \
    --driver "$out/windows/sanproxy.sys" --device inproc,ip=10.0.0.1 --path "$out/windows" "$@" >"$log" 2>&1
}
in_order() { # file, patterns that have to come one after the other
  local file=$1
  shift
  python3 - "$file" "$@" <<'P'
import re, sys
text, at = open(sys.argv[1], errors="replace").read(), 0
for pattern in sys.argv[2:]:
    found = re.compile(pattern).search(text, at)
    if not found:
        sys.exit(f"not there, or not in that order: {pattern}\n{text[-3000:]}")
    at = found.end()
P
}
breakpoints() {
  debug "$work/gdb" 'break-in sanproxy.sys sanproxy::context_teardown
break-in sanprov.dll sanprov::san_bind
run
bt
finish
continue
bt' -- "$out/windows/santest.exe" --filter=WSD-054,WSD-036
  # Driver, nthost's kernel, the program's own frames, and the thread below it: in one backtrace.
  in_order "$work/gdb" 'hit Breakpoint 1, sanproxy::context_teardown \(context=\.\.\.\) at .*proxydriver/context\.cc:[0-9]+' \
    '#0 +sanproxy::context_teardown' '#1 .*sanproxy::dispatch_cleanup' 'nth::call_driver' 'nth::\(anonymous namespace\)::CloseHandle' 'check_36' ' main ' \
    'mainCRTStartup' 'nth::run_program' 'start_thread' 'dispatch_cleanup .*at .*context\.cc' \
    'hit Breakpoint 2, .*sanprov::san_bind' '#0 .*sanprov::san_bind' 'sanswitch::Socket::bind' ' main ' 'start_thread'
}
check "breakpoints in driver and provider, backtraces through PE files and nthost, finish" breakpoints

# A bugcheck, made by nthost's test driver; its offset names the line.
pe=${NTHOST_PE:-$top/build/linux/guest-images/nthost}
bugcheck() {
  timeout 60 "$out/linux/nthost" --driver "$pe/probe.sys" -- "$pe/probe.exe" op 102 >"$work/bugcheck" 2>&1
  [ $? -eq 99 ] || return 1
  in_order "$work/bugcheck" 'bugcheck 0x000000C4 DRIVER_VERIFIER_DETECTED_VIOLATION: KeWaitForSingleObject/MultipleObjects at IRQL 2' \
    'thread [0-9]+ of process [0-9]+ \(probe.exe\), IRQL 2' '\*  KeWaitForSingleObject' '0  probe.sys\+0x[0-9a-f]+' || return 1
  local offset
  offset=$(sed -nE 's/^ +0 +probe\.sys\+(0x[0-9a-f]+).*/\1/p' "$work/bugcheck" | head -n 1)
  x86_64-w64-mingw32-addr2line -fCe "$pe/probe.sys" "$(printf %x $((0x140000000 + offset - 1)))" | tee "$work/line"
  grep -q 'probe_driver.cc:[0-9]' "$work/line"
}
check "a bugcheck names the wrong call, and its offset the line" bugcheck
stop() { # with gdb at the moment of the bugcheck
  printf '%s\n' 'set pagination off' 'break nth::bugcheck' run bt >"$work/commands"
  timeout 60 gdb -batch -nx -x guest-images/nthost/gdb.py -x "$work/commands" --args "$out/linux/nthost" --driver "$pe/probe.sys" -- "$pe/probe.exe" op 102 >"$work/gdb" 2>&1
  in_order "$work/gdb" 'hit Breakpoint 1, nth::bugcheck' '#[0-9]+ .*KeWaitForSingleObject' '#[0-9]+ .*at .*probe_driver\.cc:[0-9]+'
}
check "break nth::bugcheck stops there, with the driver's frames" stop

again() { # a call that fails comes again at the same place
  local one two
  one=$(timeout 60 "$out/linux/nthost" --driver "$out/windows/sanproxy.sys" --device inproc,ip=10.0.0.1 --path "$out/windows" --fail pool:12 -- "$out/windows/santest.exe" --filter=WSD-04)
  two=$(timeout 60 "$out/linux/nthost" --driver "$out/windows/sanproxy.sys" --device inproc,ip=10.0.0.1 --path "$out/windows" --fail pool:12 -- "$out/windows/santest.exe" --filter=WSD-04)
  echo "$one"
  [ "$one" = "$two" ] && grep -q '^WSD-0.. fail' <<<"$one"
}
check "--fail pool:12 fails the same call each time" again
simulate=${SANLAB_SIMULATE:-$top/build/linux/tests/simulate}
seed() {
  local one two
  one=$("$simulate" --seed 7 2>&1) && two=$("$simulate" --seed 7 2>&1) && [ "$one" = "$two" ]
}
if [ -x "$simulate" ]; then check "simulate --seed 7 is the same run each time" seed; else
  echo "skip simulate --seed: $simulate is not built"
  skipped=$((skipped + 1))
fi
summary
