# Functions that make a minimal Debian 12 in a folder and run commands there. Other scripts source this
# file. The mirror, the proxy and local certificates are those of this machine. Needs root and debootstrap.

REPOSITORY=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

require_debootstrap() {
  [[ $(id -u) == 0 ]] || { echo "$0: needs root" >&2; exit 1; }
  command -v debootstrap >/dev/null || { echo "$0: needs debootstrap" >&2; exit 1; }
}

mirror() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1
}

# make_system ROOT: makes a system, unless ROOT has one, and mounts what programs expect.
make_system() {
  local root=$1
  mkdir -p "$root"
  [[ -e $root/etc/debian_version ]] ||
    debootstrap --variant=minbase bookworm "$root" "${KVCACHE_DEBIAN_MIRROR:-$(mirror)}" > "$root.log" 2>&1 ||
    { tail -n 20 "$root.log" >&2; exit 1; }
  mount -t proc proc "$root/proc"
  mount --rbind /sys "$root/sys" && mount --make-rslave "$root/sys"
  mount --bind /dev "$root/dev"
  mount --bind /dev/pts "$root/dev/pts"
  copy_network "$root"
}

# leave_system ROOT: unmounts what make_system mounted.
leave_system() {
  local point
  for point in dev/pts dev sys proc; do
    ! mountpoint -q "$1/$point" || umount -l "$1/$point"
  done
}

# Copies this machine's network configuration: names, proxies and certificates.
copy_network() {
  local root=$1
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  apt-config dump --no-empty Acquire::http Acquire::https Acquire::Check-Date \
    Acquire::Check-Valid-Until > "$root/etc/apt/apt.conf.d/90host"
  mkdir -p "$root/usr/local/share"
  [[ ! -d /usr/local/share/ca-certificates ]] ||
    cp -r /usr/local/share/ca-certificates "$root/usr/local/share/"
  [[ ! -e $HOME/.npmrc ]] || cp "$HOME/.npmrc" "$root/root/"
}

# copy_repository FOLDER: makes FOLDER hold the files that git tracks or does not ignore. A file that is
# there already, with the same contents, keeps its modification time. Build folders and packages stay.
copy_repository() {
  local folder=$1 file
  mkdir -p "$folder"
  (cd "$REPOSITORY" && git ls-files -z -co --exclude-standard) | sort -z > "$folder.files"
  while IFS= read -r -d '' file; do
    [[ ! -e $REPOSITORY/$file ]] || cmp -s "$REPOSITORY/$file" "$folder/$file" ||
      (cd "$REPOSITORY" && cp --preserve=mode --parents "$file" "$folder")
  done < "$folder.files"
  (cd "$folder" && find . \( -name build -o -name node_modules \) -prune -o -type f -printf '%P\0') |
    sort -z | comm -z -13 "$folder.files" - | (cd "$folder" && xargs -0 -r rm -f)
  rm "$folder.files"
}

# inside ROOT FOLDER COMMAND [chroot options]: runs a shell command in a folder of the system.
inside() {
  local root=$1 folder=$2 command=$3 pass=() name
  shift 3
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NODE_EXTRA_CA_CERTS KVCACHE_JOBS; do
    [[ -z ${!name:-} ]] || pass+=("$name=${!name}")
  done
  env -i "${pass[@]}" HOME=/root LANG=C.UTF-8 PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$@" "$root" sh -c "cd $folder && $command" </dev/null
}
