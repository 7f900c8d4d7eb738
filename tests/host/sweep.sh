#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Low resources: in a run of all of santest, the 1st, 2nd, 3rd... call of a kind fails on the client's machine, until a run comes to its
# end without reaching it. Each time: checks pass or fail with a proper error, nothing crashes, hangs or is left behind, and at most
# a few rules fail: the next call works.
#   tests/host/sweep.sh [KIND]...
# Kinds: pool, lock, secure, map, contiguous (driver); access (a user-memory access of the driver raises STATUS_ACCESS_VIOLATION);
# heap, event, thread (provider); command (the NIC fails an admin command); silence (the NIC never answers it).
# SANLAB_SWEEP_SECONDS (12): for each kind; what does not fit is stepped over evenly. SANLAB_SWEEP=all: every call, without a limit.
# SANLAB_SWEEP_SHARD=I/N: with all, only every Nth call, from the Ith on (0 to N-1): for several machines.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
all=(lock secure map contiguous pool access heap event thread command silence)
kinds=("$@")
[ ${#kinds[@]} -gt 0 ] || kinds=("${all[@]}")
for kind in "${kinds[@]}"; do
  [[ " ${all[*]} " == *" $kind "* ]] || { echo "sweep: unknown kind '$kind' (accepted: ${all[*]})" >&2; exit 2; }
done
out=${SANLAB_OUT:-$top/out}
budget=${SANLAB_SWEEP_SECONDS:-12}
shard=${SANLAB_SWEEP_SHARD:-0/1}
[[ $shard =~ ^([0-9]+)/([0-9]+)$ ]] && [ "${BASH_REMATCH[1]}" -lt "${BASH_REMATCH[2]}" ] ||
  { echo "sweep: SANLAB_SWEEP_SHARD '$shard' is not accepted; I/N with I from 0 to N-1 is" >&2; exit 2; }
first=${BASH_REMATCH[1]} stride=${BASH_REMATCH[2]}
"$out/linux/sanfabricd" --quiet "$work/fabric" >"$work/fabric.log" 2>&1 &
manager=$!
trap 'kill $manager 2>/dev/null' EXIT
for _ in $(seq 100); do [ -S "$work/fabric" ] && break; sleep 0.05; done

machine() { # number, device's options, nthost options --, program's arguments; in a subshell, so that killing that ends the machine
  local n=$1 device=$2
  shift 2
  exec timeout 60 "$out/linux/nthost" --driver "$out/windows/sanproxy.sys" --device "inproc,fabric=$work/fabric,ip=10.0.0.$n$device" \
    --path "$out/windows" --timeout 50 "$@"
}
# How the Nth call of a kind is made to fail: `device` and `options`.
injection() {
  device='' options=()
  case $1 in
    command) device=,fail-command=$2 ;;
    silence) device=,fail-command=$2,fail-status=no-answer options=(--set CommandTimeout=200) ;;
    *) options=(--fail "$1:$2") ;;
  esac
}
# Up to seven rules are proven by one check (WSD-080). What the NIC does not answer ends all connections, and the rules after it fail.
tolerated() { case $1 in silence) echo 1000 ;; *) echo 8 ;; esac; }
problem() { echo "  $1"; return 1; }
try() { # kind, number: 0 fine, 1 not; `reached` says whether the call came, `calls` how many there were if it did not
  local kind=$1 n=$2 server status peer device options failed
  injection "$kind" "$n"
  machine 2 '' -- "$out/windows/santest.exe" --serve --timeout=8 >"$work/server.log" 2>&1 &
  server=$!
  (TEMP=$work machine 1 "$device" "${options[@]}" -- "$out/windows/santest.exe" --timeout=8 10.0.0.2) >"$work/client.log" 2>&1
  status=$?
  [ $status -eq 0 ] || [ $status -eq 1 ] || { kill $server 2>/dev/null; wait $server; problem "client's status $status"; return; }
  # A client that did not come to its checks leaves the partner waiting for it.
  grep -q ' passed, ' "$work/client.log" || kill $server 2>/dev/null
  wait $server
  peer=$?
  [ $peer -ne 143 ] || peer=1
  [ $peer -eq 0 ] || [ $peer -eq 1 ] || { problem "partner's status $peer"; return; }
  grep -qiE 'bugcheck|host error|left behind|unloaded and left' "$work/client.log" "$work/server.log" && return 1
  reached=1
  if [ -n "$device" ]; then
    grep -q 'fail-command: command' "$work/client.log" || reached=0
  elif grep -q 'was not reached' "$work/client.log"; then
    reached=0
    calls=$(sed -nE 's/.*was not reached: ([0-9]+) calls.*/\1/p' "$work/client.log")
  fi
  # A failure before the partner is there ends the program; after that it is for a few rules, those that are proven together.
  failed=$(grep -cE '^WSD-[0-9]+ fail' "$work/client.log")
  if grep -q 'the partner is gone' "$work/client.log"; then lost=$((lost + 1))
  elif [ "$failed" -gt "$(tolerated "$kind")" ]; then problem "$failed rules fail"; return; fi
  return 0
}
for kind in "${kinds[@]}"; do
  # How many calls there are: a run that reaches none.
  calls=0 lost=0 tried=0 bad=0 reached=1 began=$SECONDS
  try "$kind" 1000000000 || { not_ok "$kind: santest without a failure"; tail -n 12 "$work/client.log" | sed 's/^/    /'; continue; }
  if [ "$calls" -eq 0 ]; then # the device does not count for us: as far as it goes
    case $kind in command | silence) calls=100000 ;; *) not_ok "$kind: santest comes to no such call"; continue ;; esac
  fi
  n=$((first + 1)) reached=1
  while [ $reached -eq 1 ] && [ "$n" -le "$((calls + calls / 4))" ]; do
    spent=$((SECONDS - began))
    [ "${SANLAB_SWEEP:-}" = all ] || [ $spent -lt "$budget" ] || break
    try "$kind" $n || { not_ok "$kind $n of the run fails"; tail -n 14 "$work/client.log" | grep -v ' pass$' | sed 's/^/    /'; bad=1; break; }
    tried=$((tried + 1))
    [ $((tried % 50)) -ne 0 ] || echo "  $kind: $tried runs, at call $n"
    if [ "${SANLAB_SWEEP:-}" = all ]; then n=$((n + stride)); else n=$((n + 1 + n / 3)); fi
  done
  [ $bad -eq 1 ] ||
    ok "$kind: $tried runs, each with a call that fails, up to call $n$([ $reached -eq 1 ] && echo ' (out of time)')$([ $lost -gt 0 ] && echo ", $lost of them ended the conversation with the partner")"
done
summary
