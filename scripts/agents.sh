#!/usr/bin/env bash
# agents.sh [PYTEST OPTION...]: builds coppice and lets two real coding agents do a task of six turns on it (tests/agents).
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice
python_env agents tests/agents/requirements.txt "the agents, 300 MB"
export COPPICE_BINARY="$repo/build/coppice" COPPICE_MODEL="$pinned_model" PYTHONDONTWRITEBYTECODE=1
exec "$repo/build/agents/bin/python" -m pytest -q -s -p no:cacheprovider "$repo/tests/agents" "$@"
