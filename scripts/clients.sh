#!/usr/bin/env bash
# clients.sh [PYTEST OPTION...]: builds coppice and drives it with clients that people use (tests/clients), and with the tests of
# OpenAI's and Anthropic's own clients, which `make test` runs with other versions.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice
[[ -e $repo/build/clients-guidellm/.installed ]] || need_disk "$repo/build" 9000 "what the clients need"
python_env clients tests/clients/requirements.txt "the clients, 1.2 GB"
python_env clients-aiperf tests/clients/aiperf.txt "aiperf, 1.2 GB"
python_env clients-guidellm tests/clients/guidellm.txt "guidellm, with torch, 6 GB"
export COPPICE_BINARY="$repo/build/coppice" COPPICE_MODEL="$pinned_model" PYTHONDONTWRITEBYTECODE=1
cd "$repo/tests"
exec "$repo/build/clients/bin/python" -m pytest -q -p no:cacheprovider -W ignore --durations=5 "$@" \
  clients e2e/test_{async,generation,structured,tools,responses,anthropic}.py
