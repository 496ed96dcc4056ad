#include "attention/cuda/launch.h"
#include "attention/cuda/merge.cuh"
#include "attention/cuda/mma.cuh"
#include "attention/cuda/tree_attention.h"
#include "cuda/launch.cuh"

namespace coppice::attention::cuda {

namespace {

template <class T, int D, bool kBytes>
__global__ __launch_bounds__(kMmaThreads, 1) void attend_with_mma(const TreeAttention a) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ int claimed;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_units = a.counts->items * a.n_kv_head;
  MmaComputer<T, D, kBytes> computer{a, memory, warp, lane};
  for (int unit = static_cast<int>(blockIdx.x); unit < n_units;) {
    computer.run(unit);
    if (threadIdx.x == 0) claimed = static_cast<int>(gridDim.x + atomicAdd(a.scratch.control + kClaimed, 1U));
    __syncthreads();
    unit = claimed;
    __syncthreads();
  }
  merge_rows<T, D>(a, warp, lane);
}

template <class T, int D, bool kBytes>
const char* launch(const TreeAttention& args, int n_workers, const Gpu& gpu) {
  const LaunchShape shape = {.n_blocks = n_workers,
                             .n_threads = kMmaThreads,
                             .shared_bytes = MmaTile<T, D, kBytes>::kSharedBytes,
                             .early = false};
  return launch_early(attend_with_mma<T, D, kBytes>, shape, gpu, args);
}

template <class T, bool kBytes>
const char* launch(const TreeAttention& args, int n_workers, const Gpu& gpu) {
  switch (args.head_dim) {
    case 64:
      return launch<T, 64, kBytes>(args, n_workers, gpu);
    case 80:
      return launch<T, 80, kBytes>(args, n_workers, gpu);
    case 96:
      return launch<T, 96, kBytes>(args, n_workers, gpu);
    case 128:
      return launch<T, 128, kBytes>(args, n_workers, gpu);
    case 256:
      return launch<T, 256, kBytes>(args, n_workers, gpu);
    default:
      return "no tree attention for heads of this size";
  }
}

}  // namespace

const char* launch_with_mma(const TreeAttention& args, int n_workers, const Gpu& gpu) {
  if (args.number == Number::kBf16)
    return args.bytes ? launch<__nv_bfloat16, true>(args, n_workers, gpu)
                      : launch<__nv_bfloat16, false>(args, n_workers, gpu);
  return args.bytes ? launch<__half, true>(args, n_workers, gpu) : launch<__half, false>(args, n_workers, gpu);
}

}  // namespace coppice::attention::cuda
