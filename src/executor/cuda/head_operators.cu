#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/cuda/block_order.h"
#include "attention/cuda/tree_plan.h"
#include "attention/kv_format.h"
#include "cuda/launch.cuh"
#include "cuda/warp_product.cuh"
#include "executor/cuda/operators.h"
#include "executor/cuda/reduce.cuh"

namespace coppice::executor::cuda {

using coppice::cuda::allow_next_launch;
using coppice::cuda::kMostEarlyRows;
using coppice::cuda::launch_early;
using coppice::cuda::wait_for_launch_before;

namespace {

constexpr int kWarps = 8, kMostDim = 256, kBlockSize = attention::cuda::kBlockSize;

/// A warp's head in shared memory.
struct Head {
  float* x;
  int dim, lane;

  __device__ float inverse_rms(float eps) const {
    float squares = 0.0F;
    for (int i = lane; i < dim; i += 32) squares += x[i] * x[i];
    return rsqrtf(warp_sum(squares) / static_cast<float>(dim) + eps);
  }
  __device__ void multiply(const float* weights, float by) const {
    for (int i = lane; i < dim; i += 32) x[i] *= by * weights[i];
    __syncwarp();
  }

  /// turns: of the row, each pair's cosine and sine, times the magnitude.
  __device__ void turn(const EnterRows& a, const float2* turns) const {
    for (int i = lane; i < a.n_turned / 2; i += 32) {
      const float cosine = turns[i].x, sine = turns[i].y;
      float &first = x[a.halves ? i : 2 * i], &second = x[a.halves ? i + a.n_turned / 2 : 2 * i + 1];
      const float u = first, v = second;
      first = u * cosine - v * sine;
      second = u * sine + v * cosine;
    }
    __syncwarp();
  }

  __device__ void sharpen(const Temperature& t, int position) const {
    const float by = fmaf(t.scale, log1pf(static_cast<float>((position + t.offset) / t.length)), 1.0F);
    for (int i = lane; i < dim; i += 32) x[i] *= by;
    __syncwarp();
  }

  /// Normalised Walsh-Hadamard transforms of its pieces (kv_format.h).
  __device__ void transform() const {
    for (int first = 0; first < dim;) {
      const int n = 1 << (31 - __clz(dim - first));
      for (int step = 1; step < n; step *= 2) {
        for (int i = lane; i < n / 2; i += 32) {
          float *u = x + first + i / step * 2 * step + i % step, *v = u + step;
          const float sum = *u + *v, difference = *u - *v;
          *u = sum;
          *v = difference;
        }
        __syncwarp();
      }
      const float by = rsqrtf(static_cast<float>(n));
      for (int i = lane; i < n; i += 32) x[first + i] *= by;
      __syncwarp();
      first += n;
    }
  }
  __device__ void flip_signs() const {
    for (int i = lane; i < dim; i += 32) x[i] *= attention::rotation_sign(i);
    __syncwarp();
  }
  __device__ void rotate() const {
    flip_signs();
    transform();
  }
  __device__ void rotate_back() const {
    transform();
    flip_signs();
  }

  __device__ void write_numbers(std::byte* to) const {
    for (int i = 2 * lane; i < dim; i += 64)
      *reinterpret_cast<std::uint32_t*>(to + 2 * i) = coppice::cuda::pack<__nv_bfloat16>(x[i], x[i + 1]);
  }
  /// to: the head's part of a block.
  __device__ void write_panels(std::byte* to, int slot) const {
    for (int i = 2 * lane; i < dim; i += 64)
      *reinterpret_cast<std::uint32_t*>(to + attention::cuda::offset_in_head(dim, kBlockSize, slot, i)) =
          coppice::cuda::pack<__nv_bfloat16>(x[i], x[i + 1]);
  }
  __device__ void write_bytes(std::byte* to, int slot) const {
    float most = 0.0F;
    for (int i = lane; i < dim; i += 32) most = fmaxf(most, fabsf(x[i]));
#pragma unroll
    for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0U, most, i));
    const __half scale = __float2half_rn(most / 127.0F);
    const float by = __half2float(scale) > 0.0F ? 1.0F / __half2float(scale) : 0.0F;
    for (int i = lane; i < dim; i += 32)
      reinterpret_cast<signed char*>(to)[slot * dim + i] =
          static_cast<signed char>(fminf(fmaxf(rintf(x[i] * by), -127.0F), 127.0F));
    if (lane == 0) reinterpret_cast<__half*>(to + kBlockSize * dim)[slot] = scale;
  }
};

