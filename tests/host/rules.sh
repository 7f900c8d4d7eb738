#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Rules of the contract about the driver that no program can see, with all of santest running over it: nthost looks. One line for each
# rule; scripts/conformance takes these lines.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
driver=$out/windows/sanproxy.sys
start_fabric

machine() { # number, nthost's options --, santest's
  nthost_of "$work/fabric" "$1" "$device"
  shift
  timeout 100 "${nthost[@]}" --timeout 90 "$@"
}
device=
santest() { # log, nthost's options: all checks, on two machines that both have these options
  local log=$1 server
  shift
  machine 2 "$@" -- "$out/windows/santest.exe" --serve >"$log.server" 2>&1 &
  server=$!
  machine 1 "$@" -- "$out/windows/santest.exe" 10.0.0.2 >"$log" 2>&1 && wait $server && return 0
  grep -v ' pass$' "$log" "$log.server" | tail -n 20
  return 1
}
check "WSD-126 what is locked is secured: secured before it is locked, unlocked before it is unsecured" santest "$work/secure" --require-secure
device=,revoke=deregister
check "WSD-126 on a NIC that revokes by deregistration, too" santest "$work/secure2" --require-secure
device=
check "WSD-040 all memory above 4 GiB" santest "$work/high" --no-low-memory --devices
check "WSD-038 the device object has DO_DIRECT_IO" grep -qE '^nthost: device of sanproxy.sys: .*[( ]DO_DIRECT_IO[) ]' "$work/high"
# With device objects, links or anything else left after DriverUnload nthost ends with a bugcheck; a driver without one stays loaded.
unloaded() { ! grep -qE 'has no DriverUnload|unloaded and left' "$work/high" "$work/high.server"; }
check "WSD-037 the unload routine is there, and device and links are gone after it" unloaded
no_adapter() { x86_64-w64-mingw32-objdump -p "$driver" | grep -q MmUnmapIoSpace && ! x86_64-w64-mingw32-objdump -p "$driver" | grep -qE 'IoGetDmaAdapter|HalGetAdapter'; }
check "WSD-041 there is no DEVICE_DESCRIPTION: the driver asks for no DMA adapter" no_adapter
summary
