#!/usr/bin/env bash
# everything.sh [--resume] [TARGET...]: runs every target of the Makefile, or these, in its shortest form, and sums up which passed: due before
# each release. Only make test takes its long form (COPPICE_LONG). Goes on after a failure. What needs data or a machine that isn't there is
# skipped, and the summary says what it needs. A target that changes a tracked file has failed. What each said is kept in
# build/everything/TARGET.log.
#   --resume  leaves out what has passed since these files last changed: after a run that was broken off, or a mended failure
# everything.sh --list: the table, for tests.
source "$(dirname "$0")/lib.sh"
source "$repo/scripts/stages.sh"
cd "$repo"
trap - ERR # a stage may fail
unset ARGS MAKEFLAGS MFLAGS # or make passes its ARGS on to each target

# TARGET | what it needs: a test command, or nothing | the words for it | the shortest form, if it isn't make TARGET
table() {
  cat <<'END'
help             |                                  |                                            |
check-format     |                                  |                                            |
format           |                                  |                                            | format_changes_nothing
deps             |                                  |                                            |
build            |                                  |                                            |
test             |                                  |                                            | COPPICE_LONG=1 make test
demo             |                                  |                                            |
demo-restart     |                                  |                                            |
demo-cluster     |                                  |                                            |
serve            |                                  |                                            | serve_once
page             |                                  |                                            |
lint             |                                  |                                            | make lint ARGS="--commits 20 --seconds 60"
libcxx           |                                  |                                            |
neon             |                                  |                                            |
arm64            |                                  |                                            |
macos            |                                  |                                            |
asan             |                                  |                                            |
tsan             |                                  |                                            |
fuzz             |                                  |                                            | make fuzz SECONDS=5
soak             |                                  |                                            | make soak MINUTES=1
hostile          |                                  |                                            | make hostile ARGS="--seconds 60"
bare             |                                  |                                            |
package          | ((EUID == 0))                    | root, for a bare Debian                    |
wheel            | ((EUID == 0))                    | root, for bare Debians                     |
agents           |                                  |                                            |
clients          |                                  |                                            | make clients ARGS="--load-seconds 20"
peer-tests       |                                  |                                            |
bench            |                                  |                                            | make bench ARGS="--before build/coppice --pairs 1 --only engine-512 --repeat 1"
bench-quality    |                                  |                                            | make bench-quality ARGS="--tokens 4096"
bench-perplexity |                                  |                                            | make bench-perplexity ARGS="--bytes 9000 --single-windows 2"
bench-hybrids    |                                  |                                            | make bench-hybrids ARGS="--sessions 2 --turns 10"
bench-tools      | there "$DATA" "BFCL_v4_*.json"    | DATA=folder of BFCL_v4_*.json              | make bench-tools DATA="$DATA"
bench-structured | below "$SCHEMAS" "*.json"        | SCHEMAS=folder of JSONSchemaBench's *.json | make bench-structured SCHEMAS="$SCHEMAS"
bench-traces     | there "$TRACES" "*.jsonl"        | TRACES=folder of *.jsonl                   | make bench-traces TRACES="$TRACES" ARGS=--no-save
cuda             |                                  |                                            |
bench-cuda       | nvidia-smi                       | an NVIDIA GPU                              |
clean            |                                  |                                            | clean_a_clone
END
}
DATA=${DATA:-} SCHEMAS=${SCHEMAS:-} TRACES=${TRACES:-}
there() { [[ -n $1 ]] && compgen -G "$1/$2"; }
below() { [[ -n $1 && -n $(find "$1/" -name "$2" -print -quit) ]]; } # also in its folders

# A tree that is formatted stays as it is.
format_changes_nothing() {
  local before
  make check-format || return 1
  before=$(git diff | sha256sum)
  make format && [[ $(git diff | sha256sum) == "$before" ]]
}

# One answer, and an orderly end.
serve_once() {
  local log url pid status=0
  log=$(mktemp)
  make serve ARGS="--port 0 --kv-bytes 64MiB" >"$log" 2>&1 &
  pid=$!
  while url=$(grep -oE 'listening on http://[^,]+' "$log" | cut -d' ' -f3) || true; [[ -z $url ]]; do
    kill -0 "$pid" 2>/dev/null || { cat "$log"; return 1; }
    sleep 0.2
  done
  curl -fsS --retry 60 --retry-delay 1 --retry-all-errors -o /dev/null "$url/health" &&
    curl -fsS "$url/v1/completions" -H 'Content-Type: application/json' -d '{"prompt": "One, two,", "max_tokens": 4}' || status=1
  kill "$(tr -d ' ' <"/proc/$pid/task/$pid/children")" || status=1 # make's child is the server
  wait "$pid" || status=1
  cat "$log"
  rm -f "$log"
  return "$status"
}

# It deletes builds: not those of this folder.
clean_a_clone() {
  local clone status=0
  clone=$(mktemp -d)
  git clone -q "$repo" "$clone" && mkdir "$clone"/build{,-arm64,-asan,-bare,-fuzz,-macos,-package,-tsan,-wheel,-wheel-arm64} && make -C "$clone" clean || status=1
  ! compgen -G "$clone/build*" || status=1
  rm -rf "$clone"
  return "$status"
}

trim() { sed 's/^ *//; s/ *$//' <<<"$1"; }
if [[ ${1:-} == --list ]]; then
  table
  exit
fi
resume=
if [[ ${1:-} == --resume ]]; then
  resume=1
  shift
fi
for target in "$@"; do
  table | grep -q "^$target *|" || die "There is no target '$target'. These are there: $(table | cut -d '|' -f 1 | xargs)."
done
"$repo/scripts/packages.sh"
stage_logs="$repo/build/everything" # stages.sh
mkdir -p "$stage_logs"

# What is tested: the commit, and what differs from it.
tree() { { git rev-parse HEAD && git diff HEAD; } 2>/dev/null | sha256sum; }
passed_before() { [[ -n $resume && $(cat "$stage_logs/$1.passed" 2>/dev/null) == "$(tree)" ]]; }
# run TARGET FORM: and notes that it passed.
run() {
  local before
  before=$(tree)
  rm -f "$stage_logs/$1.passed"
  eval "$2" || return
  [[ $(tree) == "$before" ]] || { printf '%s changed files that git knows.\n' "$1"; return 1; }
  mkdir -p "$stage_logs"
  printf '%s\n' "$before" >"$stage_logs/$1.passed"
}

wanted=" $* "
while IFS='|' read -r -u 3 target needs words form; do
  target=$(trim "$target") needs=$(trim "$needs") form=$(trim "$form")
  [[ $wanted == "  " || $wanted == *" $target "* ]] || continue
  if ! eval "${needs:-true}" >/dev/null 2>&1; then
    skipped "$target" "it needs $(trim "$words")"
  elif passed_before "$target"; then
    summary+=("passed  $target (in an earlier run)")
  else
    stage "$target" run "$target" "${form:-make $target}" || true
  fi
done 3< <(table)
finish
