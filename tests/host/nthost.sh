#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# nthost itself: probe.exe and probe.sys do what programs and drivers do, right and wrong.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
pe=${NTHOST_PE:-$top/build/linux/guest-images/nthost}
nthost=${NTHOST:-$pe/nthost}
cd "$work" || exit 1
probe() { timeout 60 "$nthost" --timeout 50 "${options[@]}" -- "$pe/probe.exe" "$@"; }

options=()
for c in exceptions threads waits memory files; do check "program: $c" probe $c; done
arguments() { [ "$(probe arguments a 'b c' '' 'd"e' 'f\')" = '[a][b c][][d"e][f\]' ]; }
check "program: arguments arrive as they were given" arguments

options=(--driver "$pe/probe.sys")
for c in ioctl driver-exceptions time pending locking securing processes; do check "driver: $c" probe $c; done
busy() { for _ in $(seq 20); do probe busy || return 1; done; }
check "driver: programs that end in the middle of requests leave nothing" busy
options+=(--pool 32)
check "driver: everything in 32 MiB" probe locking
options=(--driver "$pe/probe.sys" --verifier off)
for c in ioctl driver-exceptions pending locking; do check "driver without verifier: $c" probe $c; done
two() { timeout 60 "$nthost" --driver "$pe/probe.sys" -- "$pe/probe.exe" ioctl --and "$pe/probe.exe" locking; }
check "two programs on one machine" two

# Mistakes: the name of the bugcheck and the words, with status 99.
mistake() { refuses "verifier: $1" 99 "$3" "$nthost" --driver "$pe/probe.sys" --timeout 50 -- "$pe/probe.exe" op "$2"; }
if grep -qw ospke /proc/cpuinfo; then
  mistake "user memory touched outside __try" 100 "touched outside __try, at probe.sys+"
  mistake "user memory touched at DISPATCH_LEVEL" 113 "bugcheck 0x000000D1 DRIVER_IRQL_NOT_LESS_OR_EQUAL"
  injected_access() { [ "$(timeout 60 "$nthost" --driver "$pe/probe.sys" --fail access:2 -- "$pe/probe.exe" op "$1" 5)" = "4 of 5" ]; }
  check "--fail access:N, memcpy" injected_access 2
  check "--fail access:N, an instruction of the driver" injected_access 6
  large_copy() { timeout 60 "$nthost" --driver "$pe/probe.sys" -- "$pe/probe.exe" neither; }
  check "a large copy by the driver is watched at full speed" large_copy
else
  skipped=$((skipped + 5))
  echo "skip verifier: user memory touched outside __try: this CPU has no protection keys"
fi
mistake "null pointer" 101 "bugcheck 0x0000001E KMODE_EXCEPTION_NOT_HANDLED"
mistake "wait at DISPATCH_LEVEL" 102 "KeWaitForSingleObject/MultipleObjects at IRQL 2"
mistake "double completion" 103 "bugcheck 0x00000044 MULTIPLE_IRP_COMPLETE_REQUESTS"
mistake "pool left at unload" 104 "was unloaded and left: pool: Leak: 1 blocks, 321 bytes"
mistake "locked pages left at process end" 105 "bugcheck 0x00000076 PROCESS_HAS_LOCKED_PAGES"
mistake "unlock without lock" 106 "MmUnlockPages: the pages of MDL"
mistake "pool overrun" 107 "was overrun: byte 100"
mistake "write to freed pool" 108 "was written after it was freed"
mistake "double free" 109 "was freed twice"
mistake "pending without mark" 110 "was not marked pending"
mistake "neither completed nor pending" 111 "returned without completing the IRP"
mistake "spin lock taken twice" 112 "bugcheck 0x0000000F SPIN_LOCK_ALREADY_OWNED"
mistake "dispatch routine leaves the IRQL raised" 114 "was called at IRQL 0 and returned at 2"
mistake "more information than buffer" 115 "IoStatus.Information is 100000"
mistake "mapping left in a process" 116 "driver mappings"
mistake "unsecure of nothing" 117 "is not secured in process"
mistake "dereference of what is no object" 118 "bugcheck 0x00000018 REFERENCE_BY_POINTER"
mistake "request that cannot be cancelled" 119 "was not completed within 10 s of its cancellation"
mistake "MDL freed while locked" 120 "IoFreeMdl: the pages of MDL"
refuses "--require-secure: locked without securing" 99 "is locked and not secured: secure before locking" \
  "$nthost" --require-secure --driver "$pe/probe.sys" -- "$pe/probe.exe" op 13 1
stack() { refuses "$1" 99 "$2" "$nthost" --driver "$pe/probe.sys" -- "$pe/probe.exe" op 107; }
stack "a bugcheck shows the driver's stack" "probe.sys+0x"

# Low resources, by count and by probability.
injected() { [ "$(timeout 60 "$nthost" --driver "$pe/probe.sys" --fail "$1" -- "$pe/probe.exe" op "$2" "$3")" = "$4" ]; }
check "--fail pool:N" injected pool:3 25 5 "4 of 5"
check "--fail lock:N" injected lock:1 13 3 "2 of 3"
check "--fail secure:N" injected secure:2 17 3 "2 of 3"
check "--fail with a probability always" injected lock:p=1 13 3 "0 of 3"
repeatable() {
  local a b
  a=$(timeout 60 "$nthost" --driver "$pe/probe.sys" --fail lock:p=0.5,seed=9 -- "$pe/probe.exe" op 13 200)
  b=$(timeout 60 "$nthost" --driver "$pe/probe.sys" --fail lock:p=0.5,seed=9 -- "$pe/probe.exe" op 13 200)
  [ "$a" = "$b" ] && [ "$a" != "200 of 200" ] && [ "$a" != "0 of 200" ]
}
check "--fail with a probability repeats with its seed" repeatable

# Bad input.
refuses "missing imports are listed" 3 "USER32.dll!BeginPaint" "$nthost" -- "$pe/probe_missing.exe"
refuses "a driver as the program" 2 "probe.sys is a driver, not a program" "$nthost" -- "$pe/probe.sys"
refuses "a program as the driver" 2 "probe.exe is a program, not a driver" "$nthost" --driver "$pe/probe.exe" -- "$pe/probe.exe" ioctl
refuses "--unplug without a device" 2 "--unplug 5: takes --driver and --device inproc" "$nthost" --unplug 5 --driver "$pe/probe.sys" -- "$pe/probe.exe" ioctl
refuses "missing program" 2 "cannot open /no/such.exe" "$nthost" -- /no/such.exe
refuses "no program" 2 "no program" "$nthost"
refuses "not a PE file" 2 "is not a PE file" "$nthost" -- "$0"
refuses "not a PE driver" 2 "is not a PE file" "$nthost" --driver "$0" -- "$pe/probe.exe" ioctl
refuses "unknown option" 2 "--nonsense" "$nthost" --nonsense -- "$pe/probe.exe"
refuses "bad device" 2 "expected inproc" "$nthost" --device usb -- "$pe/probe.exe"
refuses "bad device key" 2 "'colour' is unknown" "$nthost" --device inproc,colour=red -- "$pe/probe.exe"
refuses "bad device value" 2 "expected key or deregister" "$nthost" --device inproc,revoke=maybe -- "$pe/probe.exe"
refuses "bad address" 2 "10.0.0" "$nthost" --device inproc,ip=10.0.0.300 -- "$pe/probe.exe"
refuses "no such PCI function" 2 "no such PCI function" "$nthost" --device pci=0000:7f:1f.7 -- "$pe/probe.exe"
refuses "bad pool size" 2 "expected 16 to 65536" "$nthost" --pool 3 -- "$pe/probe.exe"
refuses "bad failure kind" 2 "KIND one of" "$nthost" --fail disk:1 -- "$pe/probe.exe"
refuses "a folder as the program" 2 "is not a file" "$nthost" -- "$work"
refuses "a folder as the driver" 2 "is not a file" "$nthost" --driver "$work" -- "$pe/probe.exe" ioctl
refuses "a registry file in a folder that is not there" 2 "--registry /no/such: No such file" "$nthost" --registry /no/such -- "$pe/probe.exe"
refuses "a registry file that is no object" 2 "expected a JSON object" "$nthost" --registry <(echo '[]') -- "$pe/probe.exe"
echo '{"name": "of somebody else"}' >"$work/other.json"
cp "$work/other.json" "$work/other.kept"
refuses "somebody else's JSON file as the registry" 2 "unknown key 'name'" "$nthost" --registry "$work/other.json" -- "$pe/probe.exe"
check "... which is left alone" cmp "$work/other.json" "$work/other.kept"
# 4295 s are more microseconds than 32 bits hold.
check "a time-out of more than an hour is not over at once" "$nthost" --timeout 4295 --driver "$pe/probe.sys" -- "$pe/probe.exe" pending
refuses "time-out" 97 "no end after 1 seconds" "$nthost" --timeout 1 --driver "$pe/probe.sys" -- "$pe/probe.exe" child-hang
summary
