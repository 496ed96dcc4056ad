#!/usr/bin/env bash
# macos_sysroot.sh: makes a folder to build for macOS on Apple Silicon with, and prints its path. Nothing of Apple's is installed. In it:
#   sysroot      what stands for Apple's SDK: headers and the names in libSystem, as Zig brings them; libc++ as Zig compiles it, of one ABI with
#                clang 19's headers; libraries compiled from Debian's source packages, and links to headers that Debian has installed
#   macos.cmake  cmake/macos.cmake, which finds this beside itself: folders of the cache outlive a checkout
source "$(dirname "$0")/lib.sh"
source "$repo/scripts/debian_sources.sh"

by_cmake=(fmtlib spdlog highway prometheus-cpp zeromq3 libjpeg-turbo libpng1.6 libwebp)
others=(zlib giflib openssl)

step=${1:-}
[[ -n $step ]] || "$repo/scripts/packages.sh"
[[ -n $step ]] || "$repo/scripts/packages.sh" dpkg-dev libc++-19-dev
key=$({
  cat "$repo"/scripts/{macos_sysroot,debian_sources}.sh "$repo/cmake/macos.cmake"
  clang-19 --version | head -n 1
  dpkg-query -W libboost1.81-dev libc++-19-dev
} | sha256sum | cut -c1-8)
made="$cache/macos-$key"
if [[ -e $made/.complete ]]; then
  echo "$made"
  exit
fi
work="$made.incoming"
log="$cache/logs/macos"
usr="$work/sysroot/usr"
mkdir -p "$work" "$cache/logs"
cd "$work"
# As cmake/macos.cmake has it.
compiler=(clang-19 --target=arm64-apple-macos13.0 -isysroot "$work/sysroot")
# zlib and libpng take clang's TARGET_OS_MAC for the system of 1999.
for_old_names=-fno-define-target-os-macros

take_zig() {
  fetch_zig
  mkdir -p "$usr"/{include,lib,share/cmake}
  cp -r zig/ziglang/lib/libc/include/any-darwin-any/. "$usr/include"
  # It leaves INFINITY and NAN to the compiler's <float.h>, where clang 20 has them.
  sed -i 's/__has_include(<float.h>)/0/' "$usr/include/math.h"
  # It names kinds of processors that clang 19 and its linker don't know; arm64's names are the same.
  sed 's/arm64e\.x1-[a-z]*,\{0,1\}//g; s/arm64e/arm64/g' zig/ziglang/lib/libc/darwin/libSystem.tbd >"$usr/lib/libSystem.tbd"
  local name
  for name in c dl m pthread; do ln -s libSystem.tbd "$usr/lib/lib$name.tbd"; done
  echo 'int main() { throw 0; }' >main.cpp
  zig c++ --target=aarch64-macos.13.0 -O2 main.cpp -o main
  llvm-libtool-darwin-19 -static -o "$usr/lib/libc++.a" $(find zig/cache -name 'libc++.a' -o -name 'libc++abi.a')
}

link_headers() {
  ln -s /usr/include/{boost,nlohmann,CLI} "$usr/include"
  cp -r /usr/share/cmake/{CLI11,nlohmann_json} "$usr/share/cmake"
  ln -s /usr/share/javascript "$usr/share"
}

take_sources() {
  fetch_sources "${by_cmake[@]}" "${others[@]}"
}

# compile_files LIBRARY FILE...: plain C, in this folder.
compile_files() {
  local library=$1
  shift
  "${compiler[@]}" -O2 -w "$for_old_names" -c "$@"
  llvm-ar-19 rcs "$usr/lib/lib$library.a" "${@/%.c/.o}"
}

compile_libraries() {
  (
    cd zlib-*/
    compile_files z {adler32,compress,crc32,deflate,infback,inffast,inflate,inftrees,trees,uncompr,zutil}.c
    cp zlib.h zconf.h "$usr/include"
  )
  (
    cd giflib-*/
    compile_files gif {dgif_lib,gif_err,gif_hash,gifalloc,openbsd-reallocarray}.c
    cp gif_lib.h "$usr/include"
  )
  build_options=("-DCMAKE_TOOLCHAIN_FILE=$work/macos.cmake" "-DCMAKE_C_FLAGS=$for_old_names")
  compile_sources "$usr" "${by_cmake[@]}"
  cp -r highway-*/hwy/contrib "$usr/include/hwy" # its functions stand in headers
}

compile_openssl() {
  cd openssl-*/
  CC="${compiler[*]}" AR=llvm-ar-19 RANLIB=llvm-ranlib-19 ./Configure darwin64-arm64-cc no-shared no-tests no-engine no-dso no-legacy no-async \
    --prefix="$usr" --libdir=lib --openssldir=/etc/ssl
  make -j "$(jobs)" install_dev
}

if [[ -n $step ]]; then
  "$step"
  exit
fi
need_disk "$cache" 1500 "what is linked for macOS"
say "Making what stands for macOS's SDK, five minutes (into $made)"
begin
cp "$repo/cmake/macos.cmake" "$work"
take "Zig" take_zig "Zig's files for macOS could not be made"
take "headers" link_headers "headers could not be linked"
take "sources" take_sources "Debian's source packages could not be fetched"
take "libraries" compile_libraries "Debian's source packages could not be compiled"
take "OpenSSL" compile_openssl "OpenSSL could not be compiled"
finish sysroot macos.cmake
