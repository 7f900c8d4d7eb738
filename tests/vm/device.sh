#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# The device inside QEMU, driven by qtest and QMP.
exec python3 -B "$(dirname "$0")/qtest_device.py" "$(dirname "$0")/../../out/linux/qemu-system-x86_64"
