# SPDX-License-Identifier: GPL-2.0-or-later
# Sourced by the shell tests: one "ok NAME" or "not ok NAME" line for each check, then the total.
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=${SANLAB_OUT:-$top/out}
sanlab=$out/linux/sanlab
passed=0 failed=0 skipped=0
work=$(mktemp -d /tmp/sanlab-test-XXXXXX)

ok() { echo "ok $*"; passed=$((passed + 1)); }
not_ok() { echo "not ok $*"; failed=$((failed + 1)); }
# check NAME COMMAND...: passes when the command does. Its output is shown when it does not.
check() {
  local name=$1
  shift
  if "$@" >"$work/out" 2>&1; then ok "$name"; else not_ok "$name (status $?)"; tail -n 25 "$work/out" | sed 's/^/    /'; fi
}
# refuses NAME STATUS TEXT COMMAND...: passes when the command exits with STATUS and says one line that contains TEXT.
refuses() {
  local name=$1 status=$2 text=$3 got
  shift 3
  timeout 60 "$@" >"$work/out" 2>&1 </dev/null
  got=$?
  if [ $got -eq "$status" ] && grep -qF -- "$text" "$work/out"; then ok "$name"
  else not_ok "$name: status $got (expected $status), wanted: $text"; tail -n 10 "$work/out" | sed 's/^/    /'; fi
}
# eventually COMMAND...: waits until it succeeds, for 20 s at most.
eventually() {
  local _
  for _ in $(seq 400); do "$@" >/dev/null 2>&1 && return 0; sleep 0.05; done
  return 1
}
# ask SOCKET EXPRESSION: what a Python expression makes of the status d of the manager at that socket.
ask() {
  python3 - "$1.ctl" "$2" <<'PY'
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b'{"cmd":"status"}\n')
d = json.loads(s.makefile().readline())
print(eval(sys.argv[2]))
PY
}
status_is() { [ "$(ask "$1" "$2" 2>/dev/null)" = True ]; } # socket, expression
# start_fabric: a manager at $work/fabric, until the script ends.
start_fabric() {
  "$out/linux/sanfabricd" --quiet "$work/fabric" >"$work/fabric.log" 2>&1 &
  manager=$!
  trap 'kill $manager 2>/dev/null; rm -rf "$work"' EXIT
  eventually test -S "$work/fabric.ctl"
}
# nthost_of FABRIC N DEVICE: the beginning of the command line of machine N, whose NIC has these further options, as the array nthost.
nthost_of() {
  nthost=("$out/linux/nthost" --driver "$out/windows/sanproxy.sys" --device "inproc,fabric=$1,ip=10.0.0.$2$3" --path "$out/windows")
}
# interrupted PID: sends ^C to a program of ours in the background and gives the status that it ends with.
interrupted() {
  kill -INT "$1"
  wait "$1"
}
summary() {
  rm -rf "$work"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ $failed -eq 0 ]
}
