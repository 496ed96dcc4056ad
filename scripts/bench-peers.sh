#!/usr/bin/env bash
# Builds llama-server and llama.cpp's bench tools from the pinned sources with our compiler (without AMX too, where the
# CPU has it), and runs bench/peers.py: both servers in turn, the peer at its best. Keep the machine quiet meanwhile.
# A few minutes: bench-peers.sh --rounds 1 --only cold-8-1500      All of it takes hours; --resume goes on with the
# same commit's figures.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice
"$repo/scripts/deps.sh" peers
cd "$repo"

python_env venv-bench bench/requirements.txt matplotlib
machine_peak

no_amx=()
if grep -qw amx_int8 /proc/cpuinfo; then
  other="$(llama_build_dir)-no-amx"
  flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
  if [[ ! -e $other/.built ]]; then
    jobs=$(jobs)
    say "Building the same tools without AMX, about 4 minutes on 2 cores (into $other)"
    logged "configuring" "$cache/logs/no-amx-configure.log" cmake -G Ninja -S cmake/llama -B "$other" \
      -DLLAMA_SOURCE_DIR="$cache/llama.cpp-$llama_version" -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 -DCMAKE_C_FLAGS="$flags" -DCMAKE_CXX_FLAGS="$flags" \
      -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache ||
      die "llama.cpp without AMX could not be configured (log: $cache/logs/no-amx-configure.log)"
    logged "compiling" "$cache/logs/no-amx-build.log" cmake --build "$other" -j "$jobs" \
      --target llama-server llama-bench llama-batched-bench ||
      die "llama.cpp without AMX could not be compiled (log: $cache/logs/no-amx-build.log)"
    touch "$other/.built"
  fi
  no_amx=(--peers-no-amx "$other/bin")
fi

exec build/venv-bench/bin/python bench/peers.py --coppice build/coppice --peers "$(llama_build_dir)/bin" "${no_amx[@]}" \
  --machine-peak build/machine_peak --model "$pinned_model" --json build/bench-peers.json \
  --markdown docs/benchmarks.md "$@"
