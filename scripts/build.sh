#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: brings the dependencies up to date, configures and builds (release, asan or tsan).
source "$(dirname "$0")/lib.sh"
preset=${1:?preset}
shift
"$repo/scripts/deps.sh"

build="$repo/build"
[[ $preset == release ]] || build="$repo/build-$preset"
need_disk "$build" 700 "the $preset build"
jobs=$(jobs)
cd "$repo"
llama=$(llama_build_dir)
logged "configuring ($preset)" "$build/configure.log" cmake --preset "$preset" \
  -DCOPPICE_LLAMA_DIR="$llama" -DCOPPICE_XGRAMMAR_DIR="$(xgrammar_build_dir)" \
  -DCOPPICE_MODEL="$pinned_model" -DCOPPICE_GEMMA3="$pinned_gemma3" || {
  grep -A 6 'CMake Error' "$build/configure.log" >&2 || true
  die "The build could not be configured (log: $build/configure.log)"
}
targets=()
(($# == 0)) || targets=(--target "$@")
cmake --build --preset "$preset" -j "$jobs" "${targets[@]}" >&2 || die "The $preset build failed: see above."
