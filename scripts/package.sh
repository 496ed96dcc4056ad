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

# The licences of what is inside, as their owners wrote them.
llama="$cache/llama.cpp-$llama_version"
part() { printf '\n\n%s\n%s\n\n' "$1" "----------------------------------------"; }
licences() {
  printf 'coppice, and what it contains of others, with their licences.\n'
  part coppice && cat "$repo/LICENSE"
  part "llama.cpp, with ggml" && cat "$llama/LICENSE"
  part "JSON for Modern C++, in llama.cpp" && cat "$llama/licenses/LICENSE-jsonhpp"
  part "cpp-httplib, in llama.cpp" && cat "$llama/vendor/cpp-httplib/LICENSE"
  part XGrammar && cat "$xgrammar_sources"/{LICENSE,NOTICE}
  part "DLPack, in XGrammar" && cat "$xgrammar_sources/3rdparty/dlpack/LICENSE"
  part "PicoJSON, in XGrammar" && sed '/\*\//q' "$xgrammar_sources/3rdparty/picojson/picojson.h"  # the comment at its head
  part CLI11 && cat /usr/share/doc/libcli11-dev/copyright
  part Highway && cat /usr/share/doc/libhwy-dev/copyright
  part "marked, in the page" && cat /usr/share/doc/libjs-marked/copyright
  # Debian lists each of Boost's files, two megabytes of it: only the licence that they have in common.
  part Boost && awk '/^License: BSL-1.0$/ {text = ""; on = 1} /^$/ {on = 0} on {text = text $0 "\n"} END {printf "%s", text}' \
    /usr/share/doc/libboost1.81-dev/copyright
}
licences >"$build/copyright"

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
