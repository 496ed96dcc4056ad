#!/usr/bin/env bash
# test.sh [release]  builds everything and runs all tests
# test.sh asan       the same with the sanitizers for all tests but those that load the pinned models or are of benchmarks
# test.sh tsan       builds and runs the tests that have threads of their own
# Further arguments go to ctest: test.sh release -R kv_ builds and runs the tests of such names, and nothing else
source "$(dirname "$0")/lib.sh"
preset=${1:-release}
(($# == 0)) || shift

filter=() targets=()
case $preset in
  release) ;;
  asan)
    filter=(-LE 'model|e2e|bench')
    targets=(unit_tests)
    ;;
  # ggml is not instrumented: its barriers would look like races. And a test that lets allocations fail cannot do so under
  # ThreadSanitizer, which allocates by itself.
  tsan)
    filter=(-L threads)
    targets=(threaded_tests)
    ;;
  *) die "There is no preset $preset: release, asan or tsan." ;;
esac
build=$repo/build
[[ $preset == release ]] || build=$repo/build-$preset

# named_targets ARGS...: what ctest ARGS needs of a folder that is configured; nothing if that is more than programs of the tests' own names.
named_targets() {
  local name known names=()
  known=$(ninja -C "$build" -t targets all | sed -n 's/: phony$//p')
  while read -r name; do
    [[ $name != *_fuzz_* ]] || name=fuzz_${name##*_fuzz_}
    grep -qxF "$name" <<<"$known" || return 0
    names+=("$name")
  done < <(ctest --test-dir "$build" -N "${filter[@]}" "$@" | sed -En 's/^ +Test +#[0-9]+: //; T; s/_[0-9]+$//p; t; p' | sort -u)
  echo "${names[@]}"
}

if [[ " $* " == *" -R "* && -e $build/build.ninja ]]; then
  read -ra named < <(named_targets "$@") || true  # nothing: all is built
  ((${#named[@]} == 0)) || targets=("${named[@]}")
fi
"$repo/scripts/build.sh" "$preset" "${targets[@]}"
# The end-to-end tests drive the binary with real clients, from an environment of their own.
[[ $preset != release ]] || python_env venv tests/e2e/requirements.txt "the test clients"

cd "$repo"
# Two places a core, and one for a test that mostly waits: cmake/CoppiceTests.cmake says how many a test takes.
ctest --preset "$preset" -j $((2 * $(nproc) + 1)) "${filter[@]}" "$@" || die "Tests failed: see above."
