#!/usr/bin/env bash
# What the KV formats cost in quality: perplexity and KL divergence against f16 on the first tokens of a public-domain
# novel (Jane Austen, "Emma"), which a Debian package carries. bench-quality.sh --tokens 40000: more of it.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice

fetch_novel

# dense on f16 shows how far apart two correct ways to compute the same are.
printf 'f16, dense: '
"$repo/build/coppice" bench --model "$pinned_model" --case quality --text "$novel" --attention dense "$@"
for format in int8 turbo4; do
  printf '%s: ' "$format"
  "$repo/build/coppice" bench --model "$pinned_model" --case quality --text "$novel" --kv-format "$format" "$@"
done
