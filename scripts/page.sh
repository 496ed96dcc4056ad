#!/usr/bin/env bash
# page.sh [PYTEST OPTION...]: builds coppice and looks at its page in Debian's Chromium (tests/page). --screenshots renews docs/page*.png.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice
"$repo/scripts/packages.sh" chromium fonts-dejavu-core
python_env page tests/page/requirements.txt "what drives the browser, 130 MB"
export COPPICE_BINARY="$repo/build/coppice" COPPICE_MODEL="$pinned_model" PYTHONDONTWRITEBYTECODE=1
exec "$repo/build/page/bin/python" -m pytest -q -p no:cacheprovider "$repo/tests/page" "$@"
