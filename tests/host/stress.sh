#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# The real driver and provider under four threads on each of two machines that register, free, protect, allocate again at the same
# address and transfer at the same time, on each kind of NIC. nthost looks for what is left when the programs have ended.
#   tests/host/stress.sh [DIRECTORY with nthost and sanfabricd] [DIRECTORY with the PE files]
# SANLAB_STRESS_ROUNDS (40 for each thread) and SANLAB_STRESS_SEED (1) say how much, and what.
set -uo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
linux=${1:-$top/out/linux} pe=${2:-$top/out/windows}
rounds=${SANLAB_STRESS_ROUNDS:-40} seed=${SANLAB_STRESS_SEED:-1}
work=$(mktemp -d)
"$linux/sanfabricd" --quiet "$work/fabric" >"$work/fabric.log" 2>&1 &
manager=$!
trap 'kill $manager 2>/dev/null; rm -rf "$work"' EXIT
for _ in $(seq 100); do [ -S "$work/fabric" ] && break; sleep 0.05; done

passed=0 failed=0
machine() { # number, device, arguments of santest
  local n=$1 device=$2
  shift 2
  "$linux/nthost" --driver "$pe/sanproxy.sys" --device "inproc,fabric=$work/fabric,ip=10.0.0.$n$device" --path "$pe" --timeout 120 \
    -- "$pe/santest.exe" "$@"
}
for device in '' ,revoke=deregister ,direct=off; do
  name="stress, $rounds rounds, seed $seed${device:+, ${device#,}}"
  machine 2 "$device" --serve >"$work/server.log" 2>&1 &
  server=$!
  machine 1 "$device" --stress="$rounds" --seed="$seed" 10.0.0.2 >"$work/client.log" 2>&1
  status=$?
  wait $server || status=1
  grep -q 'stress: passed' "$work/client.log" || status=1
  if [ $status -eq 0 ]; then
    echo "ok $name"
    passed=$((passed + 1))
  else
    echo "not ok $name"
    failed=$((failed + 1))
    for log in client server; do sed "s|^|  $log: |" "$work/$log.log" | tail -n 15; done
  fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
