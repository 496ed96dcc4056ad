#!/usr/bin/env bash
# Compiles the folders below with libc++, clang's own standard library: what they include must be there on systems without libstdc++. Nothing
# is linked, as Debian's other libraries are made for libstdc++.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/packages.sh"
"$repo/scripts/packages.sh" libc++-19-dev
cd "$repo"
[[ -e build/build.ninja ]] || scripts/build.sh release coppice_kv
# Boost.Beast's client uses what C++23 deprecates, std::aligned_storage.
configure release "$repo/build/libcxx" "$(llama_build_dir)" "-DCMAKE_CXX_FLAGS=-stdlib=libc++ -D_LIBCPP_DISABLE_DEPRECATION_WARNINGS"
say "Compiling with libc++"
targets=(src/{port,kv,engine,model,server,tier}/all)
logged "compiling" build/libcxx.log ninja -C build/libcxx -k 0 "${targets[@]}" ||
  die "What includes or uses more than libc++ has is in build/libcxx.log; a stand-in goes into src/port/."
