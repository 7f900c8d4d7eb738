#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# The real driver, provider and tools in nthost, over a real fabric: what they import; conformance on every kind of NIC; all
# traffic tests; processes and machines that die; several processes on one machine; failing calls.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
linux=$out/linux pe=$out/windows

verdict() { # status, name, log...
  local status=$1 name=$2
  shift 2
  if [ "$status" -eq 0 ]; then ok "$name"
  else
    not_ok "$name"
    for log in "$@"; do sed "s|^|  ${log##*/}: |" "$log" | grep -v ' pass$' | tail -n 15; done
  fi
}

start_fabric

device='' extra=()
machine() { # number, program, arguments: one computer, until its program ends
  local program=$2
  nthost_of "$work/fabric" "$1" "$device"
  shift 2
  "${nthost[@]}" --timeout 120 "${extra[@]}" -- "$pe/$program" "$@"
}
pair() { # name, server's program and arguments, --, client's
  local name=$1 server=() status
  shift
  while [ "$1" != -- ]; do server+=("$1"); shift; done
  shift
  machine 2 "${server[@]}" >"$work/server.log" 2>&1 &
  local pid=$!
  machine 1 "$@" >"$work/client.log" 2>&1
  status=$?
  wait $pid || status=1
  verdict $status "$name" "$work/client.log" "$work/server.log"
}

python3 -B "$top/tests/host/check_imports.py" "$pe"/{sanproxy.sys,sanprov.dll,sanperf.exe,santest.exe,driver/sanctl.exe} >"$work/imports.log"
verdict $? "imports exist on NT 5.2" "$work/imports.log"
python3 -B "$top/tests/host/check_imports.py" --exports WSPStartupEx "$pe/sanprov.dll" >"$work/exports.log"
verdict $? "the provider exports WSPStartupEx alone" "$work/exports.log"
python3 -B "$top/tests/host/check_imports.py" --bits 32 --exports WSPStartupEx "$pe/sanprov32.dll" >"$work/exports32.log"
verdict $? "so does the 32-bit one, under that very name, and its imports exist on NT 5.2" "$work/exports32.log"

for device in '' ,revoke=deregister ,msi=off ,direct=off; do
  pair "conformance${device:+ with ${device#,}}" santest.exe --serve -- santest.exe 10.0.0.2
done
device=

for t in write_bw read_bw send_bw write_lat read_lat send_lat; do
  pair "$t, all sizes" sanperf.exe $t -- sanperf.exe $t --all --iters=200 10.0.0.2
  pair "$t, notified completions" sanperf.exe $t --events -- sanperf.exe $t --events --iters=500 10.0.0.2
done
pair "reg_rate" sanperf.exe reg_rate -- sanperf.exe reg_rate --all --iters=20 10.0.0.2

# A process that dies: its machine's driver gives everything back (nthost looks for what is left), the peer sees a reset.
machine 2 santest.exe --serve >"$work/server.log" 2>&1 &
server=$!
machine 1 santest.exe --die 10.0.0.2 >"$work/client.log" 2>&1
[ $? -eq 42 ]
died=$?
wait $server
grep -q 'error 10054' "$work/server.log" && [ $died -eq 0 ]
verdict $? "a process that dies leaves nothing behind, and resets its peer" "$work/client.log" "$work/server.log"

# A machine that dies during traffic: the peer's operations end in time.
machine 2 sanperf.exe write_bw >"$work/server.log" 2>&1 &
server=$!
machine 1 sanperf.exe write_bw --size=1M --iters=10000000 10.0.0.2 >"$work/client.log" 2>&1 &
client=$!
eventually status_is "$work/fabric" "any(n['tx_bytes'] > 1 << 26 for n in d['nics'])"
victim=$(pgrep -f "fabric=$work/fabric,ip=10.0.0.2" | head -n 1)
kill -KILL "$victim"
begin=$(date +%s%N)
wait $client
took=$((($(date +%s%N) - begin) / 1000000))
[ $took -lt 5000 ] && grep -qE 'connection (aborted|reset)' "$work/client.log"
verdict $? "a machine killed during traffic ends its peer's operations within 5 s" "$work/client.log"
wait $server 2>/dev/null

# Several processes on one machine, each with its own doorbell page.
"$linux/nthost" --driver "$pe/sanproxy.sys" --device "inproc,fabric=$work/fabric,ip=10.0.0.2" --path "$pe" --timeout 120 \
  -- "$pe/sanperf.exe" write_bw --port=7001 --and "$pe/sanperf.exe" send_bw --port=7002 >"$work/server.log" 2>&1 &
server=$!
"$linux/nthost" --driver "$pe/sanproxy.sys" --device "inproc,fabric=$work/fabric,ip=10.0.0.1" --path "$pe" --timeout 120 \
  -- "$pe/sanperf.exe" write_bw --port=7001 10.0.0.2 --and "$pe/sanperf.exe" send_bw --port=7002 10.0.0.2 \
  >"$work/client.log" 2>&1
status=$?
wait $server || status=1
verdict $status "two processes on each machine at the same time" "$work/client.log" "$work/server.log"

# Calls that fail now and then: checks may fail, but nothing crashes, hangs or is left behind.
for kind in pool lock secure map contiguous; do
  bad=0
  for seed in 1 2; do
    extra=(--fail "$kind:p=0.02,seed=$seed")
    machine 2 santest.exe --serve --timeout=5 >"$work/server.log" 2>&1 &
    server=$!
    machine 1 santest.exe --timeout=5 10.0.0.2 >"$work/client.log" 2>&1
    [ $? -le 1 ] || bad=1
    wait $server
    [ $? -le 1 ] || bad=1
    grep -qiE 'bugcheck|host error|left behind|leak' "$work/client.log" "$work/server.log" && bad=1
  done
  verdict $bad "failing now and then: $kind" "$work/client.log" "$work/server.log"
done

summary
