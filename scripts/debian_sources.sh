# Sourced by old_libc.sh and macos_sysroot.sh, each of which makes a folder of the cache, $made, first as $work: Zig, which brings other systems'
# C libraries, and libraries compiled from Debian's source packages.
zig_version=0.17.1
zig_sha256=ea6cc5d87b033cf0aedfbc8f9549a908cae6c50ac31f1698188fa48a74524b54

# take LABEL STEP SENTENCE: does a step in $work. It is a process of its own, the script again with what is in of_step, so that its first failure ends
# it.
of_step=()
take() { logged "$1" "$log-$2.log" "$repo/scripts/$(basename "$0")" "${of_step[@]}" "$2" || die "$3 (log: $log-$2.log)"; }

begin() {
  rm -rf "$work"
  mkdir -p "$work"
  cd "$work"
  if [[ ! -x $cache/venv/bin/pip ]]; then
    logged "download tool" "$cache/logs/venv.log" python3 -m venv "$cache/venv" || die "Python cannot make a virtual environment (log: $cache/logs/venv.log)"
  fi
}

# finish NAME...: keeps these, and prints where they are.
finish() {
  local keep=() name
  for name in "$@"; do keep+=(! -name "$name"); done
  find "$work" -mindepth 1 -maxdepth 1 "${keep[@]}" -exec rm -rf {} +
  touch "$work/.complete"
  mv "$work" "$made"
  echo "$made"
}

# zig ARGUMENT...: in $work; what it makes for itself, such as libraries, stays in zig/cache.
zig() { ZIG_GLOBAL_CACHE_DIR="$work/zig/cache" ZIG_LOCAL_CACHE_DIR="$work/zig/cache" "$work/zig/ziglang/zig" "$@"; }
fetch_zig() {
  "$cache/venv/bin/pip" download --no-deps --dest "$work" "ziglang==$zig_version"
  [[ $(sha256sum "$work"/ziglang-*.whl | cut -d' ' -f1) == "$zig_sha256" ]] || die "Wrong checksum: the downloaded ziglang is not the pinned one."
  python3 -m zipfile -e "$work"/ziglang-*.whl "$work/zig"
  chmod +x "$work/zig/ziglang/zig"
}

# fetch_sources PACKAGE[=VERSION]...: source packages, by apt with all of its checks. Without a version the newest, or the release's where a mirror
# lacks that.
fetch_sources() {
  mkdir -p apt/lists/partial
  python3 - "$repo/scripts" >apt/sources.list <<'END_OF_PYTHON'
import sys
sys.path.append(sys.argv[1])
from bare_debian import mirrors
found = mirrors() or sys.exit("apt's sources name no mirror of Debian 12")
for suite, uri in found.items():
    print("deb-src", uri, suite, "main")
END_OF_PYTHON
  local apt=(-q -o "Dir::Etc::SourceList=$work/apt/sources.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$work/apt/lists" -o APT::Sandbox::User=root)
  apt-get "${apt[@]}" update
  local each
  for each in "$@"; do
    apt-get "${apt[@]}" source "$each" || { [[ $each != *=* ]] && apt-get "${apt[@]}" source "$each/bookworm"; }
  done
}

# compile_sources PREFIX PACKAGE...: those that CMake compiles, with what is in build_options, installed into a folder.
compile_sources() {
  local prefix=$1 name options
  shift
  for name in "$@"; do
    case $name in
      fmtlib) options=(-DFMT_TEST=OFF -DFMT_DOC=OFF) ;;
      spdlog) options=(-DSPDLOG_FMT_EXTERNAL=ON -DSPDLOG_BUILD_EXAMPLE=OFF) ;;
      highway) options=(-DHWY_ENABLE_TESTS=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF -DBUILD_TESTING=OFF) ;;
      prometheus-cpp) options=(-DENABLE_PUSH=OFF -DENABLE_PULL=OFF -DENABLE_TESTING=OFF -DENABLE_COMPRESSION=OFF) ;;
      zeromq3) options=(-DBUILD_SHARED=OFF -DBUILD_TESTS=OFF -DWITH_PERF_TOOL=OFF -DWITH_DOCS=OFF -DENABLE_CURVE=OFF -DWITH_LIBSODIUM=OFF
        -DWITH_LIBBSD=OFF -DWITH_TLS=OFF -DENABLE_WS=OFF -DWITH_OPENPGM=OFF -DWITH_NORM=OFF) ;;  # TCP and local sockets
      libjpeg-turbo) options=(-DENABLE_SHARED=OFF) ;;
      libpng1.6) options=(-DPNG_SHARED=OFF -DPNG_EXECUTABLES=OFF -DPNG_TESTS=OFF -DPNG_HARDWARE_OPTIMIZATIONS=OFF) ;;
      libwebp) options=(-DWEBP_BUILD_{ANIM_UTILS,CWEBP,DWEBP,GIF2WEBP,IMG2WEBP,VWEBP,WEBPINFO,WEBPMUX,EXTRAS}=OFF) ;;
    esac
    cmake -G Ninja -S "$work/$name"-*/ -B "$work/$name.build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
      -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 "-DCMAKE_INSTALL_PREFIX=$prefix" -DCMAKE_INSTALL_LIBDIR:STRING=lib \
      "${build_options[@]}" "${options[@]}"
    cmake --build "$work/$name.build" -j "$(jobs)" --target install
  done
}