/// By all threads of a thread block. Angles are taken in double precision: at position 100,000 an f32's last bit is
/// 0.008 radians.
__device__ void find_turns(const EnterRows& a, const std::int32_t* position, float2* turns) {
  for (int i = static_cast<int>(threadIdx.x); i < a.n_turned / 2; i += 32 * kWarps) {
    constexpr double kTurn = 6.283185307179586;
    const int axis = a.axes != nullptr ? a.axes[i] : 0;
    const double angle = static_cast<double>(position[axis]) * static_cast<double>(a.frequencies[i]);
    float sine, cosine;
    sincosf(static_cast<float>(angle - kTurn * rint(angle / kTurn)), &sine, &cosine);
    turns[i] = {cosine * a.magnitude, sine * a.magnitude};
  }
  __syncthreads();
}

/// Of all heads of a kind in a row. By all threads of a thread block.
__device__ float inverse_rms(const float* from, const float* bias, int n, float eps, float* parts) {
  float squares = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 32 * kWarps) {
    const float x = from[i] + (bias != nullptr ? bias[i] : 0.0F);
    squares += x * x;
  }
  return rsqrtf(block_sum(squares, parts) / static_cast<float>(n) + eps);
}

/// A warp a head: of a row first the queries, then keys, then values.
__global__ __launch_bounds__(32 * kWarps) void enter_rows(const EnterRows a) {
  __shared__ float memory[kWarps][kMostDim];
  __shared__ float2 turns[kMostDim / 2];
  __shared__ float parts[32];
  allow_next_launch();
  wait_for_launch_before();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_heads = a.n_head + 2 * a.n_kv_head;
  const int head = static_cast<int>(blockIdx.x) * kWarps + warp, row = static_cast<int>(blockIdx.y);
  const std::int32_t* position = a.positions + static_cast<std::size_t>(row) * a.position_size;
  find_turns(a, position, turns);
  const auto values_of = [&](const ProductRows& rows) { return rows.x + static_cast<std::size_t>(row) * rows.stride; };
  float of_queries = 0.0F, of_keys = 0.0F;
  if (a.whole_norms) {  // each thread block for its own heads
    const int first = static_cast<int>(blockIdx.x) * kWarps, n_q = a.n_head * a.head_dim,
              n_k = a.n_kv_head * a.head_dim;
    if (first < a.n_head) of_queries = inverse_rms(values_of(a.from_q), a.q_bias, n_q, a.eps, parts);
    if (first + kWarps > a.n_head && first < a.n_head + a.n_kv_head)
      of_keys = inverse_rms(values_of(a.from_k), a.k_bias, n_k, a.eps, parts);
  }
  if (head >= n_heads) return;
  const bool is_q = head < a.n_head, is_v = head >= a.n_head + a.n_kv_head;
  const int slot = a.slots[row];
  if (!is_q && slot < 0) return;
  const Head h{memory[warp], a.head_dim, lane};
  const ProductRows& rows = is_q ? a.from_q : is_v ? a.from_v : a.from_k;
  const float* bias = is_q ? a.q_bias : is_v ? a.v_bias : a.k_bias;
  const int of_its_kind = (is_q ? head : (head - a.n_head) % a.n_kv_head) * a.head_dim;
  const float* from = values_of(rows) + of_its_kind;
  for (int i = lane; i < a.head_dim; i += 32) h.x[i] = from[i] + (bias != nullptr ? bias[of_its_kind + i] : 0.0F);
  __syncwarp();
  const float* norm = is_q ? a.q_norm : is_v ? nullptr : a.k_norm;
  if (norm != nullptr && a.whole_norms) h.multiply(norm + of_its_kind, is_q ? of_queries : of_keys);
  if (norm != nullptr && !a.whole_norms) h.multiply(norm, h.inverse_rms(a.eps));
  if (!is_v) h.turn(a, turns);
  if (is_q && a.temperature.scale != 0.0F) h.sharpen(a.temperature, *position);
  if (a.bytes) h.rotate();
  if (is_q) {
    h.write_numbers(static_cast<std::byte*>(a.q) + (static_cast<std::size_t>(row) * a.n_head + head) * a.head_dim * 2);
    return;
  }
  const int kv_head = (head - a.n_head) % a.n_kv_head;
  const std::size_t of_head = a.bytes ? attention::cuda::byte_head_bytes(a.head_dim, kBlockSize)
                                      : static_cast<std::size_t>(kBlockSize * a.head_dim * 2);
  std::byte* to = (is_v ? a.values : a.keys) + static_cast<std::int64_t>(slot / kBlockSize) * a.block_bytes +
                  static_cast<std::size_t>(kv_head) * of_head;
  if (a.bytes) {
    h.write_bytes(to, slot % kBlockSize);
  } else {
    h.write_panels(to, slot % kBlockSize);
  }
}

