#!/usr/bin/env bash
# Builds what bench/run.py compares, and runs it: coppice, and llama.cpp's server and bench tools from the pinned sources
# with our compiler (once more without AMX, where the CPU has it). With --before nothing of llama.cpp's is needed.
# bench.sh --help lists the options. Keep the machine quiet meanwhile.
source "$(dirname "$0")/lib.sh"
cd "$repo"
for argument in "$@"; do
  case $argument in
    --help | -h) exec python3 bench/run.py --help ;;
    --before | --before=*) builds_only=1 ;;
  esac
done
"$repo/scripts/build.sh" release coppice attention_bench
models=(--model "$pinned_model" --also "gemma3=$pinned_gemma3")
if [[ " $*" =~ [\ =,](1b|all)(-|,|\ |$) ]]; then  # the loads that need it; it is large
  random_1b=build/random-1b-q4_k_m.gguf
  if [[ ! -e $random_1b ]]; then
    need_disk "$repo/build" 900 "a random model of a billion weights"
    python3 bench/random_model.py --types q4_k_m --vocabulary "$pinned_model" "$random_1b.incoming" ||
      die "bench/random_model.py could not write $random_1b."
    mv "$random_1b.incoming" "$random_1b"
  fi
  models+=(--also "1b=$random_1b")
fi
if [[ -n ${builds_only:-} ]]; then exec python3 bench/run.py "${models[@]}" "$@"; fi

"$repo/scripts/deps.sh" peers
clang-19 -O3 -march=native -Wno-invalid-feature-combination -ffp-contract=fast -Wall -Wextra -Werror -pthread \
  bench/machine_peak.c -o build/machine_peak || die "bench/machine_peak.c could not be compiled: see above."
peers=(--peers "$(llama_build_dir)/bin")
if grep -qw amx_int8 /proc/cpuinfo; then
  other="$(llama_build_dir)-no-amx"
  flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
  if [[ ! -e $other/.built ]]; then
    build_llama "$other" "the same tools without AMX" "$flags" llama-server llama-bench llama-batched-bench
    touch "$other/.built"
  fi
  peers+=(--peers-no-amx "$other/bin")
fi
exec python3 bench/run.py "${models[@]}" "${peers[@]}" "$@"
