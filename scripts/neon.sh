#!/usr/bin/env bash
# Runs the tests of the attention kernel and the KV formats on 64-bit ARM (NEON), under qemu. Debian's arm64 libraries and
# the emulator are unpacked into the cache folder; nothing is installed and no foreign architecture is added to the system.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/packages.sh"

arm="$cache/arm64"
libraries=(libhwy-dev libhwy1 libgtest-dev libc6 libc6-dev libstdc++-12-dev libgcc-12-dev libgcc-s1 libstdc++6 linux-libc-dev)

# fetch ARCHITECTURE PACKAGE...: downloads packages with an apt state of its own and unpacks them into $arm/sysroot.
fetch() {
  local architecture=$1 state="$arm/apt-$1"
  shift
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/debs" "$arm/sysroot"
  : >"$state/status"
  cat >"$state/apt.conf" <<EOF
APT::Architecture "$architecture";
APT::Architectures { "$architecture"; };
APT::Sandbox::User "root";
Dir::State "$state";
Dir::State::status "$state/status";
Dir::Cache "$state/cache";
EOF
  (cd "$state/debs" && export APT_CONFIG="$state/apt.conf" && apt-get -q update && apt-get -q download "$@" &&
    for deb in ./*.deb; do dpkg -x "$deb" "$arm/sysroot"; done)
}

if [[ ! -e $arm/sysroot/.ready ]]; then
  need_disk "$cache" 600 "the emulator for ARM"
  say "Fetching Debian's arm64 libraries and qemu"
  rm -rf "$arm"
  logged "libraries" "$cache/logs/arm64.log" fetch arm64 "${libraries[@]}" ||
    die "Cannot download Debian's arm64 packages: is there a network? (log: $cache/logs/arm64.log)"
  logged "emulator" "$cache/logs/qemu.log" fetch "$(dpkg --print-architecture)" qemu-user-static ||
    die "Cannot download qemu: is there a network? (log: $cache/logs/qemu.log)"
  # Links into the root of a machine that isn't there.
  cd "$arm/sysroot/usr/lib/aarch64-linux-gnu"
  find . -xtype l | while read -r link; do
    target=$(readlink "$link")
    [[ $target != /* ]] || ln -sf "../../..$target" "$link"
  done
  rm -rf "$arm"/apt-*
  touch "$arm/sysroot/.ready"
fi

cd "$repo"
mkdir -p build
say "Building the kernel's tests for ARM"
objects="$repo/build/neon"
flags=(--target=aarch64-linux-gnu --sysroot="$arm/sysroot" -std=c++23 -O2 -Isrc -Itests)
# The longest first, or one core waits for them at the end.
sources=(src/attention/cpu/tile_kernel.cpp src/matmul/quant_kernel.cpp tests/attention/{kernel,kernel_extremes,merge,kv_codec,new_rows}_test.cpp
  tests/support/attention_cases.cpp src/port/mapping.cpp src/{attention/cpu,attention,attention/plan,simd,matmul}/*.cpp)
compile() { # each source once, one job a core
  rm -rf "$objects"
  mkdir -p "$objects"
  printf '%s\n' "${sources[@]}" | awk '!seen[$0]++' |
    xargs -P "$(jobs)" -I {} sh -c 'source=$1 object=$2/$(echo "$1" | tr / _).o; shift 2; exec ccache clang++-19 "$@" -c "$source" -o "$object"' sh {} "$objects" "${flags[@]}"
  clang++-19 "${flags[@]}" -fuse-ld=lld "$objects"/*.o -lhwy -lgtest -lgtest_main -o build/attention_kernel_test_arm64
}
logged "compiling" build/neon.log compile || die "The kernel's tests could not be compiled for ARM (log: build/neon.log)."
# The tests without an instruction set in their name look at plans, which are the same everywhere. Long prefixes take half of the time under
# emulation, and meet no code of the kernel that random trees and groups of heads don't.
say "Running them, a part on each core"
parts=$(nproc) pids=()
for ((part = 0; part < parts; ++part)); do
  GTEST_TOTAL_SHARDS=$parts GTEST_SHARD_INDEX=$part "$arm/sysroot/usr/bin/qemu-aarch64-static" -L "$arm/sysroot" \
    build/attention_kernel_test_arm64 --gtest_filter='Simd/*:*OnEachTarget.*-*LongPrefixes*' &
  pids+=($!)
done
for pid in "${pids[@]}"; do
  wait "$pid" || die "Tests failed on ARM: see above."
done
