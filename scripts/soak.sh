#!/usr/bin/env bash
# soak.sh --minutes N [OPTION...]: builds coppice and lets all kinds of load at it (tests/soak/soak.py says which options).
# soak.sh hostile [OPTION...]: a hostile neighbour instead (tests/soak/hostile.py).
source "$(dirname "$0")/lib.sh"
program=soak.py
if [[ ${1:-} == hostile ]]; then
  program=hostile.py
  shift
fi
"$repo/scripts/build.sh" release coppice
python_env venv tests/e2e/requirements.txt "the test clients"
export COPPICE_BINARY="$repo/build/coppice" COPPICE_MODEL="$pinned_model" PYTHONDONTWRITEBYTECODE=1
exec "$repo/build/venv/bin/python" "$repo/tests/soak/$program" --out "$repo/build" "$@"
