#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# sanperf.exe between two nthost processes: every test, every size, verified.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
for test in write_bw read_bw send_bw; do
  check "$test verifies its data, direct" "$sanlab" run --on host --timeout 60 $test -s 65536 -n 2000
  check "$test verifies its data, through the rings" "$sanlab" run --on host --no-direct --timeout 60 $test -s 65536 -n 2000
  check "$test with notified completions" "$sanlab" run --on host --timeout 60 $test -s 4096 -n 2000 --events
done
for test in write_lat read_lat send_lat reg_lat reg_rate; do
  check "$test" "$sanlab" run --on host --timeout 60 $test -n 200
done
check "odd sizes are verified, too" "$sanlab" run --on host --timeout 60 write_bw -s 12345 -n 500
check "figures as JSON" bash -c "'$sanlab' run --on host --timeout 60 write_bw --json '$work/j' -n 500 && python3 -c \"
import json; d = json.load(open('$work/j'))
assert d['test'] == 'write_bw' and d['memcpy_bytes_per_second'] > 0 and all(r['verified'] for r in d['results']), d\""
check "on a NIC that revokes by deregistration" "$sanlab" run --on host --revoke deregister --timeout 60 write_bw -n 500
summary
