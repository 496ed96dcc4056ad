#!/usr/bin/env bash
# arm64.sh             builds the program and the unit tests for 64-bit ARM, into build-arm64, and runs them here, under
#                      qemu; then --deb and --serve; then wheel.sh --arm64
# arm64.sh --build     only builds the program and the tests
# arm64.sh --kernels   only the tests of the attention kernel and the KV formats, which need little else: a minute
# arm64.sh --serve     the program's answers beside the native build's, and those of the .deb in a bare Debian, if it is built
# arm64.sh --deb       builds build-arm64/coppice_VERSION_arm64.deb
# Further arguments go to ctest, or after --serve to pytest.
source "$(dirname "$0")/lib.sh"
build="$repo/build-arm64"
what=
if [[ ${1:-} == --* ]]; then
  what=$1
  shift
fi

# Without llama.cpp, and optimised throughout, where cmake compiles tests as they are quickest to compile.
kernels() {
  local objects="$repo/build/neon" program="$repo/build/attention_kernel_test_arm64" parts part pid pids=()
  local flags=(--target=aarch64-linux-gnu --sysroot="$arm64/sysroot" -std=c++23 -O2 -Isrc -Itests)
  # The longest first, or one core waits for them at the end.
  local sources=(src/attention/cpu/tile_kernel.cpp src/matmul/quant_kernel.cpp
    tests/attention/{kernel,kernel_extremes,merge,kv_codec,new_rows}_test.cpp
    tests/support/attention_cases.cpp src/port/mapping{,_linux}.cpp
    src/{attention/cpu,attention,attention/plan,simd,matmul}/*.cpp)
  compile() { # each source once, one job a core
    rm -rf "$objects"
    mkdir -p "$objects"
    printf '%s\n' "${sources[@]}" | awk '!seen[$0]++' | xargs -P "$(jobs)" -I {} sh -c '
      source=$1 object=$2/$(echo "$1" | tr / _).o
      shift 2
      exec ccache clang++-19 "$@" -c "$source" -o "$object"' sh {} "$objects" "${flags[@]}"
    clang++-19 "${flags[@]}" -fuse-ld=lld "$objects"/*.o -lhwy -lgtest -lgtest_main -o "$program"
  }
  say "Building the kernel's tests for ARM"
  logged "compiling" build/neon.log compile ||
    die "The kernel's tests could not be compiled for ARM (log: build/neon.log)."
  # The tests without an instruction set in their name look at plans, which are the same everywhere. Long prefixes take
  # half of the time under emulation, and meet no code of the kernel that random trees and groups of heads don't.
  say "Running them, a part on each core"
  parts=$(nproc)
  for ((part = 0; part < parts; ++part)); do
    GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part "$arm64/qemu-aarch64-static" -L "$arm64/sysroot" \
      "$program" --gtest_filter='Simd/*:*OnEachTarget.*-*LongPrefixes*' &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do
    wait "$pid" || die "Tests failed on ARM: see above."
  done
}

# Not those that load the pinned models, as under AddressSanitizer, and none of benchmarks.
unit_tests() {
  # As kernels(), without long prefixes: they take six minutes. So does the longest prompt.
  local left_out='-*LongPrefixes*:Llama4Test.RowsBeyondTheFirstChunk*' emulated=("$repo/scripts/emulated.py" "$arm64/qemu-aarch64-static")
  # Where the system knows no programs for ARM, none can start another: tests that run their own program again are left out.
  if ! "${emulated[@]}" true; then
    emulated=()
    left_out+=":DrainTest.DrainEndsTheProcess*:DrainTest.ModelWhoseThreadHasLeftItIsNotWaitedFor:DevicesDeathTest.*"
  fi
  say "Left out: ${left_out#-}"
  QEMU_LD_PREFIX="$arm64/sysroot" GTEST_FILTER="*$left_out" "${emulated[@]}" \
    ctest --preset arm64 -j $((2 * $(nproc) + 1)) -LE 'model|e2e|bench' -E '^bench_' "$@" || die "Tests failed on ARM: see above."
}

# The program as it is installed: ggml's kernels lie where it looks for them.
serve() {
  local root="$build/root" log="$build/install.log"
  "$repo/scripts/build.sh" arm64 coppice
  "$repo/scripts/build.sh" release coppice
  ((EUID != 0)) || "$repo/scripts/packages.sh" debootstrap
  "$repo/scripts/licences.sh" >"$build/copyright"
  rm -rf "$root"
  DESTDIR="$root" logged "installing" "$log" cmake --install "$build" ||
    die "The program could not be installed (log: $log)."
  python_env venv tests/e2e/requirements.txt "the test clients"
  COPPICE_ARM64="$arm64" COPPICE_ARM64_ROOT="$root" COPPICE_ARM64_PACKAGE="$build/coppice.deb" COPPICE_DEBIANS="$cache/bare" \
    COPPICE_BINARY="$repo/build/coppice" COPPICE_MODEL="$pinned_model" PYTHONDONTWRITEBYTECODE=1 \
    "$repo/build/venv/bin/python" -m pytest -q -rs -p no:cacheprovider "$repo/tests/arm64" "$@" ||
    die "The tests of the program for ARM failed: see above."
}

arm64=$("$repo/scripts/arm64_sysroot.sh")
cd "$repo"
mkdir -p build
case $what in
  --kernels) kernels ;;
  --serve) serve "$@" ;;
  --deb) "$repo/scripts/package.sh" --arm64 ;;
  --build | "")
    "$repo/scripts/build.sh" arm64 coppice unit_tests
    [[ -z $what ]] || exit 0
    unit_tests "$@"
    "$repo/scripts/package.sh" --arm64
    serve
    only_build=(--build)
    ((EUID != 0)) || only_build=()
    "$repo/scripts/wheel.sh" --arm64 "${only_build[@]}"
    ;;
  *) die "arm64.sh knows no $what." ;;
esac
