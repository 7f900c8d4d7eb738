#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# sanctl.exe in nthost, which stands in for Windows: registry and catalogs in a JSON file, the Windows directory in a folder. Install,
# uninstall and status on machines in several states; every call to registry, catalog, drivers and files failing in turn; two failures.
#   tests/host/sanctl.sh          (SANLAB_SWEEP=all: every pair of failures, not a selection)
#   tests/host/sanctl.sh rules    only as far as the rules about installation
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
m=$work/machine.json win=$work/windows src=$work/source old=$work/older
id='{5A4E1A60-7C1B-4E0D-9B52-3C8D0E5F7A11}'
fail=()

# The files to install, and those of an older version: the first bytes of each, as nobody runs them here.
mkdir -p "$src" "$old" "$win"
cp "$out"/windows/driver/{sanctl.exe,sanproxy.inf} "$src"
for f in sanprov.dll sanprov32.dll sanproxy.sys; do head -c 5000 "$out/windows/driver/$f" >"$src/$f"; done
: >"$src/sanproxy.cat"
cp "$src"/* "$old"
for f in sanprov.dll sanprov32.dll sanproxy.sys; do printf older >>"$old/$f"; done
sed -i 's/0\.1\.0\.0/0.0.9.0/' "$old/sanproxy.inf"

nt() { timeout 60 "$out/linux/nthost" --registry "$m" --windows "$win" "${fail[@]}" -- "$@"; }
plain=("$out/linux/nthost" --registry "$m" --windows "$win" --)
sanctl() { nt "$src/sanctl.exe" "$@"; }
# What a machine holds, but for catalog ids, which Windows does not give twice.
state() {
  grep -vE '^ *"(next_catalog_id|id)": [0-9]+,$' "$m"
  (cd "$win" && find . -type f | LC_ALL=C sort | xargs -r sha1sum)
}
# Where our entry stands among the others may differ: one that was there keeps its place, a new one comes last.
ours_last() {
  python3 - "$1" <<'P'
import json, sys
text = open(sys.argv[1]).read()
end = text.rindex("\n}") + 2
j = json.loads(text[:end])
for c in ("catalog64", "catalog32"):
    j[c].sort(key=lambda e: "sanprov" in e["path"])
open(sys.argv[1], "w").write(json.dumps(j, indent=1) + text[end:])
P
}
keep() { rm -rf "$work/kept-$1"; mkdir "$work/kept-$1"; cp -r "$m" "$win" "$work/kept-$1"; }
restore() { rm -rf "$win"; cp -r "$work/kept-$1/windows" "$win"; cp "$work/kept-$1/machine.json" "$m"; }

entry() { # id, last digit of the provider's id, path
  echo "{\"id\": $1, \"provider\": \"{E70F1AA0-AB8B-11CF-8CA3-00805F48A19$2}\", \"path\": \"%SystemRoot%\\\\system32\\\\$3\", \"protocol\": \"text of $3\",
    \"service_flags\": [131174, 1, 2, 3], \"provider_flags\": 8, \"chain_length\": 3, \"chain\": [5, 6, 7], \"version\": 2, \"family\": 2, \"max_address\": 16,
    \"min_address\": 16, \"socket_type\": 1, \"protocol_number\": 6, \"protocol_max_offset\": 1, \"byte_order\": 0, \"security\": 1, \"message_size\": 7}"
}
foreign64=$(entry 1010 1 tcp.dll),$(entry 1004 2 udp.dll),$(entry 1007 3 layer.dll)
foreign32=$(entry 1008 3 layer.dll),$(entry 1011 1 tcp.dll)
nic='{"hardware_ids": ["PCI\\VEN_1234&DEV_5A4E&SUBSYS_11001AF4&REV_01", "PCI\\VEN_1234&DEV_5A4E"]}'
disk='{"hardware_ids": ["PCI\\VEN_1AF4&DEV_1001"], "inf": "oem0.inf", "service": "viostor"}'
list='HKLM\\System\\CurrentControlSet\\Services\\Winsock\\Parameters'
fresh_windows() {
  rm -rf "$win"
  mkdir -p "$win"/{INF,System32/drivers,SysWOW64}
  echo "another driver's INF" >"$win/INF/oem0.inf"
  echo "another driver" >"$win/System32/drivers/viostor.sys"
  echo "another DLL" >"$win/System32/other.dll"
}
describe() { # devices, further members of the machine, registry below the list key's parent
  echo "{$2 \"devices\": [$1], \"next_catalog_id\": 1012, \"catalog64\": [$foreign64], \"catalog32\": [$foreign32],
    \"registry\": {\"HKLM\\\\System\\\\Setup\": {\"class\": \"x\", \"values\": {\"B\": {\"type\": \"REG_SZ\", \"data\": \"text\"}, \"A\": {\"type\": \"REG_DWORD\", \"data\": 5}}}, $3}}" >"$m"
  sanctl status >/dev/null # brings the file into nthost's form
}
# A Windows that never had a SAN provider, and where there is a NIC.
make_bare() { fresh_windows; describe "$disk, $nic" '' "\"$list\": {\"values\": {\"Transports\": {\"type\": \"REG_MULTI_SZ\", \"data\": [\"Tcpip\"]}}}"; }
# Another SAN provider is there, and no NIC of ours.
make_shared() {
  fresh_windows
  describe "$disk" '' "\"$list\\\\TCP on SAN\": {\"values\": {\"zeta\": {\"type\": \"REG_BINARY\", \"data\": \"a01a0fe78babcf118ca300805f48a192\"}, \"alpha\": {\"type\": \"REG_SZ\", \"data\": \"odd\"}}}"
}
# The key is there and empty: uninstalling must not take it away.
make_empty_key() { fresh_windows; describe "$disk" '' "\"$list\\\\TCP on SAN\": {\"values\": {}}"; }
# An older version.
make_old() { make_bare; nt "$old/sanctl.exe" install >/dev/null; }
# Somebody has begun: a wrong value, one catalog only, with a wrong path; one old file; no driver.
make_half() {
  make_old
  python3 - "$m" <<'P'
import json, sys
j = json.load(open(sys.argv[1]))
k = next(k for k in j["registry"] if k.endswith("TCP on SAN"))
j["registry"][k]["values"][next(iter(j["registry"][k]["values"]))] = {"type": "REG_SZ", "data": "not the id"}
j["catalog32"] = [e for e in j["catalog32"] if "sanprov" not in e["path"]]
ours = j["catalog64"].pop()
ours["path"] = r"C:\elsewhere\sanprov.dll"
j["catalog64"].insert(1, ours)
j["registry"] = {k: v for k, v in j["registry"].items() if not k.endswith("sanproxy")}
j["devices"] = [{"hardware_ids": d["hardware_ids"], **({} if "5A4E" in d["hardware_ids"][0] else {k: d[k] for k in ("inf", "service")})} for d in j["devices"]]
j["packages"] = {}
json.dump(j, open(sys.argv[1], "w"))
P
  rm "$win/INF/oem1.inf" "$win/System32/drivers/sanproxy.sys" "$win/SysWOW64/sanprov.dll"
  echo half >"$win/System32/sanprov.dll.new"
  sanctl status >/dev/null
}

# --- the command line
refuses "no command" 2 "no command (accepted: install, uninstall, status)" "${plain[@]}" "$src/sanctl.exe"
make_bare
keep bare
for bad in "instal|unknown command 'instal'" "install status|unexpected 'status' after install" "status --dry-run|--dry-run is for install and uninstall" \
  "install --json|--json is for status" "install --driver-dir|--driver-dir needs the name of a folder" "install --force|unknown option '--force'"; do
  # shellcheck disable=SC2086
  refuses "sanctl ${bad%%|*}" 2 "${bad#*|}" "${plain[@]}" "$src/sanctl.exe" ${bad%%|*}
done
check "--help names every command, option and exit status" sh -c "'$out/linux/nthost' -- '$src/sanctl.exe' --help | tr '\n' ' ' |
  grep -q 'install .*uninstall .*status .*--driver-dir .*--dry-run .*--json .*Exit status: 0 .* 1 .* 2 .* 3 '"
check "--version" sh -c "'$out/linux/nthost' -- '$src/sanctl.exe' --version | grep -qE '^sanctl [0-9.]+$'"
refuses "a folder without the files" 3 "looking for $(sed 's|/|\\|g' <<<"$work/nowhere")" "${plain[@]}" "$src/sanctl.exe" install --driver-dir "$(sed 's|/|\\|g' <<<"$work/nowhere")"
refuses "no Windows directory" 3 "Windows does not say where it is installed" "$out/linux/nthost" -- "$src/sanctl.exe" status

# same NAME: whether the machine is in the state that is in the file.
same() { state >"$work/now"; check "$1" diff "$2" "$work/now"; }
# run NAME STATUS ARGUMENTS: output is in $work/log.
run() {
  local name=$1 status=$2 got
  shift 2
  sanctl "$@" >"$work/log" 2>&1
  got=$?
  if [ $got -eq "$status" ]; then ok "$name"; else not_ok "$name: status $got, expected $status"; sed 's/^/    /' "$work/log"; fi
}
says() { check "$1" grep -qE -- "$2" "$work/log"; }

state >"$work/before"
run "install --dry-run on a bare machine" 0 install --dry-run
says "... says what it would do" "^Winsock catalog +would be installed"
same "... and does nothing" "$work/before"

# --- the whole way on a bare machine
run "status of a bare machine" 1 status
check "... everything is missing" test "$(grep -cE '  missing ' "$work/log")" -eq 7
run "install" 0 install
cp "$work/log" "$work/log-install"
check "... six steps" test "$(grep -cE '  installed$' "$work/log")" -eq 6
list_machine() {
  python3 - "$m" <<'P'
import json, sys
j = json.load(open(sys.argv[1]))
for c in ("catalog64", "catalog32"):
    for e in j[c]:
        print(c, *(e[k] for k in ("id", "provider", "path")))
        if "sanprov" in e["path"]:
            print(c, {k: v for k, v in e.items() if k not in ("id", "provider", "path")})
for key, content in j["registry"].items():
    print(key, content.get("class", "-"))
    for name, value in content["values"].items():
        print("   ", name, value["type"], value["data"])
for d in j["devices"]:
    print(d["hardware_ids"][-1], d.get("inf"), d.get("service"))
P
}
ours="{'protocol': 'sanlab SAN provider', 'service_flags': [46, 0, 0, 0], 'provider_flags': 4, 'chain_length': 1, 'chain': [], 'version': 2, 'family': 2, \
'max_address': 16, 'min_address': 16, 'socket_type': 1, 'protocol_number': 6, 'protocol_max_offset': 0, 'byte_order': 0, 'security': 0, 'message_size': 4294967295}"
cat >"$work/expected" <<X
catalog64 1010 {E70F1AA0-AB8B-11CF-8CA3-00805F48A191} %SystemRoot%\\system32\\tcp.dll
catalog64 1004 {E70F1AA0-AB8B-11CF-8CA3-00805F48A192} %SystemRoot%\\system32\\udp.dll
catalog64 1007 {E70F1AA0-AB8B-11CF-8CA3-00805F48A193} %SystemRoot%\\system32\\layer.dll
catalog64 1012 $id %SystemRoot%\\System32\\sanprov.dll
catalog64 $ours
catalog32 1008 {E70F1AA0-AB8B-11CF-8CA3-00805F48A193} %SystemRoot%\\system32\\layer.dll
catalog32 1011 {E70F1AA0-AB8B-11CF-8CA3-00805F48A191} %SystemRoot%\\system32\\tcp.dll
catalog32 1013 $id %SystemRoot%\\System32\\sanprov.dll
catalog32 $ours
HKLM\\System\\CurrentControlSet\\Services\\sanproxy -
    Type REG_DWORD 1
    Start REG_DWORD 3
    ErrorControl REG_DWORD 1
    ImagePath REG_EXPAND_SZ system32\\DRIVERS\\sanproxy.sys
    DisplayName REG_SZ sanlab SAN proxy driver
HKLM\\System\\CurrentControlSet\\Services\\Winsock\\Parameters -
    Transports REG_MULTI_SZ ['Tcpip']
HKLM\\System\\CurrentControlSet\\Services\\Winsock\\Parameters\\TCP on SAN sanctl
    $id REG_BINARY 601a4e5a1b7c0d4e9b523c8d0e5f7a11
HKLM\\System\\Setup x
    B REG_SZ text
    A REG_DWORD 5
PCI\\VEN_1AF4&DEV_1001 oem0.inf viostor
PCI\\VEN_1234&DEV_5A4E oem1.inf sanproxy
X
list_machine >"$work/listing"
check "registry, catalogs and devices are exactly as expected" diff "$work/expected" "$work/listing"
for f in "System32/sanprov.dll sanprov.dll" "SysWOW64/sanprov.dll sanprov32.dll" System32/drivers/sanproxy.sys\ sanproxy.sys INF/oem1.inf\ sanproxy.inf; do
  check "${f% *} is ${f#* }" cmp "$win/${f% *}" "$src/${f#* }"
done
# The rules about installation, one by one: scripts/conformance takes these lines.
rule() { # id, text, condition in Python over `both` (our entries in either catalog), `ours`, `values` (TCP on SAN) and `log`
  check "$1 $2" python3 -c 'import json, sys
j, log = json.load(open(sys.argv[1])), open(sys.argv[2]).read()
both = [[e for e in j[c] if "sanprov" in e["path"]] for c in ("catalog64", "catalog32")]
ours = [e for c in both for e in c]
values = next(k["values"] for name, k in j["registry"].items() if name.endswith("Winsock\\Parameters\\TCP on SAN"))
assert '"$3"', (ours, values)' "$m" "$work/log-install"
}
rule WSD-001 "installed as a base provider" 'ours and all(e["chain_length"] == 1 for e in ours)'
rule WSD-002 "PFL_HIDDEN is set" 'all(e["provider_flags"] & 4 for e in ours)'
rule WSD-003 "ProviderId stands under TCP on SAN" '[v for v in values.values() if v["type"] == "REG_BINARY" and v["data"] == "601a4e5a1b7c0d4e9b523c8d0e5f7a11"] and ours[0]["provider"] == "'"$id"'"'
rule WSD-004 "the value's name is unique: the id itself" 'list(values) == ["'"$id"'"]'
rule WSD-005 "the registry value comes before the catalog entry" '0 <= log.find("TCP on SAN") < log.find("Winsock catalog")'
rule WSD-006 "XP1_CONNECTIONLESS is not set" 'all(not e["service_flags"][0] & 1 for e in ours)'
rule WSD-007 "XP1_QOS_SUPPORTED is not set, as there is no QoS" 'all(not e["service_flags"][0] & 0x2000 for e in ours)'
rule WSD-008 "both bitnesses are installed" '[len(c) for c in both] == [1, 1]'
if [ "${1:-}" = rules ]; then summary; exit; fi
check "no other file has come" test "$(find "$win" -type f | wc -l)" -eq 7
run "status when all is installed" 0 status
check "... says so seven times" test "$(grep -cE '  installed ' "$work/log")" -eq 7
run "status --json" 0 status --json
check "... is JSON that says the same" python3 -c 'import json, sys; j = json.load(open(sys.argv[1])); assert j["installed"] is True
assert [i["state"] for i in j["items"]] == ["installed"] * 7, j' "$work/log"
state >"$work/installed"
cp "$m" "$work/m-once"
run "install again" 0 install
check "... changes nothing" cmp "$m" "$work/m-once"
check "... and says so" test "$(grep -cE '  unchanged$' "$work/log")" -eq 6
same "... files neither" "$work/installed"
run "uninstall" 0 uninstall
same "... leaves exactly what there was before" "$work/before"
run "uninstall again" 0 uninstall
same "... changes nothing" "$work/before"
check "... and says so" test "$(grep -cE '  unchanged$' "$work/log")" -eq 6

# --- other machines
made=(bare)
for machine in shared empty_key old half; do
  make_$machine
  keep $machine
  made+=("$machine")
  state >"$work/before-$machine"
done
for machine in shared empty_key; do
  restore $machine
  run "$machine: install, where there is no NIC" 0 install
  run "$machine: status" 0 status
  says "... the NIC's driver waits for a NIC" "^driver of the NIC +no NIC"
  run "$machine: uninstall" 0 uninstall
  same "$machine: ... leaves what was there before, in its order" "$work/before-$machine"
done
restore old
run "status of an older version" 1 status
check "... two files, the driver and its package differ" test "$(grep -cE '  different ' "$work/log")" -eq 4
run "install over an older version" 0 install
run "... all is installed" 0 status
check "... the catalog entries are the same ones" diff <(sed -n '/catalog64/,/"registry"/p' "$work/kept-old/machine.json") <(sed -n '/catalog64/,/"registry"/p' "$m")
run "... uninstall" 0 uninstall
restore bare && state >"$work/bare" && restore half
run "status of a half-installed state" 1 status
says "... the value differs" "^TCP on SAN +different"
says "... the 64-bit entry differs" "^Winsock catalog +different .*elsewhere"
says "... the 32-bit entry is missing" "^Winsock catalog, 32-bit +missing"
run "install completes it" 0 install
state >"$work/now"
check "... the entry keeps its place" test "$(grep -n sanprov.dll "$work/now" | head -n 1 | cut -d: -f1)" -lt "$(grep -n udp.dll "$work/now" | head -n 1 | cut -d: -f1)"
ours_last "$work/now" && cp "$work/installed" "$work/wanted" && ours_last "$work/wanted"
check "... and otherwise to what a fresh install gives" diff "$work/wanted" "$work/now"
restore half
run "uninstall cleans it up" 0 uninstall
same "... to what was there before" "$work/bare"
restore bare
sed -i '0,/{/s//{ "catalog_adds_first": true,/' "$m"
run "install where Windows puts new providers first" 0 install
check "... ours is last all the same" python3 -c 'import json, sys; j = json.load(open(sys.argv[1])); assert [e["id"] for e in j["catalog64"]] == [1010, 1004, 1007, 1012]
assert [e["id"] for e in j["catalog32"]] == [1008, 1011, 1013]' "$m"
restore bare
sed -i 's/"runs_32_bit": true/"runs_32_bit": false/' "$m"
run "install on a Windows without 32-bit programs" 0 install
run "... status" 0 status
check "... nothing is said of 32 bits" sh -c "! grep -q 32-bit '$work/log' && ! test -e '$win/SysWOW64/sanprov.dll'"

# --- files in use
restore old
sed -i '0,/{/s//{ "in_use": ["System32\/sanprov.dll"],/' "$m"
run "install while the older DLL is in use" 0 install
check "... puts it aside until Windows restarts" sh -c "cmp '$win/System32/sanprov.dll.old' '$old/sanprov.dll' && grep -A1 at_restart '$m' | grep -q 'sanprov.dll.old'"
check "... and the new one is in place" cmp "$win/System32/sanprov.dll" "$src/sanprov.dll"
run "... status" 0 status
says "... tells of it" "installed .*until Windows restarts: .*sanprov.dll.old"
restore bare
sanctl install >/dev/null
sed -i '0,/{/s//{ "in_use": ["System32\/sanprov.dll", "System32\/drivers\/sanproxy.sys"],/' "$m"
run "uninstall while DLL and driver are in use" 0 uninstall
check "... puts them aside until Windows restarts" test "$(grep -c '\.old"' "$m")" -eq 2
restore bare
sed -i '0,/{/s//{ "in_use": ["System32\/other.dll"],/' "$m"

# --- every call failing in turn
kinds=(registry catalog driver file)
declare -A total # calls of a kind in a run without failures
# sweep MACHINE COMMAND: the state after a run without failure, then with each call failing.
sweep() {
  local machine=$1 command=$2 kind n status bad runs=0 good
  restore "$machine"
  sanctl "$command" >/dev/null 2>&1
  good=$work/good-$machine-$command
  state >"$good"
  for kind in "${kinds[@]}"; do
    bad=0
    for ((n = 1; n < 1000; n++)); do
      restore "$machine"
      fail=(--fail "$kind:$n")
      sanctl "$command" >"$work/log" 2>&1
      status=$?
      fail=()
      grep -q "was not reached" "$work/log" && break
      runs=$((runs + 1))
      state >"$work/now"
      if [ $status -eq 0 ]; then
        # Only what comes after the last step may fail so: a remark, and the next run tidies up.
        grep -q "remark on step" "$work/log" && sanctl "$command" >/dev/null 2>&1 && state >"$work/now" && cmp -s "$work/now" "$good" && continue
      elif [ $status -eq 3 ] && cmp -s "$work/now" "$work/before-$machine" &&
        grep -qE 'step ".*" failed: .*: error [0-9]+|^sanctl: looking for .*: error' "$work/log" && grep -q "what to do: " "$work/log" &&
        grep -qE 'this machine is as it was before|nothing was changed' "$work/log"; then
        continue
      fi
      bad=1
      not_ok "$machine, $command: $kind call $n fails: status $status"
      { cat "$work/log"; diff "$work/before-$machine" "$work/now"; } | sed 's/^/    /' | head -n 40
      break
    done
    total[$machine-$command-$kind]=$((n - 1))
    [ $bad -eq 0 ] && ok "$machine, $command: each of $((n - 1)) $kind calls failing in turn: as before, and the step is named"
  done
}
cp "$work/bare" "$work/before-bare"
for machine in "${made[@]}"; do
  sweep "$machine" install
  sweep "$machine" uninstall
done
restore bare
sanctl install >/dev/null
keep installed
state >"$work/before-installed"
sweep installed install
sweep installed uninstall

# --- two calls failing: also those that undo
# mends COMMAND MACHINE: whether the command ends in the state that it ends in without failures.
mends() {
  sanctl "$1" >"$work/log2" 2>&1 || return 1
  state >"$work/now"
  cp "$work/good-$2-$1" "$work/wanted"
  cmp -s "$work/now" "$work/wanted" || { ours_last "$work/now"; ours_last "$work/wanted"; cmp -s "$work/now" "$work/wanted"; }
}
# twice MACHINE COMMAND STEP: of the pairs of calls about one in STEP * STEP.
twice() {
  local machine=$1 command=$2 step=$3 k1 k2 n1 n2 runs=0 left=0 bad=0 status
  for k1 in "${kinds[@]}"; do
    for ((n1 = 1; n1 <= total[$machine-$command-$k1]; n1 += step)); do
      for k2 in "${kinds[@]}"; do
        for ((n2 = n1 % step + 1; n2 < 1000; n2 += step)); do
          [ "$k1" = "$k2" ] && [ "$n2" -le "$n1" ] && continue
          restore "$machine"
          fail=(--fail "$k1:$n1" --fail "$k2:$n2")
          sanctl "$command" >"$work/log" 2>&1
          status=$?
          fail=()
          grep -q "$k2:$n2 was not reached" "$work/log" && break
          grep -q "$k1:$n1 was not reached" "$work/log" && continue # the other came first, and ended the run
          runs=$((runs + 1))
          state >"$work/now"
          if [ $status -eq 0 ] && grep -q "remark on step" "$work/log"; then continue; fi
          if [ $status -eq 3 ] && ! grep -q "could not be undone" "$work/log" && cmp -s "$work/now" "$work/before-$machine"; then continue; fi
          if [ $status -eq 3 ] && ! grep -q "as it was before" "$work/log" &&
            { grep -q "undone, but for what the remark says" "$work/log" ||
              { grep -q "could not be undone: .*error" "$work/log" && grep -q "  left: " "$work/log"; }; }; then
            left=$((left + 1))
            keep left
            mends install "$machine" && restore left && mends uninstall "$machine" && continue
          fi
          not_ok "$machine, $command: $k1 call $n1 and $k2 call $n2 fail: status $status"
          cat "$work/log" "$work/log2" 2>/dev/null | sed 's/^/    /'
          diff "$work/wanted" "$work/now" | sed 's/^/    /' | head -n 40
          return
        done
      done
    done
  done
  ok "$machine, $command: $runs pairs of failures; $left times something was left, said so, and was mended by install and by uninstall"
}
step=11
[ "${SANLAB_SWEEP:-}" = all ] && step=1
twice bare install $step
twice half install $step
twice half uninstall $step
twice installed uninstall $step
twice old install $step
twice old uninstall $step
summary
