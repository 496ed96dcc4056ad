#!/usr/bin/env bash
# cuda.sh: builds coppice, its module for NVIDIA GPUs (libcoppice_cuda.so beside it), and the GPU's tests and benchmarks, with this machine's
# nvcc or the pinned one (cuda_compiler.sh). Needs no GPU; on a machine with one (Hopper) it runs the tests. The build folder is the one of make
# build, which keeps the module up to date from then on.
source "$(dirname "$0")/lib.sh"
"$repo/scripts/deps.sh"
cuda=$("$repo/scripts/cuda_compiler.sh")
build="$repo/build"
cd "$repo"
configure release "$build" "$(llama_build_dir)" -DCOPPICE_CUDA=ON -DCUDAToolkit_ROOT="$cuda"
tests=(tree_attention_on_gpu quant_product_on_gpu part_product_on_gpu operators_on_gpu heads_on_gpu experts_on_gpu sampler_on_gpu decoder_on_gpu executor_on_gpu pictures_on_gpu moves_on_gpu contract_on_gpu engine_on_gpu executors_on_gpus)
cmake --build "$build" -j "$(jobs)" --target coppice coppice_cuda_module "${tests[@]}" {attention,matmul,step}_cuda_bench 2>&1 |
  tee "$build/cuda.log" >&2 || die "The CUDA build failed: see above."
# Then a kernel is right, and half as fast: no test would see it.
! grep -q 'wgmma.mma_async instructions are serialized' "$build/cuda.log" ||
  die "The CUDA compiler lets products on the tensor cores wait for each other (log: $build/cuda.log)"
if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
  for test in "${tests[@]}"; do "$build/tests/cuda/$test"; done
else
  printf 'Built; no GPU here to run the tests on.\n'
fi
