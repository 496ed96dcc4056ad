#!/usr/bin/env bash
# bench-tools.sh DATA [COUNT]: see bench/tools.py.
source "$(dirname "$0")/lib.sh"
[[ -d ${1:-} ]] || die "Usage: make bench-tools DATA=folder of BFCL_v4_*.json (bfcl_eval/data of the package bfcl-eval)."
"$repo/scripts/build.sh" release coppice
python_env venv tests/e2e/requirements.txt "the test clients"
"$repo/build/venv/bin/python" "$repo/bench/tools.py" "$repo/build/coppice" "$pinned_model" "$@"
