#!/usr/bin/env bash
# old_libc.sh [--arm64]: makes a folder to link with, so that what is linked runs with any C library from glibc 2.28 on, and prints its path; with
# --arm64 for 64-bit ARM, of what scripts/arm64_sysroot.sh made. In it:
#   libc/libc.so and others   glibc 2.28's symbols and start-up files, as Zig writes them; what our code wants of newer ones, packaging/wheel/older_glibc.c.
#                             Nothing runs with these: CMake puts lib, where it knows files, into programs as a place to look for libraries
#   libc/libstdc++.so         Debian's libstdc++.a as one shared library, as exceptions cross our files; in run it has the name under which it runs
#   lib/*.a                   libraries that Debian has only as shared ones, from its source packages of the same versions
# (docs/decisions.md, "One wheel")
source "$(dirname "$0")/lib.sh"
source "$repo/scripts/debian_sources.sh"

glibc=2.28
sources=(fmtlib=libfmt-dev spdlog=libspdlog-dev highway=libhwy-dev prometheus-cpp=prometheus-cpp-dev zeromq3=libzmq3-dev)  # source package=what Debian makes of it
shim="$repo/packaging/wheel/older_glibc.c"

arm64= machine=x86_64 for_machine=()
if [[ ${1:-} == --arm64 ]]; then
  shift
  arm64=$("$repo/scripts/arm64_sysroot.sh") machine=aarch64
  for_machine=(--target=aarch64-linux-gnu "--sysroot=$arm64/sysroot")
fi
step=${1:-}
[[ -n $step ]] || "$repo/scripts/packages.sh"
[[ -n $step ]] || "$repo/scripts/packages.sh" dpkg-dev libstdc++-12-dev
key=$({
  cat "$shim" "$repo"/scripts/{old_libc,debian_sources}.sh
  clang-19 --version | head -n 1
  dpkg-query -W libstdc++-12-dev "${sources[@]#*=}"
  echo "$arm64"
} | sha256sum | cut -c1-8)
made="$cache/old-libc-${arm64:+arm64-}$key"
if [[ -e $made/.complete ]]; then
  echo "$made"
  exit
fi
work="$made.incoming"
log="$cache/logs/old-libc${arm64:+-arm64}"
mkdir -p "$work"/lib{,c} "$cache/logs"
cd "$work"

# Its files for glibc: it compiles them when a program is linked, and names them in the linker's command.
take_glibc() {
  fetch_zig
  echo 'int main(void) { return 0; }' >main.c
  zig cc --target="$machine-linux-gnu.$glibc" -O2 -fPIE -pie main.c -o main -lm -lpthread -ldl -lrt -v
  local name
  for name in Scrt1.o libc_nonshared.a libc.so.6 libm.so.6 libpthread.so.0 libdl.so.2 librt.so.1 libresolv.so.2 libutil.so.1 libld.so.2; do
    cp "$(find "$work/zig/cache/o" -name "$name" -print -quit)" libc/
  done
  for name in m pthread dl rt resolv util; do ln -s "$(cd libc && echo "lib$name.so".*)" "libc/lib$name.so"; done
  clang-19 "${for_machine[@]}" -O2 -fPIC -Wall -Wextra -Werror -c "$shim" -o older_glibc.o
  llvm-ar-19 rcs libc/libolder_glibc.a older_glibc.o
  # Of 2.28 on these are one library in newer ones, so nobody names them.
  printf 'GROUP ( %s %s %s AS_NEEDED ( %s ) )\n' libc.so.6 libolder_glibc.a libc_nonshared.a \
    "libpthread.so.0 libdl.so.2 librt.so.1 libm.so.6 libld.so.2" >libc/libc.so
}

link_flags=(-fuse-ld=lld "-B$work/libc" "-L$work/libc" -static-libgcc)
link_stdcxx() {
  mkdir run
  clang-19 "${for_machine[@]}" -shared -nostdlib++ "${link_flags[@]}" -Wl,-soname,libcoppice_stdc++.so -Wl,--whole-archive -l:libstdc++.a -Wl,--no-whole-archive \
    -Wl,--no-undefined -Wl,-z,relro,-z,now -lm -o run/libcoppice_stdc++.so
  llvm-strip-19 --strip-unneeded run/libcoppice_stdc++.so
  ln -s ../run/libcoppice_stdc++.so libc/libstdc++.so
}

# The versions of the headers that are installed.
take_sources() {
  local each wanted=()
  for each in "${sources[@]}"; do wanted+=("${each%=*}=$(dpkg-query -W -f='${source:Version}' "${each#*=}")"); done
  fetch_sources "${wanted[@]}"
}

compile_archives() {
  build_options=(-DCMAKE_CXX_FLAGS=-w ${arm64:+"-DCMAKE_TOOLCHAIN_FILE=$arm64/arm64.cmake"})
  compile_sources "$work/installed" "${sources[@]%=*}"
  cp installed/lib/*.a lib/
}

if [[ -n $step ]]; then
  "$step"
  exit
fi
need_disk "$cache" 800 "what the wheel is linked with"
say "Making what a wheel is linked with, two minutes (into $made)"
begin
mkdir -p "$work"/lib{,c}
of_step=(${arm64:+--arm64})
take "glibc $glibc" take_glibc "glibc $glibc's symbols could not be made"
take "libstdc++" link_stdcxx "libstdc++ could not be linked"
take "sources" take_sources "Debian's source packages could not be fetched"
take "libraries" compile_archives "Debian's source packages could not be compiled"
finish lib libc run
