#!/usr/bin/env bash
# Checks that a fresh Debian 12 needs nothing but this repository: makes a minimal system in a
# folder, copies the work tree into it, and runs a newcomer's commands there.
#
#   usage (as root): tools/check/fresh_system.sh [--keep] [DIR [COMMAND]]
#
# COMMAND replaces the newcomer's commands, for example './dev check'. DIR is the system's folder
# (default: a new folder under /tmp). --keep does not delete the system. A later run with the same
# DIR uses it again, with a new copy of the work tree. Takes about 15 minutes on two cores.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/debian_system.sh"
require_debootstrap

keep=no
if [[ ${1:-} == --keep ]]; then keep=yes; shift; fi
root=${1:-$(mktemp -d /tmp/kvcache-debian.XXXXXX)}
home=/opt/kvcache

cleanup() {
  leave_system "$root"
  [[ $keep == yes ]] || rm -rf --one-file-system "$root"
}
trap cleanup EXIT

step() {
  local start=$SECONDS
  printf '\n==== %s\n' "$*"
  "$@"
  printf '==== took %d s\n' $((SECONDS - start))
}

step make_system "$root"
copy_repository "$root$home"
if [[ $# -gt 1 ]]; then
  step inside "$root" "$home" "$2"
  exit
fi
step inside "$root" "$home" './dev run -- -p "Once upon a time" -n 60'
step inside "$root" "$home" './dev run -- -p "Once upon a time" -n 20'
step inside "$root" "$home" './dev test'
printf '\nA fresh Debian 12 ran and tested kvcache; the system takes %s.\n' \
  "$(du -sh --one-file-system "$root" | cut -f1)"
