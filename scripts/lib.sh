# SPDX-License-Identifier: GPL-2.0-or-later
# Sourced by the scripts that lie beside it: where the checkout is, and how they talk.
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/.." && pwd)
script=${0##*/}
say() { echo "$script: $*"; }
die() { echo "$script: $*" >&2; exit 1; }
# Something the user can mend.
bad() { echo "$script: $*" >&2; exit 2; }
# The text at the head of the script, which says what it does and takes.
usage() { awk 'NR > 2 && !/^#/ { exit } NR > 2 { sub(/^# ?/, ""); print }' "$here/$script"; }
# The first argument wherever it asks for help.
for argument in "$@"; do
  case $argument in
    --) break ;;
    -h | --help) usage; exit 0 ;;
  esac
done
unset argument
