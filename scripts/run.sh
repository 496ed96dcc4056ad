#!/usr/bin/env bash
# run.sh COMMAND [ARGUMENT...]: builds coppice and runs one of its commands, on the pinned model unless --model says
# otherwise.
source "$(dirname "$0")/lib.sh"
command=${1:?command}
shift
"$repo/scripts/build.sh" release coppice
model=(--model "$pinned_model")
for argument in "$@"; do
  case $argument in --model | --model=*) model=() ;; esac
done
cd "$repo"
exec build/coppice "$command" "${model[@]}" "$@"
