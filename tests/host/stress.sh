#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# The real driver and provider under four threads on each of two machines that register, free, protect, allocate again at the same
# address and transfer at the same time, on each kind of NIC. nthost looks for what is left when the programs have ended.
# SANLAB_STRESS_ROUNDS (40 for each thread) and SANLAB_STRESS_SEED (1) say how much, and what.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
rounds=${SANLAB_STRESS_ROUNDS:-40} seed=${SANLAB_STRESS_SEED:-1}
start_fabric

machine() { # number, device's options, santest's arguments
  nthost_of "$work/fabric" "$1" "$2"
  shift 2
  "${nthost[@]}" --timeout 120 -- "$out/windows/santest.exe" "$@"
}
for device in '' ,revoke=deregister ,direct=off; do
  name="stress, $rounds rounds, seed $seed${device:+, ${device#,}}"
  machine 2 "$device" --serve >"$work/server.log" 2>&1 &
  server=$!
  machine 1 "$device" --stress="$rounds" --seed="$seed" 10.0.0.2 >"$work/client.log" 2>&1
  status=$?
  wait $server || status=1
  grep -q 'stress: passed' "$work/client.log" || status=1
  if [ $status -eq 0 ]; then ok "$name"
  else
    not_ok "$name"
    for log in client server; do sed "s|^|  $log: |" "$work/$log.log" | tail -n 15; done
  fi
done
summary
