#!/usr/bin/env bash
# Perplexity of a novel's beginning by coppice and by llama.cpp's own tool from the pinned sources, on the pinned models and
# on files that llama.cpp's quantiser makes of SmolLM2. bench-perplexity.sh --bytes 30000: more of it; options: bench/perplexity.py.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice
fetch_novel

tools=$(llama_build_dir)
if [[ ! -e $tools/.built-perplexity ]]; then
  build_llama "$tools" "llama.cpp's perplexity tool and quantiser" "" llama-perplexity llama-quantize
  touch "$tools/.built-perplexity"
fi
made="$cache/quantised"
need_disk "$made" 1200 "the models in six types"
models=("$pinned_model")
for type in F16 Q8_0 Q6_K Q5_K_M Q4_K_M Q4_0; do
  model="$made/SmolLM2-135M-Instruct.$type.gguf"
  if [[ ! -e $model ]]; then
    logged "$type" "$cache/logs/quantise-$type.log" \
      "$tools/bin/llama-quantize" --allow-requantize "$pinned_model" "$model.incoming" "$type" ||
      die "llama-quantize could not make $type (log: $cache/logs/quantise-$type.log)"
    mv "$model.incoming" "$model"
  fi
  models+=("$model")
done
exec python3 "$repo/bench/perplexity.py" --coppice "$repo/build/coppice" --reference "$tools/bin/llama-perplexity" \
  --text "$novel" "$@" "${models[@]}" "$pinned_gemma3"
