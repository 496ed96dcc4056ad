#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: brings the dependencies up to date, configures and builds (release, asan, tsan or package).
source "$(dirname "$0")/lib.sh"
preset=${1:?preset}
shift
# A folder's name has the compiler's version in it: it can be told once the compiler is installed.
if [[ $preset == package ]]; then
  "$repo/scripts/deps.sh" package
  llama=$(llama_build_dir portable)
else
  "$repo/scripts/deps.sh"
  llama=$(llama_build_dir)
fi

build="$repo/build"
[[ $preset == release ]] || build="$repo/build-$preset"
need_disk "$build" 700 "the $preset build"
jobs=$(jobs)
cd "$repo"
configure "$preset" "$build" "$llama"
targets=()
(($# == 0)) || targets=(--target "$@")
cmake --build --preset "$preset" -j "$jobs" "${targets[@]}" >&2 || die "The $preset build failed: see above."
