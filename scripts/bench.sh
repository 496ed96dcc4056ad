#!/usr/bin/env bash
# Builds what bench/run.py compares, and runs it: coppice, and llama.cpp's server and bench tools from the pinned sources
# with our compiler (once more without AMX, where the CPU has it). With --before nothing of llama.cpp's is needed, nor with --peers NAMES:
# these are installed, and bench/peers.py measures.
# bench.sh --help lists the options. Keep the machine quiet meanwhile.
source "$(dirname "$0")/lib.sh"
cd "$repo"
names='' before=''
for argument in "$@"; do
  [[ $before != --peers ]] || names=$argument
  before=$argument
  case $argument in
    --peers=*) names=${argument#*=} ;;
    --help | -h) exec python3 bench/run.py --help ;;
    --before | --before=*) builds_only=1 ;;
  esac
done
"$repo/scripts/build.sh" release coppice attention_bench
if [[ -n $names ]]; then
  mapfile -t list < <(tr , '\n' <<<"$names" | cut -d= -f1)
  pythons=$("$repo/scripts/peers.sh" "${list[@]}")
  mapfile -t pythons <<<"$pythons"
  exec python3 bench/peers.py --model "$pinned_model" "${pythons[@]/#/--python=}" "$@"
fi
models=(--model "$pinned_model" --also "gemma3=$pinned_gemma3")

# add_random NAME STEM MIB OPTIONS...: the model of the loads that begin with NAME, if they were asked for: it is large.
add_random() {
  local name=$1 file="build/random-$2.gguf" mib=$3
  shift 3
  [[ " $arguments" =~ [\ =,]($name|all)(-|,|\ |$) ]] || return 0
  if [[ ! -e $file ]]; then
    need_disk "$repo/build" "$mib" "the random model $name"
    python3 bench/random_model.py --vocabulary "$pinned_model" "$@" "$file.incoming" ||
      die "bench/random_model.py could not write $file."
    mv "$file.incoming" "$file"
  fi
  models+=(--also "$name=$file")
}
arguments=$*
add_random 1b 1b-q4_k_m 900
add_random q6_k 1b-q6_k 1100 --types q6_k
add_random q8_0 1b-q8_0 1300 --types q8_0
add_random qwen3moe qwen3-30b-a3b-4-layers-q4_k_m 1700 --shape qwen3-30b-a3b
add_random gptoss gpt-oss-20b-4-layers-mxfp4 2200 --shape gpt-oss-20b --types mxfp4
add_random qwen35 qwen3.5-4b-8-layers-q4_k_m 700 --shape qwen3.5-4b --layers 8
if [[ -n ${builds_only:-} ]]; then exec python3 bench/run.py "${models[@]}" "$@"; fi

"$repo/scripts/deps.sh" peers
clang-19 -O3 -march=native -Wno-invalid-feature-combination -ffp-contract=fast -Wall -Wextra -Werror -pthread \
  bench/machine_peak.c -o build/machine_peak || die "bench/machine_peak.c could not be compiled: see above."
llama=(--llama "$(llama_build_dir)/bin")
if grep -qw amx_int8 /proc/cpuinfo; then
  other="$(llama_build_dir)-no-amx"
  flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
  if [[ ! -e $other/.built ]]; then
    build_llama "$other" "the same tools without AMX" "$flags" llama-server llama-bench llama-batched-bench
    touch "$other/.built"
  fi
  llama+=(--llama-no-amx "$other/bin")
fi
exec python3 bench/run.py "${models[@]}" "${llama[@]}" "$@"
