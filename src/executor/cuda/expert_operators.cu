#include <cuda_bf16.h>

#include <cmath>

#include "cuda/launch.cuh"
#include "executor/cuda/expert_operators.h"
#include "executor/cuda/reduce.cuh"

namespace coppice::executor::cuda {

using coppice::cuda::allow_next_launch;
using coppice::cuda::kMostEarlyRows;
using coppice::cuda::launch_early;
using coppice::cuda::wait_for_launch_before;
using matmul::cuda::RowPanel;

namespace {

constexpr int kChooseWarps = 4, kOfLane = kMostExperts / 32;
constexpr float kSmallestSum = 6.103515625e-5F;  ///< weights that vanish are not divided by less: as ggml does it

__device__ float warp_max(float x) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(~0U, x, i));
  return x;
}

/// One row's choice, by a warp: lane l has experts l, l + 32, ...
struct Chooser {
  const ChooseExperts& a;
  int row, lane;
  float weight[kOfLane];  ///< of all experts
  float key[kOfLane];     ///< what chooses
  std::uint32_t out = 0;  ///< bits of those that can't be chosen, or are already

  template <class F>
  __device__ void of_each(F&& f) const {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i)
      if (i * 32 + lane < a.shape.n) f(i, i * 32 + lane);
  }

  __device__ void read() {
    const float* scores = a.scores + static_cast<std::size_t>(row) * a.shape.n;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i)
      if (i * 32 + lane >= a.shape.n) out |= 1U << i;
    float most = -INFINITY;
    of_each([&](int i, int e) {
      key[i] = weight[i] = scores[e] + (a.bias != nullptr ? a.bias[e] : 0.0F);
      most = fmaxf(most, key[i]);
    });
    if (a.shape.weights == ExpertWeights::kSigmoid) {
      of_each([&](int i, int) { weight[i] = 1.0F / (1.0F + expf(-key[i])); });
    } else if (a.shape.weights == ExpertWeights::kSoftmax) {
      most = warp_max(most);
      float sum = 0.0F;
      of_each([&](int i, int) { sum += weight[i] = expf(key[i] - most); });
      sum = warp_sum(sum);
      of_each([&](int i, int) { weight[i] /= sum; });
    }
    if (a.selection_bias != nullptr) of_each([&](int i, int e) { key[i] = weight[i] + a.selection_bias[e]; });
  }

  /// The best that is left; its weight. NaN is as good as the worst.
  __device__ int take(float& its_weight) {
    float best = -INFINITY, of_best = 0.0F;
    int expert = kMostExperts;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      if ((out >> i & 1) == 0 && (expert == kMostExperts || key[i] > best)) {
        best = key[i] == key[i] ? key[i] : -INFINITY;
        of_best = weight[i];
        expert = i * 32 + lane;
      }
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
      const float other = __shfl_xor_sync(~0U, best, i), other_weight = __shfl_xor_sync(~0U, of_best, i);
      const int other_expert = __shfl_xor_sync(~0U, expert, i);
      const bool is_there = other_expert < kMostExperts, is_here = expert < kMostExperts;
      if (is_there && (!is_here || other > best || (other == best && other_expert < expert))) {
        best = other;
        of_best = other_weight;
        expert = other_expert;
      }
    }
    if (expert % 32 == lane) out |= 1U << expert / 32;
    its_weight = of_best;
    return expert;
  }

  __device__ void weigh_beside() const {
    const auto* x = static_cast<const uint4*>(a.x) + static_cast<std::size_t>(row) * (a.n_embd / 8);
    const auto* gate = reinterpret_cast<const float4*>(a.beside_gate);
    float sum = 0.0F;
    for (int i = lane; i < a.n_embd / 8; i += 32) {
      const uint4 eight = x[i];
      const auto* pairs = reinterpret_cast<const __nv_bfloat162*>(&eight);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float4 w = gate[2 * i + half];
        const float2 u = __bfloat1622float2(pairs[2 * half]), v = __bfloat1622float2(pairs[2 * half + 1]);
        sum += u.x * w.x + u.y * w.y + v.x * w.z + v.y * w.w;
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) a.beside_weights[row] = 1.0F / (1.0F + expf(-sum));
  }

  __device__ void run() {
    if (a.beside_gate != nullptr) weigh_beside();
    read();
    float mine = 0.0F;
    int expert = 0;
    for (int k = 0; k < a.shape.n_used; ++k) {
      float w = 0.0F;
      const int e = take(w);
      if (lane == k) {
        mine = w;
        expert = e;
      }
    }
    const bool used = lane < a.shape.n_used;
    if (a.shape.weights == ExpertWeights::kSoftmaxOfChosen) {
      const float most = warp_max(used ? mine : -INFINITY);
      mine = used ? expf(mine - most) : 0.0F;
      mine /= warp_sum(mine);
    } else if (a.shape.normalised) {
      mine /= fmaxf(warp_sum(mine), kSmallestSum);
    }
    mine *= a.shape.scale;
    if (!used) return;
    const std::size_t pair = static_cast<std::size_t>(row) * a.shape.n_used + lane;
    a.experts[pair] = expert;
    a.weights[pair] = a.scales != nullptr ? mine * a.scales[expert] : mine;
  }
};

