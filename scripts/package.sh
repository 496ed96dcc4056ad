#!/usr/bin/env bash
# package.sh            builds the Debian package, build-package/coppice_VERSION_amd64.deb, and tests it in a bare Debian (as root)
# package.sh --build    only builds it
# package.sh --arm64    only builds that for 64-bit ARM, build-arm64/coppice_VERSION_arm64.deb
# package.sh --check    tests the parts that need no package: man page, completions, the unit
# Further arguments go to pytest.
source "$(dirname "$0")/lib.sh"

what=${1:-}
[[ $what != --build && $what != --arm64 && $what != --check ]] || shift

run_tests() {
  "$repo/scripts/packages.sh" fish mandoc systemd zsh "${more[@]}"
  python_env venv tests/e2e/requirements.txt "the test clients"
  export COPPICE_MODEL="$pinned_model" PYTHONDONTWRITEBYTECODE=1
  "$repo/build/venv/bin/python" -m pytest -q -p no:cacheprovider "$@" || die "The package's tests failed: see above."
}

more=()
if [[ $what == --check ]]; then
  "$repo/scripts/build.sh" release coppice
  COPPICE_BINARY="$repo/build/coppice" run_tests "$repo/tests/package/test_parts.py" "$@"
  exit
fi

"$repo/scripts/packages.sh" dpkg-dev file  # what cpack finds the package's dependencies with
preset=package options=()
[[ $what != --arm64 ]] || preset=arm64
"$repo/scripts/build.sh" "$preset" coppice
build="$repo/build-$preset"

# dependencies FOLDER: those of a package for another machine, by what the packages that scripts/arm64_sysroot.sh unpacked
# into FOLDER say of their libraries: dpkg-shlibdeps knows the packages that are installed.
dependencies() {
  local llama library
  llama=$(llama_build_dir "${1##*/}")
  readelf -dW "$build/coppice" "$llama"/bin/*.so | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | sort -u |
    while read -r library; do
      [[ ! -e $llama/bin/$library ]] || continue
      grep -m 1 "^${library/.so./ } " "$1/shlibs" || die "Nobody knows which package $library is in."
    done | cut -d ' ' -f 3- | sort -u | paste -sd , | sed 's/,/, /g'
}
if [[ $preset == arm64 ]]; then
  arm64=$("$repo/scripts/arm64_sysroot.sh")
  depends=$(dependencies "$arm64")
  options=(-D "CPACK_DEBIAN_PACKAGE_DEPENDS=$depends")
fi

cuda=
[[ $preset != package ]] || cuda=$("$repo/scripts/cuda_compiler.sh" --pinned)
"$repo/scripts/licences.sh" "$cuda" >"$build/copyright"

rm -f "$build"/coppice*.deb
(cd "$build" && logged "packing" "$build/cpack.log" cpack --config CPackConfig.cmake "${options[@]}") ||
  die "The package could not be packed (log: $build/cpack.log)."
# A second name, without the version.
ln -f "$build"/coppice_*.deb "$build/coppice.deb"
say "$(basename "$build"/coppice_*.deb): $(($(stat -c %s "$build/coppice.deb") / 1048576)) MiB"
[[ $what != --build && $what != --arm64 ]] || exit 0

((EUID == 0)) || die "The package is built. Its test makes a bare Debian in a folder, and needs root for that."
more=(debootstrap qemu-user-static systemd-container)
"$repo/scripts/build.sh" release coppice
COPPICE_PACKAGE="$build/coppice.deb" COPPICE_BARE="$build/bare" COPPICE_BOOKWORM="$pristine_debian" COPPICE_BINARY="$repo/build/coppice" \
  run_tests "$repo/tests/package" "$@"
