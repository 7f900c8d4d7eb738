#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# A NIC that stops answering, and one that is pulled out, in the middle of everything: operations end with an error in time, the program
# goes on to its end, the peer notices, and nothing is left behind (nthost looks for it).
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
start_fabric

machine() { # number, device's options, nthost's --, program...
  nthost_of "$work/fabric" "$1" "$2"
  shift 2
  exec timeout 60 "${nthost[@]}" --timeout 50 "$@"
}
# lost DEVICE OPTIONS PROGRAM SERVER-ARGUMENTS CLIENT-ARGUMENTS: the client's machine loses its NIC. Both ends in time, with status 0 or 1.
lost() {
  local device=$1 options=$2 program=$3 serve=$4 begin server status peer
  shift 4
  # shellcheck disable=SC2086
  (machine 2 '' -- "$out/windows/$program" $serve) >"$work/server.log" 2>&1 &
  server=$!
  begin=$(date +%s%N)
  # shellcheck disable=SC2086
  (machine 1 "$device" $options -- "$out/windows/$program" "$@") >"$work/client.log" 2>&1
  status=$?
  took=$((($(date +%s%N) - begin) / 1000000))
  wait $server
  peer=$?
  cat "$work/client.log" "$work/server.log"
  echo "client's status $status after $took ms, partner's $peer"
  [ $status -le 1 ] && [ $peer -le 1 ] && ! grep -qiE 'bugcheck|host error|left behind|unloaded and left' "$work/client.log" "$work/server.log"
}
traffic() { # MS DEVICE PROGRAM'S ARGUMENTS: pulled after that time, in the middle of endless traffic
  local ms=$1 device=$2
  shift 2
  lost "$device" "--unplug $ms" sanperf.exe "$*" "$@" --size=256K --iters=10000000 10.0.0.2 && [ $took -lt $((ms + 4000)) ] &&
    grep -q 'the device was pulled' "$work/client.log" && grep -q 'network is down (10050)' "$work/client.log" &&
    grep -qE 'connection (aborted|reset)' "$work/server.log"
}
for device in '' ,msi=off ,revoke=deregister; do
  check "pulled during polled RDMA writes${device:+, ${device#,}}" traffic 1500 "$device" write_bw
  check "pulled during notified sends${device:+, ${device#,}}" traffic 1500 "$device" send_bw --events
done
check "pulled during RDMA reads" traffic 1500 '' read_bw
check "pulled during registration" traffic 1500 '' reg_rate
for ms in 30 150 400 700 1000 1300; do
  check "pulled $ms ms into santest" lost '' "--unplug $ms" santest.exe '--serve --timeout=3' --timeout=3 10.0.0.2
done
later() { # a program that finds no NIC says so, and the machine goes on
  (machine 1 '' --unplug 300 -- "$out/windows/santest.exe" --serve --timeout=1 --and "$out/windows/santest.exe" --serve --timeout=2 --port=7000) >"$work/later.log" 2>&1
  [ $? -eq 1 ] && [ "$(grep -c 'santest: no client came' "$work/later.log")" -eq 2 ]
}
check "programs that wait for a peer end by their own time-out" later

silent() { # N: the Nth command is never answered; the program must not wait much longer than CommandTimeout
  lost ",fail-command=$1,fail-status=no-answer" "--set CommandTimeout=300" santest.exe '--serve --timeout=3' --timeout=3 10.0.0.2 && [ $took -lt 9000 ] &&
    grep -q "fail-command: command $1 (opcode [0-9]*) is never answered" "$work/client.log" && grep -q 'has not answered a command for 300 ms' "$work/client.log"
}
for n in 1 2 4 5 7 8 12 25 60 150 400; do check "no answer to command $n" silent $n; done
range() {
  (machine 1 '' --set CommandTimeout="$1" -- "$out/windows/santest.exe" --filter=WSD-036) >"$work/range.log" 2>&1
  grep -q "CommandTimeout $1 is not from 100 to 60000" "$work/range.log" && grep -q '^WSD-036 pass' "$work/range.log"
}
check "a CommandTimeout that is too short is named, and not used" range 99
check "a CommandTimeout that is too long is named, and not used" range 60001
summary
