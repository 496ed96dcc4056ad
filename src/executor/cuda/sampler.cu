// A thread block a row. With filters: a histogram over the distance from the likeliest logit tells which tokens can be
// left by any of them; those, few as a rule, are sorted, and the filters cut the sorted list.
#include <cuda_runtime.h>

#include "cuda/launch.cuh"
#include "executor/cuda/reduce.cuh"
#include "executor/cuda/sampler.h"
#include "sampling/philox.h"

namespace coppice::executor::cuda {

namespace {

using Mass = unsigned long long;  // as the device's atomics have it

constexpr int kThreads = 1024, kBins = 2048, kInShared = 2048;  ///< candidates that are sorted in shared memory
constexpr float kReach = 27.8F;                                 ///< natural logarithm of 2^40, a little more
constexpr float kWhole = 1099511627776.0F;                      // 2^40

/// Larger for larger logits; equal for 0 and -0.
__device__ std::uint32_t ordered(float logit) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0F);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000;
}
__device__ float from_ordered(std::uint32_t order) {
  return __uint_as_float((order >> 31) != 0 ? order & 0x7fffffff : ~order);
}

struct Memory {
  unsigned count[kBins];
  Mass mass[kBins];
  Mass parts[32];
  Mass candidates[kInShared];
  Mass found_behind;  ///< what lies before the found warp's tokens
  unsigned n_candidates, last_bin;
  int found;
};

struct RowSampler {
  const SampleRows& a;
  Memory& m;
  int row, thread;
  SampleRow spec;
  const float* logits;
  int n_vocab;                         ///< tokens that may be drawn
  float highest = 0.0F, scale = 1.0F;  ///< logit of the likeliest; 1 / temperature

  __device__ Mass mass_of(float logit) const { return static_cast<Mass>(kWhole * expf((logit - highest) * scale)); }
  __device__ int bin_of(float logit) const {
    return min(kBins - 1, static_cast<int>((highest - logit) * scale * (kBins / kReach)));
  }

  /// Mask, biases and penalties, into the scratch row. A block's barrier follows.
  __device__ void edit() {
    float* const edited = a.edited + static_cast<std::size_t>(row) * a.n_vocab;
    const std::int32_t* mask =
        spec.mask < 0 ? nullptr : a.masks + static_cast<std::size_t>(spec.mask) * ((a.n_vocab + 31) / 32);
    for (int i = thread; i < n_vocab; i += kThreads)
      edited[i] = mask == nullptr || (mask[i / 32] >> (i % 32) & 1) != 0 ? logits[i] : -INFINITY;
    __syncthreads();
    for (int i = thread; i < spec.n_biases; i += kThreads) {
      const sampling::TokenBias bias = a.biases[spec.first_bias + i];
      if (bias.token >= 0 && bias.token < n_vocab) edited[bias.token] += bias.bias;
    }
    __syncthreads();
    for (int i = thread; i < spec.n_counts; i += kThreads) {
      const sampling::TokenCount count = a.counts[spec.first_count + i];
      if (count.token < 0 || count.token >= n_vocab) continue;
      float logit = edited[count.token];
      logit = logit > 0.0F ? logit / spec.repeat : logit * spec.repeat;
      if (count.times > 0) logit -= static_cast<float>(count.times) * spec.frequency + spec.presence;
      edited[count.token] = logit;
    }
    logits = edited;
    __syncthreads();
  }

  /// The likeliest token; -1: none is possible.
  __device__ int find_highest() {
    Mass best = 0;
#pragma unroll 8
    for (int i = thread; i < n_vocab; i += kThreads) {
      const float logit = logits[i];
      if (logit > -INFINITY) best = max(best, static_cast<Mass>(ordered(logit)) << 32 | ~static_cast<std::uint32_t>(i));
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) best = max(best, __shfl_xor_sync(~0U, best, i));
    if (thread % 32 == 0) m.parts[thread / 32] = best;
    __syncthreads();
    best = m.parts[thread % 32];
#pragma unroll
    for (int i = 16; i > 0; i /= 2) best = max(best, __shfl_xor_sync(~0U, best, i));
    __syncthreads();
    highest = from_ordered(static_cast<std::uint32_t>(best >> 32));
    return best == 0 ? -1 : static_cast<int>(~static_cast<std::uint32_t>(best));
  }

