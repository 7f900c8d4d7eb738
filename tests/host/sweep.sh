#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Low resources: in a run of santest over memory, hand-over and closing, the 1st, 2nd, 3rd... call of a kind fails, until a run comes to
# its end without reaching it. Each time: checks pass or fail with a proper error, and nothing crashes, hangs or is left behind. With many
# calls it steps over some, further apart the later they are: SANLAB_SWEEP=all tries each.
#   tests/host/sweep.sh [KIND]...
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
kinds=("$@")
[ ${#kinds[@]} -gt 0 ] || kinds=(lock secure event thread map contiguous pool)
rules=WSD-106,WSD-117,WSD-120,WSD-122,WSD-134,WSD-161,WSD-170,WSD-176
out=${SANLAB_OUT:-$top/out}
budget=${SANLAB_SWEEP_SECONDS:-12} # for each kind
"$out/linux/sanfabricd" --quiet "$work/fabric" >"$work/fabric.log" 2>&1 &
manager=$!
trap 'kill $manager 2>/dev/null' EXIT
for _ in $(seq 100); do [ -S "$work/fabric" ] && break; sleep 0.05; done

machine() { # number, nthost options --, program's arguments; in a subshell, so that killing that ends the machine
  local n=$1
  shift
  exec timeout 40 "$out/linux/nthost" --driver "$out/windows/sanproxy.sys" --device "inproc,fabric=$work/fabric,ip=10.0.0.$n" \
    --path "$out/windows" --timeout 30 "$@"
}
try() { # kind, number: 0 fine, 1 not; `reached` says whether the call came
  local kind=$1 n=$2 server status peer
  machine 2 -- "$out/windows/santest.exe" --serve --timeout=3 >"$work/server.log" 2>&1 &
  server=$!
  (TEMP=$work machine 1 --fail "$kind:$n" -- "$out/windows/santest.exe" --timeout=3 --filter="$rules" 10.0.0.2) \
    >"$work/client.log" 2>&1
  status=$?
  [ $status -eq 0 ] || [ $status -eq 1 ] || { kill $server 2>/dev/null; wait $server; echo "  client's status $status"; return 1; }
  # A client that did not come to its checks leaves the partner waiting for it.
  grep -q ' passed, ' "$work/client.log" || kill $server 2>/dev/null
  wait $server
  peer=$?
  [ $peer -ne 143 ] || peer=1
  [ $peer -eq 0 ] || [ $peer -eq 1 ] || { echo "  partner's status $peer"; return 1; }
  grep -qiE 'bugcheck|host error|left behind|unloaded and left' "$work/client.log" "$work/server.log" && return 1
  reached=1
  grep -q 'was not reached' "$work/client.log" && reached=0
  return 0
}
for kind in "${kinds[@]}"; do
  n=1 tried=0 bad=0 reached=1 began=$SECONDS
  while [ $reached -eq 1 ] && [ $((SECONDS - began)) -lt "$budget" ]; do
    try "$kind" $n || { not_ok "$kind $n of the run fails"; tail -n 12 "$work/client.log" | grep -v ' pass$' | sed 's/^/    /'; bad=1; break; }
    tried=$((tried + 1))
    if [ "${SANLAB_SWEEP:-}" = all ]; then n=$((n + 1)); else n=$((n + 1 + n / 6)); fi
  done
  [ $bad -eq 1 ] || ok "$kind: $tried runs, each with a call that fails, up to call $n$([ $reached -eq 1 ] && echo ' (out of time)')"
done
echo "skip admin commands: nthost cannot make the NIC fail a command"
skipped=1
summary
