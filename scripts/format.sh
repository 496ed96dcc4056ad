#!/usr/bin/env bash
# format.sh: formats all C++ files.  format.sh --check: only says which ones are not formatted.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/packages.sh"
cd "$repo"
mapfile -d '' files < <(find src tests bench \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0)
if [[ ${1:-} == --check ]]; then
  clang-format-19 --dry-run --Werror "${files[@]}" || die "Some files are not formatted: run 'make format'."
  say "${#files[@]} files are formatted."
else
  clang-format-19 -i "${files[@]}"
fi
