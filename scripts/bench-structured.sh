#!/usr/bin/env bash
# bench-structured.sh SCHEMAS: see bench/beside.py and bench/structured.py.
source "$(dirname "$0")/lib.sh"
[[ -d ${1:-} ]] || die "Usage: make bench-structured SCHEMAS=folder of *.json (the data folder of JSONSchemaBench)."
"$repo/scripts/build.sh" release grammar_bench coppice
python_env venv tests/e2e/requirements.txt "the test clients"
"$repo/build/venv/bin/python" "$repo/bench/structured.py" "$repo/build/bench/grammar_bench" "$pinned_model" "$@"
"$repo/build/venv/bin/python" "$repo/bench/beside.py" "$repo/build/coppice" "$pinned_model"
