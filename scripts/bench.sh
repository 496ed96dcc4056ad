#!/usr/bin/env bash
# Builds llama.cpp's own tools from the pinned sources with our compiler, and runs bench/compare.py against them.
# Keep the machine quiet meanwhile. bench.sh --quick only shows that everything works.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice attention_bench
"$repo/scripts/deps.sh" peers
cd "$repo"
machine_peak
exec python3 bench/compare.py --coppice build/coppice --attention-bench build/bench/attention_bench \
  --machine-peak build/machine_peak --peers "$(llama_build_dir)/bin" --model "$pinned_model" --json build/bench.json \
  --markdown docs/benchmarks.md "$@"