__global__ __launch_bounds__(32 * kChooseWarps) void choose_experts(const ChooseExperts a) {
  allow_next_launch();
  wait_for_launch_before();
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x) * kChooseWarps + thread / 32;
  if (row < a.n_rows) Chooser{a, row, thread % 32}.run();
}

constexpr int kSortThreads = 256;

/// A thread block an expert: it counts all pairs, so it knows where its own begin.
struct Sorter {
  const SortPairs& a;
  int* counts;  ///< [n] shared
  int* sums;    ///< [32] likewise
  int thread = static_cast<int>(threadIdx.x);
  int expert = static_cast<int>(blockIdx.x);
  int n_pairs = a.n_rows * a.n_used;
  int first = 0, n = 0;  ///< of this expert, among the sorted pairs

  __device__ void count() {
    for (int e = thread; e < a.n; e += kSortThreads) counts[e] = 0;
    __syncthreads();
    for (int pair = thread; pair < n_pairs; pair += kSortThreads) atomicAdd(counts + a.experts[pair], 1);
    __syncthreads();
    n = counts[expert];
  }

  __device__ void cut_panels() {
    const auto panels_of = [&](int pairs) { return (pairs + a.panel_rows - 1) / a.panel_rows; };
    int pairs = 0, panels = 0;
    for (int e = thread; e < expert; e += kSortThreads) {
      pairs += counts[e];
      panels += panels_of(counts[e]);
    }
    first = block_sum(pairs, sums);
    panels = block_sum(panels, sums);
    for (int i = thread; i < panels_of(n); i += kSortThreads)
      a.panels[panels + i] = {expert, first + i * a.panel_rows, min(a.panel_rows, n - i * a.panel_rows)};
    if (expert == a.n - 1 && thread == 0) *a.n_panels = panels + panels_of(n);
  }

  /// This expert's pairs, in their order.
  __device__ void list() const {
    int at = first;
    for (int begin = 0; at < first + n; begin += kSortThreads) {
      const int pair = begin + thread, warp = thread / 32;
      const bool is_mine = pair < n_pairs && a.experts[pair] == expert;
      const std::uint32_t mine = __ballot_sync(~0U, is_mine);
      if (thread % 32 == 0) sums[warp] = __popc(mine);
      __syncthreads();
      int before = 0, all = 0;
#pragma unroll
      for (int w = 0; w < kSortThreads / 32; ++w) {
        before += w < warp ? sums[w] : 0;
        all += sums[w];
      }
      __syncthreads();
      if (is_mine) {
        const int to = at + before + __popc(mine & ((1U << thread % 32) - 1));
        a.positions[pair] = to;
        a.sorted_pairs[to] = pair;
        a.sorted_experts[to] = expert;
      }
      at += all;
    }
    __syncthreads();
  }

  __device__ void bring_rows() const {
    const int pieces = a.n_embd / 8;  // of 16 bytes
    const auto* x = static_cast<const uint4*>(a.x);
    auto* to = static_cast<uint4*>(a.sorted_x) + static_cast<std::size_t>(first) * pieces;
    for (int i = thread; i < n * pieces; i += kSortThreads) {
      const int row = a.sorted_pairs[first + i / pieces] / a.n_used;
      to[i] = x[static_cast<std::size_t>(row) * pieces + i % pieces];
    }
  }
};

