#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0-or-later
# What the PE files import exists on NT 5.2; the provider exports WSPStartupEx and nothing else.
# shellcheck source=tests/host/lib.sh
. "$(dirname "$0")/lib.sh"
for f in sanproxy.sys sanprov.dll sanperf.exe santest.exe; do
  check "imports of $f are in the NT 5.2 lists" python3 "$top/tests/host/check_imports.py" "$top/out/windows/$f"
done
check "sanprov.dll exports WSPStartupEx only" python3 "$top/tests/host/check_imports.py" --exports WSPStartupEx "$top/out/windows/sanprov.dll"
summary
