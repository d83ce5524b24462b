#!/usr/bin/env bash
# The checks of a change: one list of steps for ./dev check and for CI.
#
#   usage: ./dev check [--turn [GROUP]] [--only STEP]… [--without STEP]…
#
# Without --turn, all steps run. With it, the steps of the base run, and one group of the others: the one
# that the commit's hash chooses, or GROUP. So every group has its turn within a few changes. The aim is at most 35
# minutes for the base and any group, on two idle cores.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1

# Step, the most seconds that it may take, its group, and what it does.
STEPS='
first-text    900  base     build from nothing and generate a text, as a newcomer does
test         2400  base     build and run the tests
format        300  base     the format of C++ files
text          120  base     layers, links, spelling
lint          900  base     clang-tidy on all sources
release      2400  release  build, install and use what people run
targets      1500  release  all benchmarks; the kernels of every instruction set; a quick benchmark
container    2400  image    the instructions of deploy/Containerfile
aarch64      1800  arm      the build for Arm; tests and hashes of logits on emulated processors
asan-libraries 2400 address  tests of the libraries with the address and undefined-behaviour sanitizers
asan-programs  2400 programs the same for the server, the command line and the import
tsan         1200  threads  tests with the thread sanitizer
fuzz         1200  threads  all fuzzers, for some seconds each
oracle       2700  oracle   all shapes of random models, types in turns, against llama.cpp and float64
slow         2700  slow     agents from npm, long contract checks of the server, load, random steps of caches: tests that take minutes
'

die() { printf 'dev: check: %s\n' "$*" >&2; exit 2; }

all_steps() { awk 'NF { print $1 }' <<< "$STEPS"; }
steps_of() { awk -v group="$1" '$3 == group { print $1 }' <<< "$STEPS"; }
groups() { awk 'NF && $3 != "base" && !seen[$3]++ { print $3 }' <<< "$STEPS"; }
limit_of() { awk -v step="$1" '$1 == step { print $2 }' <<< "$STEPS"; }
usage() {
  sed -n '2,/^set -u/ { /^#/ s/^# \?//p }' "${BASH_SOURCE[0]}"
  awk 'NF { printf "  %-14s %4d s  %-8s %s\n", $1, $2, $3, substr($0, index($0, $4)) }' <<< "$STEPS"
}

require_step() {
  [[ -n $(limit_of "${1:-}") ]] || die "there is no step '${1:-}'; the steps are: $(all_steps | xargs)"
}

# Prints the group whose turn a commit is.
turn_of() {
  local names
  mapfile -t names < <(groups)
  echo "${names[16#${1:0:7} % ${#names[@]}]}"
}

# Prints what failed tests said, from ctest's output.
failures() {
  awk '/ Test +#[0-9]+: / { shown = /\*\*\*(Failed|Timeout|Exception)/; left = 60 }
       /^ +Start +[0-9]+: / { next }
       shown && left-- > 0' "$1"
}

# Prints the slowest compilations, from ninja's log: start, end (ms), …, output.
slowest() {
  awk 'NR > 1 { print ($2 - $1) / 1000 " s  " $4 }' build/dev/.ninja_log 2>/dev/null | sort -rn | head -n 8
}

chosen='' only='' without=' '
while [[ $# -gt 0 ]]; do
  case $1 in
    --only) require_step "${2:-}"; only+=" $2"; shift ;;
    --without) require_step "${2:-}"; without+="$2 "; shift ;;
    --turn)
      group=${2:-}
      if [[ -n $group && $group != --* ]]; then
        shift
        groups | grep -qx "$group" || die "there is no group '$group'; the groups are: $(groups | xargs)"
      else
        commit=$(git rev-parse HEAD) || die "--turn needs a commit, or the name of a group"
        group=$(turn_of "$commit")
      fi
      chosen="$(steps_of base | xargs) $(steps_of "$group" | xargs)"
      echo "check: the base, and the group $group" ;;
    -h | --help) usage; exit ;;
    *) die "unknown option $1; see ./dev check --help" ;;
  esac
  shift
done
chosen=${only:-${chosen:-$(all_steps | xargs)}}

logs=build/check/logs
mkdir -p "$logs"
failed=() report=()
for step in $chosen; do
  [[ $without != *" $step "* ]] || continue
  start=$SECONDS log=$logs/$step.log limit=$(limit_of "$step")
  printf 'check: %-14s' "$step"
  timeout --kill-after=10 "$limit" ./dev check-step "$step" > "$log" 2>&1
  status=$?
  result=ok
  [[ $status == 0 ]] || { result="FAILED ($status)"; failed+=("$step"); }
  report+=("$(printf '%-14s %4d s of %4d  %s' "$step" $((SECONDS - start)) "$limit" "$result")")
  printf '%4d s  %s\n' $((SECONDS - start)) "$result"
  [[ $status == 0 ]] || { failures "$log"; tail -n 80 "$log"; echo "check: all of it is in $log"; }
done

[[ ! -e $logs/first-text.log || " $chosen " != *" first-text "* ]] || {
  tail -n 3 "$logs/first-text.log"
  echo "the slowest compilations:"
  slowest
}
printf '%s\n' "" "${report[@]}" "total $SECONDS s" ""
[[ ${#failed[@]} == 0 ]] || printf 'failed: %s\n\n' "${failed[*]}"
[[ " $chosen " != *" test "* ]] || tail -n 40 "$logs/test.log"
[[ ${#failed[@]} == 0 ]]
