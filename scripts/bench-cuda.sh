#!/usr/bin/env bash
# bench-cuda.sh [PROGRAMS [FOLDER [RESULTS]]]: on a machine with an NVIDIA GPU, tests its kernels and measures them, in stages of at most eight
# minutes, then writes RESULTS/CARD.json, from which bench/page.py makes the GPU's part of bench/README.md.
#   PROGRAMS  where the programs of make cuda lie, at any depth; default build
#   FOLDER    where a stage leaves its output; a stage that is there is done, so a run that was broken off goes on; default build/bench-cuda
#   RESULTS   default bench/results/cuda
# With LLAMA_SERVER (llama.cpp's, built with CUDA) set, the server is measured beside it, too, on MODEL (bench/gpu_server.py says which), and
# on EXPERTS: NAME=PATH;NAME=PATH of mixtures of experts (bench/gpu_experts.py); with torch and flashinfer or prefix_attn (PAT's module) for
# python3, these.
source "$(dirname "$0")/lib.sh"
programs=$(realpath "${1:-$repo/build}")
folder=${2:-$repo/build/bench-cuda}
results=${3:-$repo/bench/results/cuda}
command -v nvidia-smi >/dev/null || die "No NVIDIA driver found: run this on a machine with a GPU."
mkdir -p "$folder" "$results"

# The path of a program of make cuda.
program() {
  local found
  found=$(find "$programs" -type f -perm -u+x -name "$1" -print -quit)
  [[ -n $found ]] || die "$1 isn't under $programs: run make cuda first."
  printf '%s\n' "$found"
}
# A stage: NAME PROGRAM [ARGUMENT...]; the program writes a file of JSON, kept only if it ends well.
measured() {
  local name=$1 path
  [[ ! -e $folder/$name.json ]] || return 0
  path=$(program "$2")
  say "$name"
  timeout 480 "$path" "${@:3}" --json "$folder/$name.part" >"$folder/$name.log" 2>&1 ||
    die "$name failed or took over eight minutes (log: $folder/$name.log)"
  mv "$folder/$name.part" "$folder/$name.json"
}
for test in tree_attention quant_product part_product operators heads experts decoder; do
  [[ ! -e $folder/$test.passed ]] || continue
  path=$(program "${test}_on_gpu")
  say "$test"
  timeout 480 "$path" >"$folder/$test.log" 2>&1 || die "$test failed or took over eight minutes (log: $folder/$test.log)"
  touch "$folder/$test.passed"
done
measured attention attention_cuda_bench
for peer in flashinfer:flashinfer pat:prefix_attn; do
  name=${peer%:*}
  if [[ -e $folder/$name.json ]] || ! python3 -c "import torch, ${peer#*:}" 2>/dev/null; then continue; fi
  say "$name"
  timeout 480 python3 "$repo/bench/gpu_$name.py" "$folder/$name.part" >"$folder/$name.log" 2>&1 ||
    die "$name's measurement failed or took over eight minutes (log: $folder/$name.log)"
  mv "$folder/$name.part" "$folder/$name.json"
done
measured products matmul_cuda_bench
measured steps step_cuda_bench
if [[ -n ${LLAMA_SERVER:-} && -n ${MODEL:-} && ! -e $folder/server.json ]]; then
  say server
  timeout 480 python3 "$repo/bench/gpu_server.py" --coppice "$(program coppice)" --llama-server "$LLAMA_SERVER" --model "$MODEL" \
    "$folder/server.part" >&2 || die "the server's bursts failed or took over eight minutes"
  mv "$folder/server.part" "$folder/server.json"
fi
if [[ -n ${LLAMA_SERVER:-} && -n ${EXPERTS:-} && ! -e $folder/experts.json ]]; then
  say experts
  mapfile -t models < <(tr ';' '\n' <<<"$EXPERTS" | sed 's/^/--model=/')
  timeout 480 python3 "$repo/bench/gpu_experts.py" --coppice "$(program coppice)" --llama-server "$LLAMA_SERVER" "${models[@]}" \
    "$folder/experts.part" >&2 || die "the mixtures of experts failed or took over eight minutes"
  mv "$folder/experts.part" "$folder/experts.json"
fi
python3 "$repo/bench/gpu.py" "$folder" "$results"
