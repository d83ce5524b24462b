#!/usr/bin/env bash
# Makes a folder with the libraries of tools/packages.txt for Arm (aarch64), which a cross build links and
# qemu-user runs with: packages of Debian 12 from this machine's mirror, unpacked.
#
#   usage: tools/check/aarch64_sysroot.sh FOLDER
#
# Nothing of the machine changes, and no root is needed: apt keeps its lists in FOLDER.apt. Packages of a foreign
# architecture on the machine itself would have to have the versions of its own, and so could upgrade it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/debian_system.sh"

root=$(realpath -m "${1:?usage: aarch64_sysroot.sh FOLDER}")
apt=$root.apt

# The libraries of the program without its server, and of the tests without the shim of CUDA.
packages() {
  awk '($1 == "build" || $1 == "test") && $2 ~ /-dev$/ && $2 !~ /boost/ { print $2 }' "$REPOSITORY/tools/packages.txt"
  echo libstdc++-12-dev
}

apt_get() {
  apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=root \
    -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" \
    -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts=- -o Debug::NoLocking=true \
    -o APT::Install-Recommends=false "$@"
}

stamp=$(packages | sha256sum)
[[ $(cat "$root/.packages" 2>/dev/null) != "$stamp" ]] || exit 0
rm -rf "$root" "$apt"
mkdir -p "$root" "$apt/state/lists/partial" "$apt/cache/archives/partial"
: > "$apt/status"
echo "deb ${KVCACHE_DEBIAN_MIRROR:-$(mirror)} bookworm main" > "$apt/sources.list"
apt_get update
mapfile -t names < <(packages)
apt_get install -y --download-only "${names[@]}"
for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
# Links of the packages begin at the root of the system that they were made for.
find "$root" -type l -lname '/*' | while read -r link; do
  ln -sfn "$(realpath -m --relative-to="${link%/*}" "$root$(readlink "$link")")" "$link"
done
rm -rf "$apt"
echo "$stamp" > "$root/.packages"
