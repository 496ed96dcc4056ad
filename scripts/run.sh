#!/usr/bin/env bash
# run.sh COMMAND [ARGUMENT...]: builds coppice and runs one of its commands, on a pinned model (MODEL=smollm2 or gemma3)
# unless --model says otherwise.
source "$(dirname "$0")/lib.sh"
command=${1:?command}
shift
case ${MODEL:-smollm2} in
  smollm2) model=(--model "$pinned_model") ;;
  gemma3) model=(--model "$pinned_gemma3") ;;
  *) die "MODEL is smollm2 or gemma3, not '$MODEL'; other files: ARGS=\"--model FILE\"." ;;
esac
"$repo/scripts/build.sh" release coppice
for argument in "$@"; do
  case $argument in --model | --model=*) model=() ;; esac
done
cd "$repo"
exec build/coppice "$command" "${model[@]}" "$@"