  /// Sums of the threads before this one; total: of all.
  __device__ Mass sum_before(Mass mine, Mass& total) {
    Mass sum = mine;
    const int lane = thread % 32;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const Mass other = __shfl_up_sync(~0U, sum, i);
      if (lane >= i) sum += other;
    }
    if (lane == 31) m.parts[thread / 32] = sum;
    __syncthreads();
    const Mass of_warp = m.parts[lane];
    Mass warps = of_warp;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const Mass other = __shfl_up_sync(~0U, warps, i);
      if (lane >= i) warps += other;
    }
    total = __shfl_sync(~0U, warps, 31);
    const Mass before = __shfl_sync(~0U, warps - of_warp, thread / 32);
    __syncthreads();
    return before + sum - mine;
  }

  __device__ Mass drawn_of(Mass total) const { return __umul64hi(sampling::philox_64(spec.seed, spec.counter), total); }

  /// In the order of ids. First it is found which warp's tokens the number falls into, then all threads look there.
  __device__ int draw_from_all() {
    const int of_warp = (n_vocab + kThreads / 32 - 1) / (kThreads / 32), lane = thread % 32, warp = thread / 32;
    Mass mine = 0, total = 0;
    const int warp_end = min(n_vocab, (warp + 1) * of_warp);
#pragma unroll 4
    for (int i = warp * of_warp + lane; i < warp_end; i += 32) mine += mass_of(logits[i]);
    Mass before = sum_before(mine, total);
    const Mass drawn = drawn_of(total), first = __shfl_sync(~0U, before, 0), end = __shfl_sync(~0U, before + mine, 31);
    if (lane == 0 && drawn >= first && drawn < end) {
      m.found = warp;
      m.found_behind = first;
    }
    __syncthreads();
    const int found_at = m.found * of_warp, found_end = min(n_vocab, found_at + of_warp);
    const int each = (of_warp + kThreads - 1) / kThreads, at = found_at + thread * each, to = min(found_end, at + each);
    mine = 0;
    for (int i = at; i < to; ++i) mine += mass_of(logits[i]);
    before = sum_before(mine, total) + m.found_behind;
    if (drawn >= before && drawn < before + mine) {
      for (int i = at; i < to; ++i) {
        before += mass_of(logits[i]);
        if (drawn < before) {
          m.found = i;
          break;
        }
      }
    }
    __syncthreads();
    return m.found;
  }

  /// The bin behind which nothing is that the filters leave. Top-p's share is of what top-k leaves, so with that on,
  /// all of it is needed. total: of all tokens.
  __device__ unsigned find_last_bin(Mass& total) {
    for (int i = thread; i < kBins; i += kThreads) {
      m.count[i] = 0;
      m.mass[i] = 0;
    }
    if (thread == 0) m.last_bin = kBins - 1;
    __syncthreads();
    for (int i = thread; i < n_vocab; i += kThreads) {
      const Mass mass = mass_of(logits[i]);
      if (mass == 0) continue;
      const int bin = bin_of(logits[i]);
      atomicAdd(&m.count[bin], 1U);
      atomicAdd(&m.mass[bin], mass);
    }
    __syncthreads();
    constexpr int kEach = kBins / kThreads;
    Mass counts = 0, masses = 0, n = 0;
    for (int i = 0; i < kEach; ++i) {
      counts += m.count[thread * kEach + i];
      masses += m.mass[thread * kEach + i];
    }
    Mass counted = sum_before(counts, n), weighed = sum_before(masses, total);
    const Mass share = share_of(spec.top_p, total);
    for (int i = 0; i < kEach; ++i) {
      const int bin = thread * kEach + i;
      counted += m.count[bin];
      weighed += m.mass[bin];
      if (spec.top_k > 0 ? counted >= static_cast<Mass>(spec.top_k) : spec.top_p < 1.0F && weighed >= share) {
        atomicMin(&m.last_bin, static_cast<unsigned>(bin));
        break;
      }
    }
    if (thread == 0 && spec.min_p > 0.0F && spec.top_k <= 0)
      atomicMin(&m.last_bin,
                static_cast<unsigned>(min(kBins - 1, static_cast<int>(-logf(spec.min_p) * (kBins / kReach)) + 1)));
    __syncthreads();
    return m.last_bin;
  }
  __device__ static Mass share_of(float p, Mass total) {
    return static_cast<Mass>(ceil(static_cast<double>(p) * static_cast<double>(total)));
  }

  /// Into a list, likeliest first; of equals the lowest id.
  __device__ Mass* gather(unsigned last_bin, int& n) {
    if (thread == 0) m.n_candidates = 0;
    __syncthreads();
    Mass* const far = reinterpret_cast<Mass*>(a.candidates) + static_cast<std::size_t>(row) * candidate_room(a.n_vocab);
    // Where they go is known when they are counted: the histogram has that.
    unsigned in_bins = 0;
    for (int i = thread; i <= static_cast<int>(last_bin); i += kThreads) in_bins += m.count[i];
    n = static_cast<int>(block_sum<Mass>(in_bins, m.parts));
    Mass* const list = n <= kInShared ? m.candidates : far;
    int room = 1;
    while (room < n) room *= 2;
    for (int i = thread; i < n_vocab; i += kThreads) {
      const float logit = logits[i];
      if (mass_of(logit) == 0 || bin_of(logit) > static_cast<int>(last_bin)) continue;
      list[atomicAdd(&m.n_candidates, 1U)] = static_cast<Mass>(~ordered(logit)) << 32 | static_cast<std::uint32_t>(i);
    }
    for (int i = n + thread; i < room; i += kThreads) list[i] = ~Mass{0};
    __syncthreads();
    for (int run = 2; run <= room; run *= 2) {  // bitonic
      for (int step = run / 2; step > 0; step /= 2) {
        for (int i = thread; i < room; i += kThreads) {
          const int other = i ^ step;
          if (other <= i) continue;
          const Mass x = list[i], y = list[other];
          if ((x > y) == ((i & run) == 0)) {
            list[i] = y;
            list[other] = x;
          }
        }
        __syncthreads();
      }
    }
    return list;
  }

  __device__ Mass candidate_mass(Mass candidate) const {
    return mass_of(from_ordered(~static_cast<std::uint32_t>(candidate >> 32)));
  }
  /// How many of the first n of a list it takes until their masses reach `share`; total: of all n, if share is more
  /// than that.
  template <class Share>
  __device__ int first_with(const Mass* list, int n, Share share_of_total) {
    const int each = (n + kThreads - 1) / kThreads, first = min(n, thread * each), end = min(n, first + each);
    Mass mine = 0, total = 0;
    for (int i = first; i < end; ++i) mine += candidate_mass(list[i]);
    Mass sum = sum_before(mine, total);
    const Mass share = share_of_total(total);
    if (thread == 0) m.found = n;
    __syncthreads();
    if (sum < share && share <= sum + mine) {
      for (int i = first; i < end; ++i) {
        sum += candidate_mass(list[i]);
        if (sum >= share) {
          m.found = i + 1;
          break;
        }
      }
    }
    __syncthreads();
    const int found = m.found;
    __syncthreads();
    return found;
  }

  __device__ int draw_filtered() {
    int n = 0;
    Mass of_all = 0;
    const Mass* list = gather(find_last_bin(of_all), n);
    if (spec.top_k > 0) n = min(n, spec.top_k);
    if (spec.top_p < 1.0F)
      n = first_with(list, n, [&](Mass total) { return share_of(spec.top_p, spec.top_k > 0 ? total : of_all); });
    if (spec.min_p > 0.0F) {
      const Mass least = share_of(spec.min_p, static_cast<Mass>(kWhole));
      if (thread == 0) m.found = n;
      __syncthreads();
      for (int i = thread; i < n; i += kThreads)
        if (candidate_mass(list[i]) < least) atomicMin(&m.found, i);
      __syncthreads();
      n = m.found;
      __syncthreads();
    }
    n = first_with(list, n, [&](Mass total) { return drawn_of(total) + 1; });
    return static_cast<int>(static_cast<std::uint32_t>(list[n - 1]));
  }

  __device__ int run() {
    if (spec.mask >= 0 || spec.n_biases > 0 || spec.n_counts > 0) edit();
    const int likeliest = find_highest();
    if (likeliest < 0 || spec.temperature < sampling::kGreedyTemperature || isinf(highest)) return likeliest;
    scale = 1.0F / spec.temperature;
    return spec.top_k > 0 || spec.top_p < 1.0F || spec.min_p > 0.0F ? draw_filtered() : draw_from_all();
  }
};

__global__ __launch_bounds__(kThreads) void sample_rows(const SampleRows a) {
  __shared__ Memory memory;
  coppice::cuda::allow_next_launch();
  coppice::cuda::wait_for_launch_before();
  const int row = static_cast<int>(blockIdx.x);
  const SampleRow spec = a.rows[row];
  RowSampler sampler{a,
                     memory,
                     row,
                     static_cast<int>(threadIdx.x),
                     spec,
                     a.logits + static_cast<std::size_t>(spec.logits) * a.n_vocab,
                     min(spec.n_vocab, a.n_vocab)};
  const int token = sampler.run();
  if (threadIdx.x == 0) a.tokens[row] = token;
}

}  // namespace

const char* launch(const SampleRows& args, const Gpu& gpu) {
  return coppice::cuda::launch_early(
      sample_rows,
      {.n_blocks = args.n_rows, .n_threads = kThreads, .early = args.n_rows <= coppice::cuda::kMostCrowdingRows}, gpu,
      args);
}

}  // namespace coppice::executor::cuda
