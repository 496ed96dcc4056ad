#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: builds the fuzz targets of tests/fuzz with libFuzzer, AddressSanitizer and UBSan, and runs
# each for so long. What libFuzzer learns is kept in build-fuzz/corpus; of that each run reads some at random, as much as half of its time
# suffices for. The committed corpus is read, never written. An input that is a finding goes to build-fuzz/findings: put it into tests/fuzz/corpus together with the mend.
source "$(dirname "$0")/lib.sh"
seconds=${1:-60}
shift $(($# > 0 ? 1 : 0))
[[ $seconds =~ ^[1-9][0-9]*$ ]] || die "SECONDS must be a positive number, not '$seconds'."
targets=("$@")
((${#targets[@]})) || targets=(cancel hangup http image model request schema stretch template)
"$repo/scripts/build.sh" fuzz "${targets[@]/#/fuzz_}"

build="$repo/build-fuzz"
export COPPICE_MODEL=$pinned_model ASAN_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-19 ASAN_OPTIONS=detect_stack_use_after_return=1
drawn=$(mktemp -d)
trap 'rm -rf "$drawn"' EXIT
mkdir -p "$build/findings"
for target in "${targets[@]}"; do
  learned="$build/corpus/$target"
  mkdir -p "$learned"
  # A model of three layers is just beyond 4 KiB.
  max_len=4096
  [[ $target != model ]] || max_len=8192
  # Inputs that it reads in a second. libFuzzer reads all that it is given before it looks at the time: hours, after some runs.
  case $target in
    stretch) speed=4 ;;
    cancel | hangup | http | template) speed=60 ;;
    *) speed=2000 ;;
  esac
  rm -rf "${drawn:?}"/*
  find "$learned" -type f | shuf -n $((seconds * speed / 2)) | xargs -r cp -t "$drawn"
  say "Fuzzing $target for $seconds s"
  status=0
  "$build/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=60 -rss_limit_mb=4096 -max_len=$max_len \
    -print_final_stats=1 -verbosity=0 -dict="$repo/tests/fuzz/$target.dict" \
    -artifact_prefix="$build/findings/$target-" "$drawn" "$repo/tests/fuzz/corpus/$target" || status=$?
  cp -rn "$drawn/." "$learned"
  ((status == 0)) || die "A finding in '$target': see above; the input is in $build/findings."
done
say "No finding in ${targets[*]}: $seconds s each."
