#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# sanlab attach and detach on domains that libvirt has already: a libvirtd of the test's own that runs QEMU as another user, domains
# without a disk under TCG. libvirt must take the result, QEMU start with it, the fabric see the NIC, and detach give the domain back.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/../host/lib.sh"
chmod 711 "$work" # QEMU's user must get to the fabric's socket
export SANLAB_RUN=$work/run
d=$work/libvirt uri="qemu:///system?socket=$work/libvirt/run/libvirt-sock"
v() { virsh -q -c "$uri" "$@"; }
clean_up() {
  local pid
  v destroy tiny; v destroy old; "$sanlab" down
  for pid in $(cat "$d"/libvirtd.pid); do kill "$pid"; done
  # Only then is what the daemon writes at rest.
  for _ in $(seq 50); do pgrep -f "$d" || break; sleep 0.1; done
} >/dev/null 2>&1
trap clean_up EXIT

start_libvirtd() {
  mkdir -p "$d"/{etc,run,lib,log,cache}
  printf '%s\n' 'user = "nobody"' 'group = "nogroup"' 'security_driver = "none"' 'cgroup_controllers = []' 'namespaces = []' 'remember_owner = 0' \
    'stdio_handler = "file"' >"$d/etc/qemu.conf"
  printf '%s\n' 'unix_sock_rw_perms = "0700"' 'auth_unix_rw = "none"' >"$d/etc/libvirtd.conf"
  # shellcheck disable=SC2016
  unshare --mount --propagation private sh -c 'd=$1
    mkdir -p /etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt
    mount --bind "$d/etc" /etc/libvirt; mount --bind "$d/run" /run/libvirt; mount --bind "$d/lib" /var/lib/libvirt
    mount --bind "$d/log" /var/log/libvirt; mount --bind "$d/cache" /var/cache/libvirt
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
exec $top/out/linux/qemu-system-x86_64 "\$@"
