// Which kernel attends: launch_tree_attention(). On Hopper attend_tree(): one warp fetches (fetch.cuh), the others
// compute (compute.cuh; for few queries slim.cuh). Elsewhere, and for int8, attend_with_mma() (mma_attention.cu). Both
// merge (merge.cuh). Another size of heads is a case in both files, and in kHeadSizes (executor/cuda/misfit.cpp). What
// an item is, and what it costs: tree_plan.h. Tests: tests/cuda/tree_attention_on_gpu.cpp.
#include "attention/cuda/compute.cuh"
#include "attention/cuda/fetch.cuh"
#include "attention/cuda/launch.h"
#include "attention/cuda/merge.cuh"
#include "attention/cuda/tree_attention.h"
#include "cuda/launch.cuh"

namespace coppice::attention::cuda {

namespace {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define COPPICE_HAS_KERNEL 1
#else
#define COPPICE_HAS_KERNEL 0
#endif

template <class T, int D>
__global__ __launch_bounds__(kThreads, 1) void attend_tree(const TreeAttention a) {
#if COPPICE_HAS_KERNEL
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<T, D> shared{memory};
  const int warp = static_cast<int>(uniform(threadIdx.x / 32)), lane = static_cast<int>(threadIdx.x) % 32;
  Fetcher<T, D> fetcher{a, shared, lane};
  if (threadIdx.x == 0) shared.init();
  if (warp == kComputeWarps) fetcher.look_ahead();
  __syncthreads();
  allow_next_launch();
  if (warp >= kComputeWarps) {
    shrink_registers<kFetchRegisters>();
    if (warp == kComputeWarps) fetcher.run();
  } else {
    grow_registers<kComputeRegisters>();
    wait_for_launch_before();
    Computer<T, D>{a, shared, warp / 4, warp % 4, lane}.run();
    merge_rows<T, D>(a, warp, lane);
  }
#endif
}

template <class T, int D>
const char* launch(const TreeAttention& args, int n_workers, const Gpu& gpu) {
  const LaunchShape shape = {
      .n_blocks = n_workers, .n_threads = kThreads, .shared_bytes = Tile<T, D>::kSharedBytes, .early = args.early};
  return launch_early(attend_tree<T, D>, shape, gpu, args);
}

template <class T>
const char* launch(const TreeAttention& args, int n_workers, const Gpu& gpu) {
  switch (args.head_dim) {
    case 64:
      return launch<T, 64>(args, n_workers, gpu);
    case 80:
      return launch<T, 80>(args, n_workers, gpu);
    case 96:
      return launch<T, 96>(args, n_workers, gpu);
    case 128:
      return launch<T, 128>(args, n_workers, gpu);
    case 256:
      return launch<T, 256>(args, n_workers, gpu);
    default:
      return "no tree attention for heads of this size";
  }
}

}  // namespace

bool takes_plain_kernel(const Gpu& gpu, bool bytes) {
  return bytes || !gpu.is_hopper();
}

const char* launch_tree_attention(const TreeAttention& args, int n_workers, const Gpu& gpu) {
  if (args.plain || takes_plain_kernel(gpu, args.bytes)) return launch_with_mma(args, n_workers, gpu);
  if (args.number == Number::kBf16) return launch<__nv_bfloat16>(args, n_workers, gpu);
  return launch<__half>(args, n_workers, gpu);
}

}  // namespace coppice::attention::cuda