__global__ __launch_bounds__(kSortThreads) void sort_pairs(const SortPairs a) {
  __shared__ int counts[kMostExperts], sums[32];
  allow_next_launch();
  wait_for_launch_before();
  Sorter sorter{a, counts, sums};
  sorter.count();
  sorter.cut_panels();
  sorter.list();
  if (a.sorted_x != nullptr) sorter.bring_rows();
}

/// A thread block a pair.
__global__ __launch_bounds__(kSortThreads) void bring_rows(const BringRows a) {
  allow_next_launch();
  wait_for_launch_before();
  const int pieces = a.n_embd / 8, pair = static_cast<int>(blockIdx.x);  // of 16 bytes
  const auto* from =
      static_cast<const uint4*>(a.x) + static_cast<std::size_t>(a.sorted_pairs[pair] / a.n_used) * pieces;
  auto* to = static_cast<uint4*>(a.sorted_x) + static_cast<std::size_t>(pair) * pieces;
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kSortThreads) to[i] = from[i];
}

__global__ void sum_experts(const SumExperts a) {
  allow_next_launch();
  wait_for_launch_before();
  const int n_fours = a.n / 4, row = static_cast<int>(blockIdx.y);
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= n_fours) return;
  const std::size_t to = static_cast<std::size_t>(row) * n_fours + at;
  const auto of = [&](const float* rows, int i) {
    return reinterpret_cast<const float4*>(rows)[static_cast<std::size_t>(i) * n_fours + at];
  };
  float4 sum = a.beside != nullptr ? reinterpret_cast<const float4*>(a.beside)[to] : make_float4(0, 0, 0, 0);
  if (a.beside_weights != nullptr) {
    const float w = a.beside_weights[row];
    sum = {w * sum.x, w * sum.y, w * sum.z, w * sum.w};
  }
  for (int pair = row * a.n_used; pair < (row + 1) * a.n_used; ++pair) {
    const float w = a.weights != nullptr ? a.weights[pair] : 1.0F;
    float4 x = of(a.parts, a.positions[pair]);
    if (a.bias != nullptr) {
      const float4 b = of(a.bias, a.experts[pair]);
      x = {x.x + b.x, x.y + b.y, x.z + b.z, x.w + b.w};
    }
    sum = {fmaf(w, x.x, sum.x), fmaf(w, x.y, sum.y), fmaf(w, x.z, sum.z), fmaf(w, x.w, sum.w)};
  }
  reinterpret_cast<float4*>(a.out)[to] = sum;
}

}  // namespace

const char* launch(const ChooseExperts& args, const Gpu& gpu) {
  const ExpertsShape& s = args.shape;
  if (s.n > kMostExperts || s.n_used > kMostUsedExperts || s.n_used > s.n) return "no choice of so many experts";
  return launch_early(choose_experts,
                      {.n_blocks = (args.n_rows + kChooseWarps - 1) / kChooseWarps,
                       .n_threads = 32 * kChooseWarps,
                       .early = args.n_rows <= kMostEarlyRows},
                      gpu, args);
}

const char* launch(const SortPairs& args, const Gpu& gpu) {
  return launch_early(
      sort_pairs, {.n_blocks = args.n, .n_threads = kSortThreads, .early = args.n_rows <= kMostEarlyRows}, gpu, args);
}

const char* launch(const BringRows& args, const Gpu& gpu) {
  return launch_early(
      bring_rows,
      {.n_blocks = args.n_rows * args.n_used, .n_threads = kSortThreads, .early = args.n_rows <= kMostEarlyRows}, gpu,
      args);
}

const char* launch(const SumExperts& args, const Gpu& gpu) {
  const coppice::cuda::LaunchShape shape = {.n_blocks = (args.n / 4 + 255) / 256,
                                            .n_threads = 256,
                                            .n_blocks_y = args.n_rows,
                                            .early = args.n_rows <= kMostEarlyRows};
  return launch_early(sum_experts, shape, gpu, args);
}

}  // namespace coppice::executor::cuda
