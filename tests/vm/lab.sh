#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Micro guests under libvirt: conformance, verified traffic both ways, one that joins later, interruption, a guest killed during
# traffic, a manager killed.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/../host/lib.sh"
export SANLAB_RUN="$work/run of this test" # folders may have spaces in their names
trap '"$sanlab" down >/dev/null 2>&1' EXIT

status_of() { "$sanlab" status -j | python3 -c "import json, sys; d = json.load(sys.stdin); print($1)"; }
conformance() { # variant
  timeout 150 "$sanlab" run --timeout 90 santest >"$work/santest" 2>&1
  local status=$? count
  count=$(grep -cE '^WSD-[0-9]+' "$work/santest")
  passed=$((passed + $(grep -cE '^WSD-[0-9]+ pass' "$work/santest")))
  skipped=$((skipped + $(grep -cE '^WSD-[0-9]+ n/a' "$work/santest")))
  grep -E '^WSD-[0-9]+ fail' "$work/santest" | while read -r line; do echo "not ok $1: $line"; done
  failed=$((failed + $(grep -cE '^WSD-[0-9]+ fail' "$work/santest")))
  if [ "$count" -lt 40 ]; then not_ok "conformance, $1: status $status after $count rules"; tail -n 25 "$work/santest" | sed 's/^/    /'
  else echo "ok conformance, $1: $count rules"; fi
}
bytes_moved() { status_of "sum(g.get('nic', {}).get('tx_bytes', 0) for g in d['guests'])"; }
# Waits until the traffic that was just started moves data: more than an earlier test may have left uncounted (counters come once a
# second).
moved_since() { [ "$(bytes_moved)" -gt $(($1 + (256 << 20))) ]; }
wait_for_traffic() { eventually moved_since "$1"; }
links_are() { [ "$(status_of "sum(g['link'] == 'UP' for g in d['guests'])")" = "$1" ]; }
wait_for_links() { eventually links_are "$1"; } # how many
# After the kill: the peer's client ends with an error, in time.
kill_in_traffic() { # who to kill, name
  local pid=$1 start before
  before=$(bytes_moved)
  timeout 60 "$sanlab" run --timeout 50 write_bw -s 1M -n 2000000 --no-verify >"$work/traffic" 2>&1 &
  local client=$!
  wait_for_traffic "$before"
  kill -KILL "$pid"
  start=$(date +%s%N)
  wait $client
  local code=$? ms=$((($(date +%s%N) - start) / 1000000))
  if [ $code -ne 0 ] && [ $code -ne 124 ] && grep -qE '1005[34]' "$work/traffic" && [ $ms -lt 5000 ]; then ok "$2 (status $code after $ms ms)"
  else not_ok "$2: status $code after $ms ms"; tail -n 15 "$work/traffic" | sed 's/^/    /'; fi
}

# ^C while it boots: nothing is left.
"$sanlab" up >"$work/up" 2>&1 &
up=$!
eventually test -S "$SANLAB_RUN/guest1.agent"
interrupted $up
code=$?
if [ $code -eq 130 ] && [ "$("$sanlab" status)" = "no lab is up; start one with: sanlab up" ] && ! pgrep -f "$work/run" >/dev/null
then ok "^C undoes sanlab up"; else not_ok "^C in sanlab up: status $code"; cat "$work/up"; fi

check "two guests come up" "$sanlab" up
check "both links are up" wait_for_links 2
conformance "checking IOMMU"
nic_state() { [ "$("$sanlab" status --nic guest1 | python3 -c "import json, sys; d = json.load(sys.stdin); print(d['link'], sorted(d['count']))")" = "UP ['cq', 'listener', 'mr', 'pd', 'qp', 'request']" ]; }
check "the state of a guest's NIC can be read" nic_state
check "all bandwidth and latency tests both ways, verified" "$sanlab" run --timeout 60 --json "$work/all.json" all
# A third guest joins; what the running lab cannot take up is named.
joins() { "$sanlab" up --guests 3 --memory 1024 2>&1 | tee "$work/join" && [ "$(status_of "len(d['guests'])")" = 3 ] && grep -q 'keeps memory of 512 MiB' "$work/join"; }
check "a third guest joins the lab that is up, and keeps its memory" joins
check "all three are linked" wait_for_links 3
check "traffic with the third" "$sanlab" run --timeout 60 --from 3 --to 2 write_bw -n 200
refuses "fewer guests than there are" 2 "the lab that is up has 3 guests; for fewer: sanlab down" "$sanlab" up --guests 2

# Two at once, and ^C: the programs in the guests end with the command.
before=$(bytes_moved)
"$sanlab" run --timeout 50 write_bw -s 1M -n 2000000 --no-verify >"$work/traffic" 2>&1 &
client=$!
wait_for_traffic "$before"
refuses "a guest that is busy" 2 "guest1 is busy with sanlab run write_bw (pid $client)" "$sanlab" run --to 3 read_bw
check "sanlab up leaves busy guests alone" "$sanlab" up
kill -0 $client && ok "and their traffic goes on" || not_ok "their traffic ended"
interrupted $client
code=$?
if [ $code -eq 130 ] && grep -q 'sanlab: interrupted' "$work/traffic"; then ok "^C ends a run with status 130"; else not_ok "^C in a run: status $code"; cat "$work/traffic"; fi
check "the guests are free at once" timeout 30 "$sanlab" run --timeout 20 write_bw -n 200
kill_in_traffic "$(status_of "d['guests'][1]['pid']")" "a killed guest ends its peer's operations with an error within 5 seconds"
check "the killed guest is booted again" "$sanlab" up
check "and takes part in traffic" "$sanlab" run --timeout 60 write_bw -n 500
fabric=$(pgrep -f "sanfabricd $SANLAB_RUN/fabric.sock")
before=$(bytes_moved)
timeout 90 "$sanlab" run --timeout 80 write_bw -n 300000 --no-verify >"$work/traffic" 2>&1 &
client=$!
wait_for_traffic "$before"
kill -KILL "$fabric"
alive=no
kill -0 $client && alive=yes
if wait $client && [ $alive = yes ]; then ok "traffic goes on when the manager is killed"; else not_ok "traffic when the manager is killed"; tail -n 15 "$work/traffic"; fi
check "a new manager is started" "$sanlab" up
check "and finds its NICs" wait_for_links 3
check "and traffic goes on" "$sanlab" run --timeout 60 read_bw -n 500
check "the lab ends" "$sanlab" down
check "a lab without IOMMU and without shared memory comes up" "$sanlab" up --no-iommu --private-memory --revoke deregister
conformance "no IOMMU, private memory, revoke=deregister"
check "traffic through the rings is verified" "$sanlab" run --timeout 60 write_bw -n 500
"$sanlab" down >"$work/down" 2>&1 &
down=$!
eventually test -e "$work/down"
interrupted $down
code=$?
if [ $code -eq 0 ] && "$sanlab" status | grep -q 'no lab is up'; then ok "the lab ends, ^C or not"; else not_ok "^C in sanlab down: status $code"; cat "$work/down"; fi
if pgrep -f "$work/run" >/dev/null; then not_ok "something was left running: $(pgrep -af "$work/run")"; else ok "nothing is left running"; fi
trap - EXIT
summary
