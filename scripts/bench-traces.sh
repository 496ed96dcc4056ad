#!/usr/bin/env bash
# bench-traces.sh DIR: replays the traces of a folder (*.jsonl) against the cache. A few minutes.
source "$(dirname "$0")/lib.sh"
traces=${1:-}
[[ -n $traces ]] || die "Which traces? make bench-traces TRACES=DIR, a folder of *.jsonl files (docs/benchmarks.md says which)."
[[ -d $traces ]] || die "$traces is not a folder."
traces=$(cd "$traces" && pwd)
"$repo/scripts/build.sh" release traces_bench kv_bench
cd "$repo"
python_env venv-bench bench/requirements.txt matplotlib
exec build/venv-bench/bin/python bench/traces.py --bench build/bench/traces_bench --kv-bench build/bench/kv_bench \
  --traces "$traces" --json build/bench-traces.json --markdown docs/benchmarks.md
