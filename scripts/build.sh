#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: brings the dependencies up to date, configures and builds (release, asan, tsan, package or wheel).
source "$(dirname "$0")/lib.sh"
preset=${1:?preset}
shift
options=()
# A folder's name has the compiler's version in it: it can be told once the compiler is installed.
if [[ $preset == package ]]; then
  "$repo/scripts/deps.sh" package
  llama=$(llama_build_dir portable)
elif [[ $preset == wheel ]]; then
  "$repo/scripts/deps.sh" wheel
  old_libc=$("$repo/scripts/old_libc.sh")
  # CMake remembers where it found libraries.
  grep -qs "^COPPICE_OLD_LIBC:PATH=$old_libc/lib\$" "$repo/build-wheel/CMakeCache.txt" || rm -f "$repo/build-wheel/CMakeCache.txt"
  llama=$(llama_build_dir "${old_libc##*/}")
  options=(-DCOPPICE_OLD_LIBC="$old_libc/lib" -DCMAKE_EXE_LINKER_FLAGS="$(old_libc_flags "$old_libc")")
else
  "$repo/scripts/deps.sh"
  llama=$(llama_build_dir)
fi

build="$repo/build"
[[ $preset == release ]] || build="$repo/build-$preset"
need_disk "$build" 700 "the $preset build"
jobs=$(jobs)
cd "$repo"
configure "$preset" "$build" "$llama" "${options[@]}"
targets=()
(($# == 0)) || targets=(--target "$@")
cmake --build --preset "$preset" -j "$jobs" "${targets[@]}" >&2 || die "The $preset build failed: see above."
