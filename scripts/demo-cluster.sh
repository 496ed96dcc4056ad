#!/usr/bin/env bash
# demo-cluster.sh [OPTION...]: builds coppice, and runs two servers, a router from PyPI and a Redis while agents work: scripts/demo_cluster.py.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice
"$repo/scripts/packages.sh" redis-tools
python_env cluster scripts/demo-cluster.txt "vllm-router, 130 MB"
exec "$repo/build/cluster/bin/python" "$repo/scripts/demo_cluster.py" --binary "$repo/build/coppice" --model "$pinned_model" "$@"
