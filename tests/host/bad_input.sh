#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Wrong options, paths and sizes: one line that says which value was wrong and what is accepted, status 2, nothing left running.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
export SANLAB_RUN=$work/run
refuses "unknown command" 2 "frobnicate" "$sanlab" frobnicate
refuses "unknown test" 2 "write_bx" "$sanlab" run --on host write_bx
refuses "unknown place" 2 "moon" "$sanlab" run --on moon write_bw
refuses "run without a lab" 2 "sanlab up" "$sanlab" run write_bw
refuses "number of guests out of range" 2 "99" "$sanlab" up --guests 99
refuses "bad size" 2 "1 to 1G" "$sanlab" run --on host write_bw -s 0
refuses "bad depth" 2 "1 to 4096" "$sanlab" run --on host write_bw -t 99999
refuses "libvirt that is not there" 2 "nosuch" "$sanlab" up --connect nosuch:///system
refuses "a file for the figures that cannot be written is refused before the run" 2 "--json /nonexistent/j: No such file" \
  "$sanlab" run --on host --json /nonexistent/j write_bw
refuses "a folder for the figures" 2 "Is a directory" "$sanlab" run --on host --json "$work" write_bw
refuses "figures of santest" 2 "santest has no figures" "$sanlab" run --on host --json - santest
refuses "an option of sanlab behind the test" 2 "--json is an option of sanlab run: it stands before write_bw" "$sanlab" run --on host write_bw --json=-
refuses "socket path too long" 2 "1 to 107 characters" "$top/out/linux/sanfabricd" "/tmp/$(printf 'x%.0s' {1..200})"
refuses "socket in a folder that does not exist" 2 "/nonexistent/s" "$top/out/linux/sanfabricd" /nonexistent/s
refuses "unknown part to build" 2 "unknown part 'qemo'" "$top/scripts/build" qemo
refuses "unknown tier to test" 2 "unknown tier 'unti'" "$top/scripts/test" unti
refuses "demo with an unknown option" 2 "--jsno" "$top/scripts/demo" --jsno
for script in setup build build-qemu sign demo test bench conformance; do
  refuses "$script with an unknown option" 2 "--frobnicate" "$top/scripts/$script" --frobnicate
  for help in -h --help; do
    check "$script $help says how to use it" bash -c "'$top/scripts/$script' $help >'$work/help' && grep -q 'scripts/$script' '$work/help' && ! grep -q '^#' '$work/help'"
  done
done
refuses "an option without its value" 2 "--json takes a file name" "$top/scripts/demo" --json
mkdir -p "$work/damaged"
for damage in '' '{' '[]' '{"uri": "x", "guests": 5}' '{}' '{"uri":"x"}'; do
  echo "$damage" >"$work/damaged/lab.json"
  refuses "lab.json that says '$damage'" 2 "lab.json is damaged; end what is left of the lab with: sanlab down" env SANLAB_RUN="$work/damaged" "$sanlab" status
done
check "status without a lab says how to start one" bash -c "'$sanlab' status | grep -q 'sanlab up'"
check "down without a lab is fine" "$sanlab" down
if pgrep -f "$work" >/dev/null; then not_ok "something was left running"; else ok "nothing is left running"; fi
summary
