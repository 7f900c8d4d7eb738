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
refuses "a test program that fails fails the command" 2 "1 to 1G" "$sanlab" run --on host write_bw -s 0
summary
