#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/gated.cuh"
#include "cuda/launch.cuh"
#include "cuda/warp_product.cuh"
#include "executor/cuda/operators.h"
#include "executor/cuda/reduce.cuh"
#include "matmul/cuda/quant_pack.h"

namespace coppice::executor::cuda {

using coppice::cuda::allow_next_launch;
using coppice::cuda::kMostEarlyRows;
using coppice::cuda::launch_early;
using coppice::cuda::wait_for_launch_before;
using matmul::QuantType;
using matmul::cuda::ChunkForm;

namespace {

__device__ uint2 to_bf16(const float4& x) {
  return {coppice::cuda::pack<__nv_bfloat16>(x.x, x.y), coppice::cuda::pack<__nv_bfloat16>(x.z, x.w)};
}

/// Input k of output `out` of a packed chunk (quant_pack.h).
template <QuantType kType>
__device__ float weight_at(const unsigned char* chunk, int k, int out) {
  constexpr ChunkForm kForm = matmul::cuda::chunk_form(kType);
  const int lane = out % 8 * 4 + k % 8 / 2, byte = k % 16 / 8 * 2 + k % 2, block = k / 32 % 2;
  const int word = k % 32 / 16 * 2 + out / 8;
  if constexpr (kType == QuantType::kBf16) {
    const auto* numbers = reinterpret_cast<const __nv_bfloat16*>(chunk + (k / 16 * 32 + lane) * 16);
    return __bfloat162float(numbers[2 * (k % 16 / 8 * 2 + out / 8) + k % 2]);
  }
  const auto half_at = [&](int i) {
    return __half2float(reinterpret_cast<const __half*>(chunk + kForm.deltas_at())[i]);
  };
  const int of_32 = k / 32 * 16 + out;
  if constexpr (kType == QuantType::kQ8_0)
    return half_at(of_32) *
           static_cast<float>(static_cast<signed char>(chunk[(block * 32 + lane) * 16 + word * 4 + byte]));
  const std::uint32_t low = reinterpret_cast<const std::uint32_t*>(chunk + (k / 64 * 32 + lane) * 16)[word];
  if constexpr (kType == QuantType::kMxfp4) {
    const std::uint32_t code = low >> (4 * byte + 16 * block) & 15, size = code & 7;
    const float number =
        size < 4 ? 0.5F * static_cast<float>(size) : static_cast<float>(2 + size % 2) * (size < 6 ? 1.0F : 2.0F);
    const float delta = __uint_as_float(static_cast<std::uint32_t>(chunk[kForm.deltas_at() + of_32]) << 23);
    return (code < 8 ? number : -number) * delta;
  }
  int q = static_cast<int>(low >> (8 * byte + 4 * block) & 15);
  if constexpr (kType == QuantType::kQ4_0) return half_at(of_32) * static_cast<float>(q - 8);
  const auto* high = reinterpret_cast<const std::uint32_t*>(chunk + kForm.high_at() + lane * 16);
  const unsigned char* scales = chunk + kForm.scales_at() + out * 16;
  if constexpr (kType == QuantType::kQ6K) {
    const std::uint32_t bits = high[k / 128 * 128 + k / 64 % 2 * 2 + block];
    q |= static_cast<int>(bits >> (8 * byte + 2 * word) & 3) << 4;
    return half_at(out) * static_cast<float>(static_cast<signed char>(scales[k / 16])) * static_cast<float>(q - 32);
  }
  if constexpr (kType == QuantType::kQ5K) q |= static_cast<int>(high[k / 64] >> (8 * byte + 4 * block + word) & 1) << 4;
  return fmaf(half_at(2 * out) * static_cast<float>(scales[k / 32]), static_cast<float>(q),
              half_at(2 * out + 1) * static_cast<float>(scales[8 + k / 32]));
}

template <QuantType kType>
__global__ void embed_rows(const EmbedRows a) {
  constexpr ChunkForm kForm = matmul::cuda::chunk_form(kType);
  __shared__ float parts[32];
  allow_next_launch();
  wait_for_launch_before();
  const int row = static_cast<int>(blockIdx.x), named = a.rows[row];
  float* residual = a.residual + static_cast<std::size_t>(row) * a.n;
  if (is_given(named)) {
    const auto* given =
        static_cast<const __nv_bfloat16*>(a.given) + static_cast<std::size_t>(named - kGivenRow) * a.given_stride;
    for (int k = static_cast<int>(threadIdx.x); k < a.n; k += static_cast<int>(blockDim.x))
      residual[k] = __bfloat162float(given[k]);
    return;
  }
  const int token = named >= 0 ? named : max(0, a.drawn[-1 - named]);
  const auto* tile =
      reinterpret_cast<const unsigned char*>(a.embeddings) +
      static_cast<std::size_t>(token / 16) * static_cast<std::size_t>(a.n / kForm.inputs * kForm.bytes());
  const auto of_each = [&](auto act) {
    for (int k = static_cast<int>(threadIdx.x); k < a.n; k += static_cast<int>(blockDim.x)) {
      const unsigned char* chunk = tile + k / kForm.inputs * kForm.bytes();
      act(k, a.scale * weight_at<kType>(chunk, k % kForm.inputs, token % 16));
    }
  };
  if (a.norm == nullptr) return of_each([&](int k, float x) { residual[k] = x; });
  float squares = 0.0F;
  of_each([&](int, float x) { squares += x * x; });
  const float by = rsqrtf(block_sum(squares, parts) / static_cast<float>(a.n) + a.eps);
  of_each([&](int k, float x) { residual[k] = x * by * a.norm[k]; });
}

__global__ void add_plane(const AddPlane a) {
  allow_next_launch();
  wait_for_launch_before();
  const int row = static_cast<int>(blockIdx.x), named = a.rows[row];
  if (!is_given(named)) return;
  const auto* plane =
      static_cast<const __nv_bfloat16*>(a.plane) + static_cast<std::size_t>(named - kGivenRow) * a.stride;
  float* residual = a.residual + static_cast<std::size_t>(row) * a.n;
  for (int k = static_cast<int>(threadIdx.x); k < a.n; k += static_cast<int>(blockDim.x))
    residual[k] += __bfloat162float(plane[k]);
}

constexpr int kNormThreads = 1024, kMostFours = kMostNormed / 4 / kNormThreads;
constexpr int kManyRows = 512;
constexpr int kMostBlocksY = 65535;

template <bool kSlices>
__global__ __launch_bounds__(kNormThreads) void add_norm(const AddNorm a) {
  __shared__ float parts[32];
  const int n_fours = a.n / 4, thread = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
  float4 x[kMostFours], y[kMostFours];
  const auto of_each = [&](auto act) {
#pragma unroll
    for (int i = 0; i < kMostFours; ++i)
      if (thread + i * n_threads < n_fours) act(i, thread + i * n_threads);
  };
  const auto normal = [&](const float4(&v)[kMostFours], float eps) {
    float squares = 0.0F;
    of_each([&](int i, int) { squares += v[i].x * v[i].x + v[i].y * v[i].y + v[i].z * v[i].z + v[i].w * v[i].w; });
    return rsqrtf(block_sum(squares, parts) / static_cast<float>(a.n) + eps);
  };
  allow_next_launch();
  wait_for_launch_before();
  const std::size_t to = static_cast<std::size_t>(blockIdx.x) * n_fours;
  const std::size_t first = a.rows != nullptr ? static_cast<std::size_t>(a.rows[blockIdx.x]) * n_fours : to;
  auto* residual = reinterpret_cast<float4*>(a.residual) + first;
  of_each([&](int i, int at) { x[i] = residual[at]; });
  if (a.plus != nullptr) {
    of_each([&](int i, int at) {
      const auto* plus = reinterpret_cast<const float4*>(a.plus) + first + at;
      y[i] = *plus;
      if constexpr (kSlices) {
#pragma unroll 4
        for (int slice = 1; slice < a.plus_slices; ++slice) {
          const float4 more = plus[slice * (a.plus_stride / 4)];
          y[i] = {y[i].x + more.x, y[i].y + more.y, y[i].z + more.z, y[i].w + more.w};
        }
      }
      if (a.plus_bias == nullptr) return;
      const float4 b = reinterpret_cast<const float4*>(a.plus_bias)[at];
      y[i] = {y[i].x + b.x, y[i].y + b.y, y[i].z + b.z, y[i].w + b.w};
    });
    const float by = a.plus_scale * (a.plus_norm != nullptr ? normal(y, a.plus_eps) : 1.0F);
    of_each([&](int i, int at) {
      const float4 w =
          a.plus_norm != nullptr ? reinterpret_cast<const float4*>(a.plus_norm)[at] : make_float4(1, 1, 1, 1);
      x[i].x += y[i].x * by * w.x;
      x[i].y += y[i].y * by * w.y;
      x[i].z += y[i].z * by * w.z;
      x[i].w += y[i].w * by * w.w;
      if (a.rows == nullptr) residual[at] = x[i];
    });
  }
  const float by = a.norm != nullptr ? normal(x, a.eps) : 1.0F;
  of_each([&](int i, int at) {
    const float4 w = a.norm != nullptr ? reinterpret_cast<const float4*>(a.norm)[at] : make_float4(1, 1, 1, 1);
    static_cast<uint2*>(a.out)[to + at] =
        to_bf16({x[i].x * by * w.x, x[i].y * by * w.y, x[i].z * by * w.z, x[i].w * by * w.w});
  });
}

__global__ void gate_rows(const GateRows a) {
  allow_next_launch();
  wait_for_launch_before();
  const int n_fours = a.n / 4;
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= n_fours) return;
  const coppice::cuda::GateForm gate(a.gate);
  for (int row = static_cast<int>(blockIdx.y); row < a.n_rows; row += static_cast<int>(gridDim.y)) {
    const int part = a.parts != nullptr ? a.parts[row] : 0;
    const float w = a.weights != nullptr ? a.weights[a.pairs[row]] : 1.0F;
    const auto four_of = [&](const ProductRows& from, const float* bias) {
      float4 x = reinterpret_cast<const float4*>(from.x + static_cast<std::size_t>(row) * from.stride)[at];
      x = make_float4(w * x.x, w * x.y, w * x.z, w * x.w);
      if (bias == nullptr) return x;
      const float4 b = reinterpret_cast<const float4*>(bias)[static_cast<std::size_t>(part) * n_fours + at];
      return make_float4(x.x + b.x, x.y + b.y, x.z + b.z, x.w + b.w);
    };
    const float4 z = four_of(a.from_gate, a.gate_bias), u = four_of(a.from_up, a.up_bias);
    static_cast<uint2*>(a.out)[static_cast<std::size_t>(row) * n_fours + at] =
        to_bf16({gate(z.x, u.x), gate(z.y, u.y), gate(z.z, u.z), gate(z.w, u.w)});
  }
}

__global__ void finish_logits(const FinishLogits a) {
  allow_next_launch();
  wait_for_launch_before();
  const int at = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (at >= a.n) return;
  float& logit = a.logits[static_cast<std::size_t>(blockIdx.y) * a.n + at];
  const float x = a.scale * (logit + (a.bias != nullptr ? a.bias[at] : 0.0F));
  logit = a.cap > 0.0F ? a.cap * tanhf(x / a.cap) : x;
}

template <QuantType kType>
const char* launch_embed(const EmbedRows& args, const Gpu& gpu) {
  return launch_early(embed_rows<kType>,
                      {.n_blocks = args.n_rows, .n_threads = 256, .early = args.n_rows <= kMostEarlyRows}, gpu, args);
}

}  // namespace

