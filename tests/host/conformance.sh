#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# santest.exe between two nthost processes: on both kinds of NIC, and with data through the rings. Each rule counts as a test.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
for kind in "--revoke key" "--revoke deregister" "--revoke key --no-direct"; do
  # shellcheck disable=SC2086
  timeout 120 "$sanlab" run --on host $kind --timeout 60 santest >"$work/santest" 2>&1
  status=$?
  while read -r id result rest; do
    case $result in
      pass) passed=$((passed + 1)) ;;
      n/a) skipped=$((skipped + 1)) ;;
      *) not_ok "$id ($kind): $result $rest" ;;
    esac
  done < <(grep -E '^WSD-[0-9]+' "$work/santest")
  count=$(grep -cE '^WSD-[0-9]+' "$work/santest")
  if [ "$count" -lt 40 ] || { [ $status -ne 0 ] && ! grep -q ' fail' "$work/santest"; }; then
    not_ok "santest $kind: status $status after $count rules"
    tail -n 25 "$work/santest" | sed 's/^/    /'
  else
    echo "ok santest $kind: $count rules"
  fi
done
summary
