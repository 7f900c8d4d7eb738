#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# sanlab attach and detach on domains that libvirt has already: a libvirtd of the test's own that runs QEMU as another user, domains
# without a disk under TCG. libvirt must take the result, QEMU start with it, the fabric see the NIC, and detach give the domain back.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/../host/lib.sh"
chmod 711 "$work" # QEMU's user must get to the fabric's socket
export SANLAB_RUN=$work/run
d=$work/libvirt uri="qemu:///system?socket=$work/libvirt/run/libvirt-sock"
qemu=${sanlab%/*}/qemu-system-x86_64
v() { virsh -q -c "$uri" "$@"; }
clean_up() {
  local pid
  for pid in tiny old; do v destroy $pid; done
  "$sanlab" down
  pid=$(cat "$d/libvirtd.pid") && kill "$pid" && for _ in $(seq 50); do kill -0 "$pid" || break; sleep 0.1; done
} >/dev/null 2>&1
trap clean_up EXIT

start_libvirtd() {
  mkdir -p "$d"/{etc,run,lib,log,cache}
  printf '%s\n' 'user = "nobody"' 'group = "nogroup"' 'security_driver = "none"' 'cgroup_controllers = []' 'namespaces = []' 'remember_owner = 0' \
    'stdio_handler = "file"' >"$d/etc/qemu.conf"
  printf '%s\n' 'unix_sock_rw_perms = "0700"' 'auth_unix_rw = "none"' >"$d/etc/libvirtd.conf"
  # Where /dev/kvm is there but does not work, libvirt would ask QEMU for its abilities anew at every call.
  touch "$d/no-kvm"
  chmod 0 "$d/no-kvm"
  # shellcheck disable=SC2016
  unshare --mount --propagation private sh -c 'd=$1
    mkdir -p /etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt
    mount --bind "$d/etc" /etc/libvirt; mount --bind "$d/run" /run/libvirt; mount --bind "$d/lib" /var/lib/libvirt
    mount --bind "$d/log" /var/log/libvirt; mount --bind "$d/cache" /var/cache/libvirt
    [ ! -e /dev/kvm ] || mount --bind "$d/no-kvm" /dev/kvm
    exec /usr/sbin/libvirtd --pid-file "$d/libvirtd.pid"' sh "$d" >"$d/out" 2>&1 </dev/null &
  for _ in $(seq 100); do
    v list >/dev/null 2>&1 && return 0
    sleep 0.1
  done
  tail -n 5 "$d/out"
  return 1
}
# A QEMU of the distribution: it lacks the device.
cat >"$work/plain-qemu" <<E
#!/bin/sh
case "\$*" in *snic*) echo "Device 'snic' not found" >&2; exit 1 ;; esac
exec $qemu "\$@"
E
chmod 755 "$work/plain-qemu"
define() { # name, machine, emulator, memoryBacking
  cat >"$work/$1.xml" <<E
<domain type='qemu'>
  <name>$1</name>
  <metadata><note xmlns='urn:test'>keep me</note></metadata>
  <memory unit='MiB'>64</memory>$4
  <vcpu>1</vcpu>
  <os><type arch='x86_64' machine='$2'>hvm</type></os>
  <features><acpi/></features>
  <devices><emulator>$3</emulator></devices>
</domain>
E
  v define "$work/$1.xml"
}
xml() { v dumpxml --inactive --security-info "$1"; }
same() { diff "$work/$1.$2" <(xml "$1"); }
says() { # text, command...
  local text=$1
  shift
  "$@" >"$work/said" 2>&1 || { cat "$work/said"; return 1; }
  grep -qE -- "$text" "$work/said" || { cat "$work/said"; return 1; }
}
attach() { "$sanlab" attach --connect "$uri" "$@"; }
detach() { "$sanlab" detach --connect "$uri" "$@"; }
nics() { # name=ip of the NICs on the fabric; a ? behind those whose memory is not shared
  python3 - "$SANLAB_RUN/fabric.sock.ctl" <<'P'
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(b'{"cmd":"status"}\n')
print(" ".join(sorted(f'{n["name"]}={n["ip"]}{"" if n["direct"] else "?"}' for n in json.loads(s.makefile().readline())["nics"])))
P
}
wait_for_nics() { # expected
  for _ in $(seq 100); do
    [ "$(nics 2>/dev/null)" = "$1" ] && return 0
    sleep 0.1
  done
  echo "NICs: $(nics), expected: $1"
  return 1
}
no_fabric() { ! pgrep -f "sanfabricd $SANLAB_RUN/fabric.sock"; }

check "a libvirtd that runs QEMU as nobody" start_libvirtd
check "a q35 domain" define tiny q35 "$work/plain-qemu" ""
check "an i440fx domain" define old pc "$qemu" "<memoryBacking><access mode='private'/><discard/></memoryBacking>"
xml tiny >"$work/tiny.before"
xml old >"$work/old.before"

dry_run() {
  attach tiny --dry-run >"$work/dry" && grep -q '^+.*memfd' "$work/dry" && grep -q "^-.*<emulator>$work/plain-qemu" "$work/dry" &&
    grep -q '^+.*snic' "$work/dry" && [ "$(grep -c '^[-+]' "$work/dry")" -le 20 ]
}
check "--dry-run prints the change" dry_run
check "and changes nothing" same tiny before
check "and starts nothing" no_fabric
check "attach without a lab" says 'plain-qemu has no snic device' attach tiny
check "a fabric runs for it" wait_for_nics ""
xml tiny >"$work/tiny.attached"
check "attach once more" says 'no change' attach tiny
check "changes nothing" same tiny attached
check "the domain starts" v start tiny
check "its NIC joins the fabric, with shared memory" wait_for_nics "tiny=10.77.0.100"
check "another domain gets another address" attach old
check "and a bus of its machine" says 'pci\.0.*10\.77\.0\.101' xml old
check "it starts, too" v start old
check "two NICs on the fabric" wait_for_nics "old=10.77.0.101 tiny=10.77.0.100"
check "status shows the one" says '^tiny +10.77.0.100 +running +UP' "$sanlab" status
check "and the other" says '^old +10.77.0.101 +running +UP' "$sanlab" status
check "and the state of a NIC" says '"link": *"UP"' "$sanlab" status --nic tiny

kill -KILL "$(cat "$SANLAB_RUN/fabric.pid")"
check "attach starts a fabric that has died" says 'no change' "$sanlab" attach tiny
check "and the NICs come back" wait_for_nics "old=10.77.0.101 tiny=10.77.0.100"
check "a lab joins the same fabric" "$sanlab" up --guests 2
check "with its guests" wait_for_nics "guest1=10.77.0.1 guest2=10.77.0.2 old=10.77.0.101 tiny=10.77.0.100"
check "traffic between guests while others are on the fabric" "$sanlab" run --timeout 60 write_bw -n 200
check "the lab ends, the fabric stays for the attached domains" says 'sanlab detach (tiny|old)' "$sanlab" down
check "with their NICs" wait_for_nics "old=10.77.0.101 tiny=10.77.0.100"

check "another address for a domain that runs" says 'is running: .*started again' "$sanlab" attach tiny --ip 10.77.0.150
check "until then it keeps the old one" wait_for_nics "old=10.77.0.101 tiny=10.77.0.100"
v destroy tiny
check "it is started again" v start tiny
check "and has the new one" wait_for_nics "old=10.77.0.101 tiny=10.77.0.150"

refuses "an address that a domain has" 2 "taken by domain old" "$sanlab" attach tiny --ip 10.77.0.101
refuses "an address of the lab's guests" 2 "the lab's guest 2" "$sanlab" attach tiny --ip 10.77.0.2
refuses "what is no address" 2 "'10.77.0' is not an IPv4 address" "$sanlab" attach tiny --ip 10.77.0
refuses "an address that no host has" 2 "'224.0.0.1' is not an IPv4 address of a host" "$sanlab" attach tiny --ip 224.0.0.1
refuses "an unknown domain" 2 "no domain 'nosuch'" "$sanlab" attach nosuch --connect "$uri"
refuses "a libvirt on another host" 2 "is on another host" "$sanlab" attach tiny --connect qemu+ssh://elsewhere/system
refuses "a libvirt that is not there" 2 "cannot connect" "$sanlab" attach tiny --connect "qemu:///system?socket=$work/none"
refuses "no libvirt at all" 2 "no libvirtd is running" env SANLAB_RUN="$work/other" "$sanlab" attach tiny
sed 's/<name>tiny/<name>passing/' "$work/tiny.xml" >"$work/passing.xml"
check "a transient domain" v create "$work/passing.xml"
refuses "is refused" 2 "is transient" "$sanlab" attach passing --connect "$uri"
v destroy passing

check "detach of a domain that runs" says 'is running: .*started again' "$sanlab" detach tiny
v destroy tiny
v destroy old
check "the domain is as it was, to the letter" same tiny before
check "detach of the other, by UUID" detach "$(v domuuid old)"
check "it, too, is as it was" same old before
check "detach once more" says 'no change' detach old
check "the fabric ended with the last domain" no_fabric
check "the domain still starts" v start tiny

# A fabric of the user's own.
check "attach to another fabric" says 'link stays down until sanfabricd does' attach old --fabric "$work/own.sock"
check "names it" says "$work/own.sock" xml old
check "and starts none" no_fabric
check "detach" detach old
check "gives the memory settings back" same old before
clean_up
if pgrep -f "$work" >/dev/null; then not_ok "something was left running: $(pgrep -af "$work" | head -n 3)"; else ok "nothing is left running"; fi
trap - EXIT
summary
