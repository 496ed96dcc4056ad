#!/usr/bin/env bash
# clients.sh [PYTEST OPTION...]: builds coppice and drives it with clients that people use (tests/clients), and with the tests of
# OpenAI's and Anthropic's own clients, which `make test` runs with other versions.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice
python_env clients tests/clients/requirements.txt "the clients, 700 MB"
export COPPICE_BINARY="$repo/build/coppice" COPPICE_MODEL="$pinned_model" PYTHONDONTWRITEBYTECODE=1
cd "$repo/tests"
exec "$repo/build/clients/bin/python" -m pytest -q -p no:cacheprovider -W ignore --durations=5 "$@" \
  clients e2e/test_{async,generation,structured,tools,responses,anthropic}.py
