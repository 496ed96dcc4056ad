#!/usr/bin/env bash
# test.sh [release]  builds everything and runs all tests
# test.sh asan|tsan  builds the tests of the cache, attention, the engine and the server with a sanitizer and runs them;
#                    asan: the executor's, too (ggml has no instrumentation, so its barriers would look like races)
# Further arguments go to ctest: test.sh release -R kv_
source "$(dirname "$0")/lib.sh"
preset=${1:-release}
(($# == 0)) || shift

if [[ $preset == release ]]; then
  "$repo/scripts/build.sh" release
  filter=()
else
  folders=(kv attention matmul simd engine server)
  [[ $preset != asan ]] || folders+=(executor)
  targets=("${folders[@]/#/tests/}")
  targets=("${targets[@]/%//all}")
  "$repo/scripts/build.sh" "$preset" "${targets[@]}" tests/fuzz/all
  filter=(-R "^($(IFS='|' && echo "${folders[*]}"))_" -LE model)  # what needs the model takes too long here
  # ThreadSanitizer allocates by itself: tests that let allocations fail cannot do so there.
  [[ $preset != tsan ]] || filter+=(-E '_(out_of_memory|faults)_test$')
fi

# The end-to-end tests drive the binary with real clients, from an environment of their own.
[[ $preset != release ]] || python_env venv tests/e2e/requirements.txt "the test clients"

cd "$repo"
ctest --preset "$preset" -j "$(nproc)" "${filter[@]}" "$@" || die "Tests failed: see above."
