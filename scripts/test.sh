#!/usr/bin/env bash
# test.sh [release]  builds everything and runs all tests
# test.sh asan|tsan  builds everything with a sanitizer and runs the tests that take no minutes there
# Further arguments go to ctest: test.sh release -R kv_
source "$(dirname "$0")/lib.sh"
preset=${1:-release}
(($# == 0)) || shift

"$repo/scripts/build.sh" "$preset"
filter=()
if [[ $preset == release ]]; then
  # The end-to-end tests drive the binary with real clients, from an environment of their own.
  python_env venv tests/e2e/requirements.txt "the test clients"
else
  filter=(-LE 'model|e2e')
  # ggml is not instrumented, so its barriers would look like races. And ThreadSanitizer allocates by itself: tests that let
  # allocations fail cannot do so there.
  [[ $preset != tsan ]] || filter+=(-E '^(executor|model|cli)_|_(out_of_memory|faults)_test$')
fi

cd "$repo"
ctest --preset "$preset" -j "$(nproc)" "${filter[@]}" "$@" || die "Tests failed: see above."
