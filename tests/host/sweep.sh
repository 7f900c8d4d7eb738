#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Low resources: in a run of all of santest, the 1st, 2nd, 3rd... call of a kind fails on the client's machine, until a run comes to its
# end without reaching it. Each time: checks pass or fail with a proper error, nothing crashes, hangs or is left behind, and at most
# a few rules fail: the next call works.
#   tests/host/sweep.sh [KIND]...
# Kinds: pool, lock, secure, map, contiguous (driver); access (a user-memory access of the driver raises STATUS_ACCESS_VIOLATION);
# heap, event, thread (provider); command (the NIC fails an admin command); silence (the NIC never answers it).
# SANLAB_SWEEP_SECONDS (12): for each kind; as many calls as fit, spread over the run. SANLAB_SWEEP=all: every call, without a limit.
# SANLAB_SWEEP_SHARD=I/N: with all, only every Nth call, from the Ith on (0 to N-1): for several machines.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
all=(lock secure map contiguous pool access heap event thread command silence)
kinds=("$@")
[ ${#kinds[@]} -gt 0 ] || kinds=("${all[@]}")
for kind in "${kinds[@]}"; do
  [[ " ${all[*]} " == *" $kind "* ]] || { echo "sweep: unknown kind '$kind' (accepted: ${all[*]})" >&2; exit 2; }
done
budget=${SANLAB_SWEEP_SECONDS:-12}
shard=${SANLAB_SWEEP_SHARD:-0/1}
[[ $shard =~ ^([0-9]+)/([0-9]+)$ ]] && [ "${BASH_REMATCH[1]}" -lt "${BASH_REMATCH[2]}" ] ||
  { echo "sweep: SANLAB_SWEEP_SHARD '$shard' is not accepted; I/N with I from 0 to N-1 is" >&2; exit 2; }
first=${BASH_REMATCH[1]} stride=${BASH_REMATCH[2]}
start_fabric

machine() { # number, device's options, nthost options --, program's arguments; in a subshell, so that killing that ends the machine
  nthost_of "$work/fabric" "$1" "$2"
  shift 2
  exec timeout 60 "${nthost[@]}" --timeout 50 "$@"
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
# The numbers to try: with `all` each one (of this shard); else spread evenly over the run, whenever the time is over.
numbers() { # how many calls there are
  python3 - "$1" "${SANLAB_SWEEP:-}" "$first" "$stride" <<'P'
import sys
calls, every, first, stride = int(sys.argv[1]), sys.argv[2] == "all", int(sys.argv[3]), int(sys.argv[4])
if every:
    print(*range(first + 1, calls + 1, stride))
else:
    seen = []
    for k in range(1, 200):
        # k with its binary digits mirrored behind the point: 1/2, 1/4, 3/4, 1/8...
        n = 1 + int(calls * int(bin(k)[:1:-1], 2) / 2 ** (len(bin(k)) - 2))
        if n not in seen: seen.append(n)
    print(1, *seen)
P
}
least=3 # runs for each kind, however slow the machine is
for kind in "${kinds[@]}"; do
  # How many calls there are: a run that reaches none. The device does not count for us.
  calls=0 lost=0 tried=0 came=0 bad=0 began=$SECONDS
  case $kind in
    command | silence) calls=1750 ;;
    *)
      try "$kind" 1000000000 || { not_ok "$kind: santest without a failure"; tail -n 12 "$work/client.log" | sed 's/^/    /'; continue; }
      [ "$calls" -gt 0 ] || { not_ok "$kind: santest comes to no such call"; continue; } ;;
  esac
  for n in $(numbers "$calls"); do
    [ "${SANLAB_SWEEP:-}" = all ] || [ $tried -lt $least ] || [ $((SECONDS - began)) -lt "$budget" ] || break
    try "$kind" "$n" || { not_ok "$kind $n of the run fails"; tail -n 14 "$work/client.log" | grep -v ' pass$' | sed 's/^/    /'; bad=1; break; }
    tried=$((tried + 1)) came=$((came + reached))
    [ $((tried % 50)) -ne 0 ] || echo "  $kind: $tried runs, at call $n"
  done
  [ $bad -eq 1 ] || [ $came -gt 0 ] || { not_ok "$kind: none of $tried calls came"; bad=1; }
  [ $bad -eq 1 ] || ok "$kind: $came calls of $calls fail, each in a run of its own$([ $lost -gt 0 ] && echo "; $lost of them end the conversation with the partner")"
done
summary
