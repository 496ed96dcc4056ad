#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: brings the dependencies up to date, configures and builds (release, asan, tsan, package,
# wheel, arm64, wheel-arm64 or macos).
source "$(dirname "$0")/lib.sh"
preset=${1:?preset}
shift
build="$repo/build"
[[ $preset == release ]] || build="$repo/build-$preset"
options=()
# forget_other NAME VALUE: CMake remembers where it found things. So it begins anew if this variable had another value.
forget_other() { grep -qs "^$1:[A-Z]*=$2\$" "$build/CMakeCache.txt" || rm -rf "$build"/CMake{Cache.txt,Files}; }

what=libraries machine=
case $preset in package | wheel | arm64 | wheel-arm64 | macos) what=$preset ;; esac
"$repo/scripts/deps.sh" "$what"
# A folder's name has the compiler's version in it: it can be told once the compiler is installed.
if [[ $preset == *arm64 || $preset == macos ]]; then
  other=$("$repo/scripts/${preset#wheel-}_sysroot.sh")
  machine=${other##*/}
  forget_other CMAKE_TOOLCHAIN_FILE "$other/${preset#wheel-}.cmake"
  options=(-DCMAKE_TOOLCHAIN_FILE="$other/${preset#wheel-}.cmake" -DCOPPICE_XGRAMMAR_DIR="$(xgrammar_build_dir "$machine")")
fi
if [[ $preset == package || $preset == arm64 || $preset == macos ]]; then
  llama=$(llama_build_dir "${machine:-portable}")
elif [[ $preset == wheel* ]]; then
  old_libc=$("$repo/scripts/old_libc.sh" ${machine:+--arm64})
  forget_other COPPICE_OLD_LIBC "$old_libc/lib"
  llama=$(llama_build_dir "${old_libc##*/}")
  flags=$(old_libc_flags "$old_libc")
  options+=(-DCOPPICE_OLD_LIBC="$old_libc/lib" -DCMAKE_EXE_LINKER_FLAGS="$flags" -DCMAKE_MODULE_LINKER_FLAGS="$flags")
else
  llama=$(llama_build_dir)
fi
# What is made for other machines is made by the same compiler everywhere.
if [[ $preset == package || $preset == wheel ]]; then
  cuda=$("$repo/scripts/cuda_compiler.sh" --pinned)
  forget_other CUDAToolkit_ROOT "$cuda"
  options+=(-DCOPPICE_CUDA=ON -DCUDAToolkit_ROOT="$cuda")
fi

need_disk "$build" 700 "the $preset build"
jobs=$(jobs)
cd "$repo"
configure "$preset" "$build" "$llama" "${options[@]}"
targets=()
(($# == 0)) || targets=(--target "$@")
cmake --build --preset "$preset" -j "$jobs" "${targets[@]}" >&2 || die "The $preset build failed: see above."
