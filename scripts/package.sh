#!/usr/bin/env bash
# package.sh            builds the Debian package, build-package/coppice_VERSION_amd64.deb, and tests it in a bare Debian (as root)
# package.sh --build    only builds it
# package.sh --check    tests the parts that need no package: man page, completions, the unit
# Further arguments go to pytest.
source "$(dirname "$0")/lib.sh"

what=${1:-}
[[ $what != --build && $what != --check ]] || shift

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
"$repo/scripts/build.sh" package coppice
build="$repo/build-package"

"$repo/scripts/licences.sh" >"$build/copyright"

rm -f "$build"/coppice*.deb
(cd "$build" && logged "packing" "$build/cpack.log" cpack --config CPackConfig.cmake) ||
  die "The package could not be packed (log: $build/cpack.log)."
# A second name, without the version.
ln -f "$build"/coppice_*.deb "$build/coppice.deb"
say "$(basename "$build"/coppice_*.deb): $(($(stat -c %s "$build/coppice.deb") / 1048576)) MiB"
[[ $what != --build ]] || exit 0

((EUID == 0)) || die "The package is built. Its test makes a bare Debian in a folder, and needs root for that."
more=(debootstrap qemu-user-static systemd-container)
"$repo/scripts/build.sh" release coppice
COPPICE_PACKAGE="$build/coppice.deb" COPPICE_BARE="$build/bare" COPPICE_BOOKWORM="$pristine_debian" COPPICE_BINARY="$repo/build/coppice" \
  run_tests "$repo/tests/package" "$@"
