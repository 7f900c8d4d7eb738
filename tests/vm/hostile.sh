#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# Hostile guests against the device inside QEMU, driven by qtest.
exec python3 -B "$(dirname "$0")/qtest_hostile.py" "$(dirname "$0")/../../out/linux/qemu-system-x86_64"
