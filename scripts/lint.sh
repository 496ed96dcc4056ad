#!/usr/bin/env bash
# lint.sh              clang-tidy over the C++ files that differ from where this branch left origin/main; on main itself, over
#                      those of the last commit
# lint.sh --all        over all of them
# lint.sh --commits N  over those of the last N commits
# lint.sh ... --seconds N   newest changes first, and none is begun after N seconds
# Uncommitted changes always count. .clang-tidy says what is looked for. Before that: the include graph, and the glossary's names.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/packages.sh"
cd "$repo"
scripts/check_includes.py || die "src/ includes what it may not: see above."
scripts/check_words.py || die "A name means two things: see above."
[[ -e build/compile_commands.json ]] || scripts/build.sh release coppice_kv
# The build compiles files a dozen at a time; here each needs a command of its own.
configure release "$repo/build/lint" "$(llama_build_dir)" -DCOPPICE_UNITY=OFF

scope=(--base HEAD~1)
if base=$(git merge-base HEAD origin/main 2>/dev/null) && [[ $base != "$(git rev-parse HEAD)" ]]; then
  scope=(--base "$base")
fi
scripts/lint.py --jobs "$(jobs)" "${scope[@]}" "$@" || die "clang-tidy found something: see above."
