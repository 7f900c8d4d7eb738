#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Two managers joined by a trunk over loopback, a machine at each: conformance and all traffic through it; a trunk that breaks.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
linux=$out/linux pe=$out/windows
started=()
cleanup() {
  for pid in "${started[@]}"; do kill -KILL "$pid" 2>/dev/null; done
  rm -rf "$work"
}
trap cleanup EXIT

manager() { # name, options: starts a manager, waits for its socket
  local name=$1
  shift
  "$linux/sanfabricd" "$work/$name" --trunk-secret "$work/secret" "$@" >"$work/$name.log" 2>&1 &
  started+=($!)
  eventually test -S "$work/$name.ctl"
}
until_true() { eventually status_is "$work/$1" "$2"; } # manager, expression on its status d
machine() { # manager, number, program, arguments
  local program=$3
  nthost_of "$work/$1" "$2" ''
  shift 3
  "${nthost[@]}" --timeout 120 -- "$pe/$program" "$@"
}
pair() { # name, program, its server's arguments, --, the client's
  local name=$1 program=$2 server=() status
  shift 2
  while [ "$1" != -- ]; do server+=("$1"); shift; done
  shift
  machine b 2 "$program" "${server[@]}" >"$work/server" 2>&1 &
  local pid=$!
  machine a 1 "$program" "$@" >"$work/client" 2>&1
  status=$?
  wait $pid || status=1
  if [ $status -eq 0 ]; then ok "$name"; else not_ok "$name"; tail -n 15 "$work/client" "$work/server" | sed 's/^/    /'; fi
}

printf 'sixteen bytes and some more\n' >"$work/secret"
manager a --trunk-listen 127.0.0.1:0
address=$(ask "$work/a" "[t['address'] for t in d['trunks'] if t['state'] == 'listening'][0]")
manager b --trunk-join "$address"
b_pid=${started[-1]}
check "the trunk comes up" until_true b "d['trunks'][0]['state'] == 'up'"
pair "conformance through the trunk" santest.exe --serve -- 10.0.0.2
for t in write_bw read_bw send_bw write_lat read_lat send_lat; do
  pair "$t through the trunk, all sizes" sanperf.exe $t -- $t --all --iters=100 10.0.0.2
done

# The manager on the other side dies in traffic: everything that went through it ends with an error, and a new one takes its place.
machine b 2 sanperf.exe write_bw >"$work/server" 2>&1 &
server=$!
machine a 1 sanperf.exe write_bw --size=1M --iters=10000000 10.0.0.2 >"$work/client" 2>&1 &
client=$!
check "traffic moves" until_true a "sum(n['tx_bytes'] for n in d['nics']) > 0"
kill -KILL "$b_pid"
if wait $client; then not_ok "traffic ended without an error"; else ok "a broken trunk ends the operations through it"; fi
check "with the connection's error" grep -qE 'connection (aborted|reset)' "$work/client"
wait $server
manager b --trunk-join "$address"
check "a new manager joins" until_true b "d['trunks'][0]['state'] == 'up'"
pair "and traffic goes through it" sanperf.exe read_bw -- read_bw --iters=500 10.0.0.2

printf 'another secret, as long\n' >"$work/secret"
manager c --trunk-join "$address"
check "another secret is refused, and the reason told" until_true c "'secret' in d['trunks'][0].get('error', '')"
refuses "a secret that is too short" 2 "at least 16" "$linux/sanfabricd" "$work/d" --trunk-join 127.0.0.1:1 --trunk-secret /dev/null
summary
