#!/usr/bin/env bash
# Carries out deploy/Containerfile in minimal Debian systems, because machines of CI have no container
# engine: both stages as they are written, then the entry point, which has to answer.
#
#   usage (as root): tools/check/container.sh
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/debian_system.sh"
require_debootstrap

file=$REPOSITORY/deploy/Containerfile
work=$REPOSITORY/build/check/container
declare -A roots  # of the stages, by name

cleanup() {
  local root
  for root in "${roots[@]}"; do
    leave_system "$root"
    rm -rf --one-file-system "$root"
  done
}
trap cleanup EXIT

# Prints the instructions, one a line: comments go, continued lines are joined.
instructions() {
  sed -e '/^ *#/d' "$file" | sed -e ':join' -e '/\\$/{N; s/\\\n//; b join}' | sed '/^ *$/d'
}

begin_stage() {
  stage=${1:-last} folder=/ user=root settings=''
  root=$work/$stage
  rm -rf --one-file-system "$root"
  mkdir -p "$work"
  roots[$stage]=$root
  # The second system is a copy of the first one as it was made.
  if [[ -e $work/base.tar ]]; then
    mkdir -p "$root"
    tar -xf "$work/base.tar" -C "$root"
    make_system "$root"
  else
    make_system "$root"
    tar --one-file-system -cf "$work/base.tar" -C "$root" .
  fi
}

copy() {
  case $1 in
    --from=*) mkdir -p "$root$3" && cp -a "${roots[${1#--from=}]}$2/." "$root$3" ;;
    .) copy_repository "$root$2" ;;
    *) echo "container.sh: COPY $* is not understood" >&2; exit 1 ;;
  esac
}

carry_out() {
  local instruction=$1 rest=$2 words
  read -ra words <<< "$rest"
  printf '==== %s %s\n' "$instruction" "$rest"
  case $instruction in
    FROM) begin_stage "${words[2]:-}" ;;  # FROM image AS name
    COPY) copy "${words[@]}" ;;
    WORKDIR) folder=$rest ;;
    RUN) inside "$root" "$folder" "$rest" ;;
    USER) user=$rest ;;
    ENV) settings=$rest ;;
    VOLUME | EXPOSE) ;;
    ENTRYPOINT) entry=$(/usr/bin/python3 -c 'import json, shlex, sys; print(shlex.join(json.loads(sys.argv[1])))' "$rest") ;;
    *) echo "container.sh: $instruction is not understood" >&2; exit 1 ;;
  esac
}

while read -r instruction rest <&3; do
  carry_out "$instruction" "$rest"
done 3< <(instructions)

rm -rf "${roots[build]:?}/src"  # the last stage has to do without the sources
printf '==== the container answers\n'
/usr/bin/python3 "$REPOSITORY/tools/check/installed.py" serve -- \
  env -i HOME=/data PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot --userspec="$user" "$root" \
  sh -c "export $settings; exec $entry --port 0"
