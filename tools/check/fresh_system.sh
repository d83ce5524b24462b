#!/usr/bin/env bash
# Checks that a fresh Debian 12 needs nothing but this repository: makes a minimal system in a
# folder, copies the work tree into it, and runs a newcomer's commands there.
#
#   usage (as root): tools/debootstrap_check.sh [--keep] [DIR [COMMAND]]
#
# COMMAND replaces the newcomer's commands, for example './dev check'. DIR is the system's folder
# (default: a new folder under /tmp). --keep does not delete the system. A later run with the same
# DIR uses it again, with a new copy of the work tree. The mirror, the proxy and local certificates
# are those of this machine. Needs debootstrap. Takes about 15 minutes on two cores.
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
keep=no
if [[ ${1:-} == --keep ]]; then keep=yes; shift; fi
root=${1:-$(mktemp -d /tmp/kvcache-debian.XXXXXX)}
home=/opt/kvcache

[[ $(id -u) == 0 ]] || { echo "debootstrap_check: needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "debootstrap_check: needs debootstrap" >&2; exit 1; }

cleanup() {
  local point
  for point in dev/pts dev sys proc; do
    mountpoint -q "$root/$point" && umount -l "$root/$point"
  done
  [[ $keep == yes ]] || rm -rf --one-file-system "$root"
}
trap cleanup EXIT

step() {
  local start=$SECONDS
  printf '\n==== %s\n' "$*"
  "$@"
  printf '==== took %d s\n' $((SECONDS - start))
}

mirror() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1
}

make_system() {
  [[ -e $root/etc/debian_version ]] ||
    debootstrap --variant=minbase bookworm "$root" "${KVCACHE_DEBIAN_MIRROR:-$(mirror)}" > "$root.log" 2>&1 ||
    { tail -n 20 "$root.log" >&2; exit 1; }
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys" && mount --make-rslave "$root/sys"
  mount --bind /dev "$root/dev"
  mount --bind /dev/pts "$root/dev/pts"
}

# Copies this machine's network configuration: names, proxies and certificates.
copy_network() {
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  apt-config dump --no-empty Acquire::http Acquire::https Acquire::Check-Date \
    Acquire::Check-Valid-Until > "$root/etc/apt/apt.conf.d/90host"
  mkdir -p "$root/usr/local/share"
  [[ ! -d /usr/local/share/ca-certificates ]] ||
    cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"
  [[ ! -e $HOME/.npmrc ]] || cp "$HOME/.npmrc" "$root/root/"
}

# Copies the files that git tracks or does not ignore. Files that differ get a new modification time.
copy_repository() {
  mkdir -p "$root$home"
  cd "$repository"
  local file
  git ls-files -z -co --exclude-standard | while IFS= read -r -d '' file; do
    [[ ! -e $file ]] || cmp -s "$file" "$root$home/$file" ||
      cp --preserve=mode --parents "$file" "$root$home"
  done
}

inside() {
  local pass=() name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NODE_EXTRA_CA_CERTS; do
    [[ -z ${!name:-} ]] || pass+=("$name=${!name}")
  done
  env -i "${pass[@]}" HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" sh -c "cd $home && $*" </dev/null
}

step make_system
copy_network
copy_repository
if [[ $# -gt 1 ]]; then
  step inside "$2"
  exit
fi
step inside './dev run -- -p "Once upon a time" -n 60'
step inside './dev run -- -p "Once upon a time" -n 20'
step inside './dev test'
printf '\nA fresh Debian 12 ran and tested kvcache; the system takes %s.\n' \
  "$(du -sh --one-file-system "$root" | cut -f1)"
