#!/usr/bin/env bash
# bench-traces.sh DIR [--no-save]: replays the traces of a folder (*.jsonl) against the cache. A few minutes.
source "$(dirname "$0")/lib.sh"
[[ -d ${1:-} ]] || die "Which traces? make bench-traces TRACES=DIR, a folder of *.jsonl files (bench/README.md says which)."
traces=$(cd "$1" && pwd)
"$repo/scripts/build.sh" release traces_bench kv_bench
exec python3 "$repo/bench/traces.py" "$traces" "${@:2}"
