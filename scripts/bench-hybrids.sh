#!/usr/bin/env bash
# A hybrid in the shape of Qwen3-Next, eight layers of random f32 weights with a narrow width: agents' transcripts in half the room
# that they would fill (bench-hybrids.sh --turns 20: bench/transcripts.py), and perplexity of a novel token by token.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/build.sh" release coppice
fetch_novel

# A state takes as much as the keys and values of some 3,000 tokens, as in the large model. All experts are used: where some of
# sixteen are chosen, two may score alike; then sums in another order choose another one, and answers differ for no fault.
model="$cache/qwen3-next-narrow-4.gguf"
if [[ ! -e $model ]]; then
  need_disk "$cache" 400 "the random model"
  python3 "$repo/bench/random_model.py" --shape qwen3-next-80b-a3b --types f32 --embd 128 --heads 4 --kv-heads 1 --head-size 64 \
    --experts 4 --experts-used 4 --expert-ff 64 --states 16 --state-keys 8 --state-size 64 \
    --vocabulary "$pinned_model" "$model.incoming" || die "bench/random_model.py could not write $model."
  mv "$model.incoming" "$model"
fi
python3 "$repo/bench/perplexity.py" --coppice "$repo/build/coppice" --text "$novel" "$model"
exec python3 "$repo/bench/transcripts.py" --coppice "$repo/build/coppice" --model "$model" "$@"
