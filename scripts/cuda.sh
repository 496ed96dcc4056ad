#!/usr/bin/env bash
# cuda.sh: builds the GPU's kernels, their tests and benchmarks into build-cuda, where nvcc 12.4 or newer is found. Needs no
# GPU; on a machine with one (Hopper) it runs the tests.
source "$(dirname "$0")/lib.sh"
nvcc=$(command -v nvcc || true)
[[ -n $nvcc ]] || nvcc=/usr/local/cuda/bin/nvcc
[[ -x $nvcc ]] || die "No CUDA compiler found: install CUDA 12.4 or newer, or put nvcc on the PATH."
build="$repo/build-cuda"
cd "$repo"
logged "configuring (cuda)" "$build/configure.log" cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 -DCUDAToolkit_ROOT="$(dirname "$(dirname "$(readlink -f "$nvcc")")")" -DCOPPICE_CUDA=ON || {
  grep -A 6 'CMake Error' "$build/configure.log" >&2 || true
  die "The CUDA build could not be configured (log: $build/configure.log)"
}
cmake --build "$build" -j "$(jobs)" --target tree_attention_on_gpu quant_product_on_gpu operators_on_gpu sampler_on_gpu decoder_on_gpu attention_cuda_bench matmul_cuda_bench step_cuda_bench >&2 || die "The CUDA build failed: see above."
if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
  "$build/tests/cuda/tree_attention_on_gpu"
  "$build/tests/cuda/quant_product_on_gpu"
  "$build/tests/cuda/operators_on_gpu"
  "$build/tests/cuda/sampler_on_gpu"
  "$build/tests/cuda/decoder_on_gpu"
else
  printf 'Built; no GPU here to run the tests on.\n'
fi
