#!/usr/bin/env bash
# soak.sh --minutes N [OPTION...]: builds coppice and lets all kinds of load at it (tests/soak/soak.py says which options).
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice
python_env venv tests/e2e/requirements.txt "the test clients"
export COPPICE_BINARY="$repo/build/coppice" COPPICE_MODEL="$pinned_model" PYTHONDONTWRITEBYTECODE=1
exec "$repo/build/venv/bin/python" "$repo/tests/soak/soak.py" --out "$repo/build" "$@"
