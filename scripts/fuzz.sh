#!/usr/bin/env bash
# fuzz.sh [SECONDS [TARGET...]]: builds the fuzz targets of tests/fuzz with libFuzzer, AddressSanitizer and UBSan, and runs
# each for so long. What libFuzzer learns is kept in build-fuzz/corpus; the committed corpus is read, never written. An
# input that is a finding goes to build-fuzz/findings: put it into tests/fuzz/corpus together with the mend.
source "$(dirname "$0")/lib.sh"
seconds=${1:-60}
shift $(($# > 0 ? 1 : 0))
[[ $seconds =~ ^[1-9][0-9]*$ ]] || die "SECONDS must be a positive number, not '$seconds'."
targets=("$@")
((${#targets[@]})) || targets=(cancel hangup http model request schema stretch template)
"$repo/scripts/build.sh" fuzz "${targets[@]/#/fuzz_}"

build="$repo/build-fuzz"
export COPPICE_MODEL=$pinned_model ASAN_SYMBOLIZER_PATH=/usr/bin/llvm-symbolizer-19 ASAN_OPTIONS=detect_stack_use_after_return=1
mkdir -p "$build/findings"
for target in "${targets[@]}"; do
  mkdir -p "$build/corpus/$target"
  # A model of three layers is just beyond 4 KiB.
  max_len=4096
  [[ $target != model ]] || max_len=8192
  say "Fuzzing $target for $seconds s"
  "$build/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -timeout=30 -rss_limit_mb=4096 -max_len=$max_len \
    -print_final_stats=1 -verbosity=0 -dict="$repo/tests/fuzz/$target.dict" \
    -artifact_prefix="$build/findings/$target-" "$build/corpus/$target" "$repo/tests/fuzz/corpus/$target" ||
    die "A finding in '$target': see above; the input is in $build/findings."
done
say "No finding in ${targets[*]}: $seconds s each."
