#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# `sanlab run --on host`: its options, its figures, its exit status. (provider.sh tests what runs inside.)
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
check "santest through the command: every rule of the contract is reported, none fails" bash -c "'$sanlab' run --on host --timeout 90 santest >'$work/santest'
  status=\$?; rules=\$(grep -cE '^WSD-[0-9]+ (pass|n/a)' '$work/santest'); grep -E '^WSD-[0-9]+ fail' '$work/santest'
  echo \"\$rules rules, status \$status\"; [ \$status -eq 0 ] && [ \$rules -eq 150 ]"
check "data through the rings is verified" "$sanlab" run --on host --no-direct --timeout 60 write_bw -n 2000
check "a NIC that revokes by deregistration" "$sanlab" run --on host --revoke deregister --timeout 60 write_bw -n 500
check "odd sizes are verified, too" "$sanlab" run --on host --timeout 60 write_bw -s 12345 -n 500
check "figures as JSON" bash -c "'$sanlab' run --on host --timeout 60 --json '$work/j' write_bw -n 500 && python3 -c \"
import json; d = json.load(open('$work/j'))
assert d['test'] == 'write_bw' and d['memcpy_bytes_per_second'] > 0 and all(r['verified'] for r in d['results']), d\""
check "all tests both ways, one table" bash -c "'$sanlab' run --on host --timeout 60 all >'$work/table' && [ \$(grep -c ' yes\$' '$work/table') -eq 18 ]"
check "figures on standard output are alone there" bash -c "'$sanlab' run --on host --timeout 60 --json - write_bw -n 300 2>'$work/err' | python3 -m json.tool >/dev/null &&
  grep -q 'BW average' '$work/err'"
check "an option without a value before the test" "$sanlab" run --no-direct --on host write_lat -n 100
check "the test program's own help" bash -c "'$sanlab' run write_bw -h | grep -q -- --tx-depth && '$sanlab' run santest --help | grep -q -- --filter"
check "the help of sanlab run" bash -c "'$sanlab' run -h | grep -q -- --timeout"
for program in sanlab sanfabricd nthost; do
  check "$program says its version" bash -c "[ \"\$('$out/linux/$program' --version)\" = \"$program \$(sed -n \"s/.*version: '\\([0-9.]*\\)',\$/\\1/p\" '$top/meson.build')\" ]"
done
for program in sanperf santest; do
  check "$program says its version" bash -c "'$out/linux/nthost' --path '$out/windows' -- '$out/windows/$program.exe' --version | grep -qE '^$program [0-9]+(\\.[0-9]+)+\\s*\$'"
done
refuses "a test program that fails fails the command" 2 "1 to 1G" "$sanlab" run --on host write_bw -s 0

# ^C in the middle of traffic.
"$sanlab" run --on host --timeout 60 write_bw -s 1M -n 2000000 --no-verify >"$work/traffic" 2>&1 &
client=$!
programs=$(readlink -f "$out/windows")
traffic() { [ "$(pgrep -c -f -- "--path $programs .* write_bw -s 1M -n 2000000")" = 2 ] && grep -q 'BW average' "$work/traffic"; }
eventually traffic || { not_ok "no traffic to interrupt"; cat "$work/traffic"; }
interrupted $client
code=$?
if [ $code -eq 130 ] && ! pgrep -f -- "--path $programs .* write_bw -s 1M -n 2000000" >/dev/null && grep -q 'sanlab: interrupted' "$work/traffic"
then ok "^C ends a run with status 130, and what it started"; else not_ok "^C in a run: status $code"; cat "$work/traffic"; fi
summary
