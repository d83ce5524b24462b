#!/usr/bin/env bash
# Builds and installs the program as people do, in a copy of the work tree; then moves the copy out of
# reach, and uses what is installed. A path of the source tree that is left in a program shows here.
#
#   usage: tools/check/release.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/debian_system.sh"

work=$REPOSITORY/build/check/release
tree=$work/tree       # its build folder serves the next check too
away=$work/away
prefix=$work/installed

mkdir -p "$work"
[[ ! -d $away ]] || mv "$away" "$tree"
copy_repository "$tree"
rm -rf "$prefix" "$work/use"
mkdir -p "$work/use"

(cd "$tree" && ./dev build release && cmake --install build/release --prefix "$prefix" > /dev/null)
cp -r "$tree/examples" "$work/use/examples"
mv "$tree" "$away"
trap 'mv "$away" "$tree"' EXIT
/usr/bin/python3 "$REPOSITORY/tools/check/installed.py" all "$prefix" "$work/use/examples" "$work/use"
