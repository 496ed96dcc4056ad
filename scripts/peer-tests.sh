#!/usr/bin/env bash
# peer-tests.sh [PYTEST OPTION...]: builds coppice and runs llama.cpp's own server tests against it (tests/peer/README.md).
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice
python_env peer-venv tests/peer/requirements.txt "what llama.cpp's server tests need"
llama="$cache/llama.cpp-$llama_version"
export COPPICE_BINARY="$repo/build/coppice" COPPICE_MODEL="$pinned_model" PYTHONDONTWRITEBYTECODE=1
export LLAMA_SERVER_BIN_PATH="$repo/tests/peer/llama_server.py"
export PEER_TESTS="$llama/tools/server/tests" PEER_REPORT="$repo/build/peer-tests.json" PYTHONPATH="$repo/tests/peer"
export PORT=${PORT:-18080}
cd "$PEER_TESTS"
python="$repo/build/peer-venv/bin/python"
"$python" -m pytest -q -p no:cacheprovider -p peer_plugin -m "not slow" --tb=no "$@" || true
exec "$python" "$repo/tests/peer/summary.py" "$PEER_REPORT"