const char* launch(const EmbedRows& args, const Gpu& gpu) {
  switch (args.type) {
    case QuantType::kBf16:
      return launch_embed<QuantType::kBf16>(args, gpu);
    case QuantType::kQ8_0:
      return launch_embed<QuantType::kQ8_0>(args, gpu);
    case QuantType::kQ4_0:
      return launch_embed<QuantType::kQ4_0>(args, gpu);
    case QuantType::kQ4K:
      return launch_embed<QuantType::kQ4K>(args, gpu);
    case QuantType::kQ5K:
      return launch_embed<QuantType::kQ5K>(args, gpu);
    case QuantType::kQ6K:
      return launch_embed<QuantType::kQ6K>(args, gpu);
    case QuantType::kMxfp4:
      return launch_embed<QuantType::kMxfp4>(args, gpu);
    default:
      return "no embeddings of this type";
  }
}

const char* launch(const AddPlane& args, const Gpu& gpu) {
  return launch_early(add_plane, {.n_blocks = args.n_rows, .n_threads = 256, .early = args.n_rows <= kMostEarlyRows},
                      gpu, args);
}

const char* launch(const AddNorm& args, const Gpu& gpu) {
  if (args.n > kMostNormed || args.n % 4 != 0) return "no norm of so many values";
  // Few rows: as many threads as there is work for. Many: more rows at once.
  const int of_thread = args.n_rows > kManyRows ? kMostFours : 1;
  const int of_threads = (args.n / 4 + of_thread - 1) / of_thread;
  const int n_threads = std::min(kNormThreads, (of_threads + 31) / 32 * 32);
  return launch_early(args.plus_slices > 1 ? add_norm<true> : add_norm<false>,
                      {.n_blocks = args.n_rows, .n_threads = n_threads, .early = args.n_rows <= kMostEarlyRows}, gpu,
                      args);
}

const char* launch(const GateRows& args, const Gpu& gpu) {
  const coppice::cuda::LaunchShape shape = {.n_blocks = (args.n / 4 + 255) / 256,
                                            .n_threads = 256,
                                            .n_blocks_y = std::min(args.n_rows, kMostBlocksY),
                                            .early = args.n_rows <= kMostEarlyRows};
  return launch_early(gate_rows, shape, gpu, args);
}

const char* launch(const FinishLogits& args, const Gpu& gpu) {
  const coppice::cuda::LaunchShape shape = {.n_blocks = (args.n + 255) / 256,
                                            .n_threads = 256,
                                            .n_blocks_y = args.n_rows,
                                            .early = args.n_rows <= kMostEarlyRows};
  return launch_early(finish_logits, shape, gpu, args);
}

}  // namespace coppice::executor::cuda
