#!/usr/bin/env bash
# macos.sh: cross-compiles and links the program for macOS on Apple Silicon, build-macos/coppice, and looks at what its file says of itself.
# Nothing is run. Arguments go to pytest. (docs/operations.md, "macOS")
source "$(dirname "$0")/lib.sh"
build="$repo/build-macos"
"$repo/scripts/build.sh" macos coppice
say "coppice for macOS: $(awk -v n="$(stat -c %s "$build/coppice")" 'BEGIN {printf "%.1f", n / 1e6}') MB"
python_env venv tests/e2e/requirements.txt "the test clients"
COPPICE_MACOS=$("$repo/scripts/macos_sysroot.sh") COPPICE_MACOS_PROGRAM="$build/coppice" PYTHONDONTWRITEBYTECODE=1 \
  "$repo/build/venv/bin/python" -m pytest -q -p no:cacheprovider "$repo/tests/macos" "$@" || die "The checks of the program for macOS failed: see above."
