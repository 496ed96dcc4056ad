#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: brings the dependencies up to date, configures and builds (release, asan, tsan or package).
source "$(dirname "$0")/lib.sh"
preset=${1:?preset}
shift
llama=$(llama_build_dir)
if [[ $preset == package ]]; then
  "$repo/scripts/deps.sh" package
  llama=$(llama_build_dir portable)
else
  "$repo/scripts/deps.sh"
fi

build="$repo/build"
[[ $preset == release ]] || build="$repo/build-$preset"
need_disk "$build" 700 "the $preset build"
jobs=$(jobs)
cd "$repo"
logged "configuring ($preset)" "$build/configure.log" cmake --preset "$preset" \
  -DCOPPICE_LLAMA_DIR="$llama" -DCOPPICE_XGRAMMAR_DIR="$(xgrammar_build_dir)" \
  -DCOPPICE_MODEL="$pinned_model" -DCOPPICE_GEMMA3="$pinned_gemma3" || {
  grep -A 6 'CMake Error' "$build/configure.log" >&2 || true
  die "The build could not be configured (log: $build/configure.log)"
}
targets=()
(($# == 0)) || targets=(--target "$@")
cmake --build --preset "$preset" -j "$jobs" "${targets[@]}" >&2 || die "The $preset build failed: see above."