__global__ __launch_bounds__(32 * kWarps) void rotate_back(const RotateBack a) {
  __shared__ float memory[kWarps][kMostDim];
  allow_next_launch();
  wait_for_launch_before();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x) * kWarps + warp;
  if (head >= a.n_heads) return;
  const Head h{memory[warp], a.head_dim, lane};
  auto* heads = static_cast<__nv_bfloat16*>(a.heads) + static_cast<std::size_t>(head) * a.head_dim;
  for (int i = lane; i < a.head_dim; i += 32) h.x[i] = __bfloat162float(heads[i]);
  __syncwarp();
  h.rotate_back();
  h.write_numbers(reinterpret_cast<std::byte*>(heads));
}

/// Two values a thread.
__global__ void gate_heads(const GateHeads a) {
  allow_next_launch();
  wait_for_launch_before();
  const int at = 2 * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), row = static_cast<int>(blockIdx.y);
  if (at >= a.n) return;
  const float* gates = a.gates.x + static_cast<std::size_t>(row) * a.gates.stride;
  const auto open = [&](int i) {
    const int gate = i / (a.n / a.n_gates);
    return 1.0F / (1.0F + __expf(-(gates[gate] + (a.bias != nullptr ? a.bias[gate] : 0.0F))));
  };
  auto* two = static_cast<__nv_bfloat162*>(a.heads) + (static_cast<std::size_t>(row) * a.n + at) / 2;
  const float2 x = __bfloat1622float2(*two);
  *two = __floats2bfloat162_rn(x.x * open(at), x.y * open(at + 1));
}

}  // namespace

const char* launch(const EnterRows& args, const Gpu& gpu) {
  if (args.head_dim > kMostDim || args.head_dim % 16 != 0) return "no heads of this size";
  const int n_heads = args.n_head + 2 * args.n_kv_head;
  const coppice::cuda::LaunchShape shape = {.n_blocks = (n_heads + kWarps - 1) / kWarps,
                                            .n_threads = 32 * kWarps,
                                            .n_blocks_y = args.n_rows,
                                            .early = args.n_rows <= kMostEarlyRows};
  return launch_early(enter_rows, shape, gpu, args);
}

const char* launch(const GateHeads& args, const Gpu& gpu) {
  if (args.n % 2 != 0 || args.n_gates <= 0 || args.n % args.n_gates != 0) return "no such gates of heads";
  const coppice::cuda::LaunchShape shape = {.n_blocks = (args.n / 2 + 255) / 256,
                                            .n_threads = 256,
                                            .n_blocks_y = args.n_rows,
                                            .early = args.n_rows <= kMostEarlyRows};
  return launch_early(gate_heads, shape, gpu, args);
}

const char* launch(const RotateBack& args, const Gpu& gpu) {
  if (args.head_dim > kMostDim || args.head_dim % 16 != 0) return "no heads of this size";
  return launch_early(rotate_back, {.n_blocks = (args.n_heads + kWarps - 1) / kWarps, .n_threads = 32 * kWarps}, gpu,
                      args);
}

}  // namespace coppice::executor::cuda
