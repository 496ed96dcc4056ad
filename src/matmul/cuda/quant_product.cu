// The warps of a thread block share tiles of 16 outputs, and take turns at the stages of 256 inputs. Weights and rows of a stage come
// through a ring in shared memory of the warp's own, so warps wait for nothing but their copies. The first weights are on their way
// before the launch in front has ended (programmatic dependent launch), since nothing on the device writes them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "cuda/launch.cuh"
#include "cuda/warp_product.cuh"
#include "matmul/cuda/byte_product.cuh"
#include "matmul/cuda/device.h"
#include "matmul/cuda/quant_product.h"
#include "matmul/cuda/tile_types.h"
#include "matmul/cuda/unpack.cuh"

namespace coppice::matmul::cuda {

namespace {

constexpr int kMostWarps = 16;
constexpr int kStages = 2;
constexpr int kRowBytes = kStageInputs * 2 + 16;  ///< of x in a stage; 16 more, or rows share banks

constexpr int stage_bytes(QuantType type, int tiles, int n_rows) {
  return tiles * stage_weights(type) + n_rows * kRowBytes;
}

/// A lane's scales of 64 inputs, for its two outputs: [16 inputs][output], and what is added for each of 32 inputs times their sum:
/// m * t, less what the weights are too large.
template <QuantType kType>
__device__ inline void read_scales(const unsigned char* chunks, int quarter, int lane, float (&s)[4][2],
                                   float (&t)[2][2]) {
  constexpr ChunkForm kForm = chunk_form(kType);
#pragma unroll
  for (int upper = 0; upper < 2; ++upper) {
    const int out = lane / 4 + 8 * upper;
    if constexpr (kType == QuantType::kBf16) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i][upper] = 1.0F;
    } else if constexpr (kType == QuantType::kMxfp4) {
      const unsigned char* d = chunks + quarter * kForm.bytes() + kForm.deltas_at() + out;
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i][upper] = power_of_two(d[i / 2 * 16]);
    } else if constexpr (kForm.inputs == 64) {
      const auto* d = reinterpret_cast<const __half*>(chunks + quarter * kForm.bytes() + kForm.deltas_at()) + out;
#pragma unroll
      for (int i = 0; i < 4; ++i) s[i][upper] = __half2float(d[i / 2 * 16]);
    } else if constexpr (kType == QuantType::kQ6K) {
      const float d = __half2float(reinterpret_cast<const __half*>(chunks + kForm.deltas_at())[out]);
      const char4 of = *reinterpret_cast<const char4*>(chunks + kForm.scales_at() + out * 16 + quarter * 4);
      s[0][upper] = d * static_cast<float>(of.x);
      s[1][upper] = d * static_cast<float>(of.y);
      s[2][upper] = d * static_cast<float>(of.z);
      s[3][upper] = d * static_cast<float>(of.w);
    } else {
      const float2 dm = __half22float2(reinterpret_cast<const __half2*>(chunks + kForm.deltas_at())[out]);
      const unsigned char* scales = chunks + kForm.scales_at() + out * 16 + 2 * quarter;
      const uchar2 of_s = *reinterpret_cast<const uchar2*>(scales);
      const uchar2 of_t = *reinterpret_cast<const uchar2*>(scales + 8);
      s[0][upper] = s[1][upper] = dm.x * static_cast<float>(of_s.x);
      s[2][upper] = s[3][upper] = dm.x * static_cast<float>(of_s.y);
      t[0][upper] = fmaf(-128.0F, s[0][upper], dm.y * static_cast<float>(of_t.x));
      t[1][upper] = fmaf(-128.0F, s[2][upper], dm.y * static_cast<float>(of_t.y));
    }
  }
}

template <QuantType kType, int kTiles, int kRowTiles>
struct Multiplier {
  static constexpr bool kAdds = kType == QuantType::kQ4K || kType == QuantType::kQ5K;
  static constexpr bool kBy16 = kType == QuantType::kQ6K;
  static constexpr ChunkForm kForm = chunk_form(kType);
  const QuantProduct& p;
  unsigned char* ring;  ///< of this warp
  int first_tile, warp, lane;
  int n_tiles = (p.n_out + kTileOutputs - 1) / kTileOutputs;
  int n_stages = (p.n_in + kStageInputs - 1) / kStageInputs;
  int bytes = stage_bytes(kType, kTiles, p.n_rows);
  float sums[kTiles][kRowTiles][4] = {};

  __device__ void fetch_weights(int stage, int slot) const {
    if (stage >= n_stages) return;
    const int pieces = min(kStageInputs, p.n_in - stage * kStageInputs) / kForm.inputs * kForm.bytes() / 16;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      unsigned char* to = ring + slot * bytes + tile * stage_weights(kType);
      const std::byte* from = p.weights +
                              static_cast<std::size_t>(min(first_tile + tile, n_tiles - 1)) *
                                  static_cast<std::size_t>(p.n_in / kForm.inputs * kForm.bytes()) +
                              static_cast<std::size_t>(stage) * stage_weights(kType);
      for (int i = lane; i < pieces; i += 32) copy_16(shared_address(to + 16 * i), from + 16 * i);
    }
  }
  __device__ void fetch_rows(int stage, int slot) const {
    if (stage >= n_stages || stage * kStageInputs + 8 * lane >= p.n_in) return;
    unsigned char* to = ring + slot * bytes + kTiles * stage_weights(kType) + 16 * lane;
    const auto* x = static_cast<const std::byte*>(p.x) + static_cast<std::size_t>(stage * kStageInputs + 8 * lane) * 2;
    for (int row = 0; row < p.n_rows; ++row)
      copy_16(shared_address(to + row * kRowBytes), x + static_cast<std::size_t>(row) * p.n_in * 2);
  }

  /// 64 inputs.
  __device__ void compute(const unsigned char* stage, int quarter) {
    const unsigned char* rows = stage + kTiles * stage_weights(kType) + quarter * 128 + lane / 8 * 16;
    uint2 x[kRowTiles][4];
    float x_sums[kRowTiles][2][4] = {};
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      // A lane says where a row's 16 bytes are; those of rows that aren't there are another's, and their results are not written.
      const std::uint32_t from = shared_address(rows + min(lane % 8 + 8 * r, p.n_rows - 1) * kRowBytes);
      std::uint32_t words[2][4];
      load_matrices(words[0], from);
      load_matrices(words[1], from + 64);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[r][i] = {words[i / 2][i % 2 * 2], words[i / 2][i % 2 * 2 + 1]};
        constexpr std::uint32_t kOnes[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
        if constexpr (kAdds) multiply_16x8<__nv_bfloat16>(x_sums[r][i / 2], kOnes, x[r][i].x, x[r][i].y);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const unsigned char* chunks = stage + tile * stage_weights(kType);
      std::uint32_t a[4][4];
      float s[4][2], t[2][2];
      unpack<kType>(chunks, quarter, lane, a);
      read_scales<kType>(chunks, quarter, lane, s, t);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        constexpr int kAtOnce = kBy16 ? 1 : 2;
#pragma unroll
        for (int i = 0; i < 4; i += kAtOnce) {
          float part[4] = {};
#pragma unroll
          for (int k = i; k < i + kAtOnce; ++k) multiply_16x8<__nv_bfloat16>(part, a[k], x[r][k].x, x[r][k].y);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            sums[tile][r][e] += s[i][e / 2] * part[e];
            if constexpr (kAdds) sums[tile][r][e] += t[i / 2][e / 2] * x_sums[r][i / 2][e];
          }
        }
      }
    }
  }

  __device__ void run(int n_warps) {
    fetch_weights(warp, 0);
    wait_for_launch_before();
    fetch_rows(warp, 0);
    commit_copies();
    int slot = 0;
    for (int stage = warp; stage < n_stages; stage += n_warps, slot ^= 1) {
      fetch_weights(stage + n_warps, slot ^ 1);
      fetch_rows(stage + n_warps, slot ^ 1);
      commit_copies();
      wait_for_copies<1>();
      __syncwarp();
      const int quarters = min(kStageInputs, p.n_in - stage * kStageInputs) / 64;
#pragma unroll 4
      for (int quarter = 0; quarter < quarters; ++quarter) compute(ring + slot * bytes, quarter);
      __syncwarp();
    }
    wait_for_copies<0>();
  }
};

template <QuantType kType, int kTiles, int kRowTiles>
__global__ __launch_bounds__(32 * kMostWarps) void multiply_quantised(const QuantProduct p) {
  extern __shared__ __align__(16) unsigned char memory[];
  allow_next_launch();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_warps = static_cast<int>(blockDim.x) / 32;
  const int bytes = kStages * stage_bytes(kType, kTiles, p.n_rows);
  Multiplier<kType, kTiles, kRowTiles> m{p, memory + warp * bytes, static_cast<int>(blockIdx.x) * kTiles, warp, lane};
  m.run(n_warps);
  // The warps' sums, added in their order. Of a tile a lane has two neighbouring rows of two outputs.
  __syncthreads();
  auto* parts = reinterpret_cast<float*>(memory);
  constexpr int kSums = kTiles * kRowTiles * 4 * 32;
#pragma unroll
  for (int i = 0; i < kSums / 32; ++i)
    parts[warp * kSums + i * 32 + lane] = m.sums[i / 4 / kRowTiles][i / 4 % kRowTiles][i % 4];
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < kSums; at += static_cast<int>(blockDim.x)) {
    const int from = at % 32, i = at / 32, tile = i / 4 / kRowTiles;
    const int row = i / 4 % kRowTiles * 8 + from % 4 * 2 + i % 2;
    const int out = (static_cast<int>(blockIdx.x) * kTiles + tile) * kTileOutputs + from / 4 + i % 4 / 2 * 8;
    float sum = 0.0F;
    for (int w = 0; w < n_warps; ++w) sum += parts[w * kSums + at];
    if (row < p.n_rows && out < p.n_out) p.y[static_cast<std::size_t>(row) * p.n_out + out] = sum;
  }
}

/// Of a thread block: all of them shall run at once if they can, with about 16 warps on a multiprocessor.
int choose_warps(int n_blocks, int n_stages, int bytes_of_warp) {
  const int together = min(4, (n_blocks + device().n_multiprocessors - 1) / device().n_multiprocessors);
  const int fit = device().shared_bytes / together / bytes_of_warp;
  return max(1, min(min(kMostWarps / together, fit), n_stages));
}

template <QuantType kType, int kTiles, int kRowTiles>
const char* launch(const QuantProduct& p, cudaStream_t stream) {
  constexpr int kParts = kTiles * kRowTiles * 4 * 32 * 4;
  static const cudaError_t ready = cudaFuncSetAttribute(
      multiply_quantised<kType, kTiles, kRowTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, device().shared_bytes);
  if (ready != cudaSuccess) return cudaGetErrorString(ready);
  const int of_warp = max(kStages * stage_bytes(kType, kTiles, p.n_rows), kParts);
  const int n_blocks = ((p.n_out + kTileOutputs - 1) / kTileOutputs + kTiles - 1) / kTiles;
  const int n_warps = choose_warps(n_blocks, (p.n_in + kStageInputs - 1) / kStageInputs, of_warp);
  const LaunchShape shape = {.n_blocks = n_blocks,
                             .n_threads = 32 * n_warps,
                             .shared_bytes = n_warps * of_warp,
                             .early = p.n_rows <= coppice::cuda::kMostCrowdingRows};
  return launch_early(multiply_quantised<kType, kTiles, kRowTiles>, shape, stream, p);
}

/// Thread blocks of a product in whole numbers; n_slots 0: better in bf16, or its digits have no room.
struct ByteLaunch {
  int n_warps = 0, n_slots = 0, n_blocks = 0, bytes = 0;
};

/// Blocks of eight warps take half a multiprocessor's memory: two work at once, or, where one has few stages, the next launch's
/// already fetches its weights. Rows that leave no room for that get one block of sixteen warps.
template <QuantType kType, int kRowTiles>
ByteLaunch choose_launch(const QuantProduct& p, const ProductTuning& tuning) {
  constexpr int kMostSlots = 5, kFewStages = 128;
  const int n_chunks = (p.n_in + kStageInputs - 1) / kStageInputs;
  const int n_tiles = (p.n_out + kTileOutputs - 1) / kTileOutputs;
  const auto fit = [&](int n_warps, int most_bytes) {
    ByteLaunch launch{.n_warps = n_warps};
    for (int n = tuning.n_slots > 0 ? tuning.n_slots : kMostSlots; n >= 2; --n) {
      launch.bytes = ByteLayout::of(kType, p.n_rows, kRowTiles, n_chunks, n_warps, n).bytes;
      launch.n_slots = n;
      if (launch.bytes <= most_bytes) return launch;
    }
    launch.n_slots = 0;
    return launch;
  };
  const int all = device().shared_bytes, half = device().half();
  if (tuning.n_warps > 0) {
    ByteLaunch launch = fit(tuning.n_warps, tuning.n_slots > 0 ? all : half);
    launch.n_blocks = std::min(n_tiles, tuning.n_blocks);
    return launch;
  }
  const bool few = n_tiles * n_chunks <= kFewStages * device().n_multiprocessors;
  if (few && p.n_rows > 2) return {};  // bf16 is faster
  ByteLaunch launch = fit(8, half);
  launch.n_blocks = (few ? 1 : 2) * device().n_multiprocessors;
  if (launch.n_slots == 0 || (few && p.n_rows * n_chunks * DigitForm::bytes(kType) > half / 3)) {
    launch = fit(16, all);
    launch.n_blocks = device().n_multiprocessors;
  }
  launch.n_blocks = std::min(n_tiles, launch.n_blocks);
  return launch;
}

/// In whole numbers; "" if that does not pay, or the rows' digits have no room.
template <QuantType kType, int kRowTiles>
const char* launch_bytes(const QuantProduct& p, const ProductTuning& tuning, cudaStream_t stream) {
  static const cudaError_t ready = cudaFuncSetAttribute(
      multiply_in_bytes<kType, kRowTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, device().shared_bytes);
  if (ready != cudaSuccess) return cudaGetErrorString(ready);
  const ByteLaunch launch = choose_launch<kType, kRowTiles>(p, tuning);
  if (launch.n_slots == 0) return "";
  const LaunchShape shape = {launch.n_blocks, 32 * launch.n_warps, launch.bytes};
  return launch_early(multiply_in_bytes<kType, kRowTiles>, shape, stream, p, launch.n_slots);
}

/// Up to 16 rows at once, on any GPU.
template <QuantType kType>
const char* launch_16(QuantProduct p, cudaStream_t stream) {
  const int n_rows = p.n_rows;
  for (int row = 0; row < n_rows; row += 16) {
    p.n_rows = std::min(16, n_rows - row);
    const char* error = p.n_rows <= 8 ? launch<kType, 2, 1>(p, stream) : launch<kType, 2, 2>(p, stream);
    if (error != nullptr) return error;
    p.x = static_cast<const std::byte*>(p.x) + std::size_t{16} * static_cast<std::size_t>(p.n_in) * 2;
    p.y += std::size_t{16} * static_cast<std::size_t>(p.n_out);
  }
  return nullptr;
}

template <QuantType kType>
const char* launch(const QuantProduct& p, const ProductTuning& tuning, cudaStream_t stream) {
  if (!device().is_hopper || tuning.plain) return launch_16<kType>(p, stream);
  if constexpr (kType != QuantType::kMxfp4 &&
                kType != QuantType::kBf16) {  // MXFP4's numbers cost more to make than that saves
    if (p.n_rows <= tuning.most_byte_rows) {
      const char* error =
          p.n_rows <= 2 ? launch_bytes<kType, 1>(p, tuning, stream) : launch_bytes<kType, 2>(p, tuning, stream);
      if (error == nullptr || *error != 0) return error;
    }
  }
  constexpr bool kExact = kType == QuantType::kBf16;  // either way
  if (kExact && tuning.least_tile_rows == 0 && least_tile_rows(p.n_in, p.n_out) <= 5)
    return launch_tiles<kType>(p, tuning, stream);
  if (p.n_rows < (tuning.least_tile_rows > 0 ? tuning.least_tile_rows : least_tile_rows(p.n_in, p.n_out)))
    return launch_16<kType>(p, stream);
  return launch_tiles<kType>(p, tuning, stream);
}

}  // namespace

int least_tile_rows(int n_in, int n_out) {
  const std::int64_t n_weights = static_cast<std::int64_t>(n_in) * n_out;
  return n_weights > 1 << 26 ? 5 : n_weights > 1 << 24 ? 9 : 17;
}

std::size_t product_scratch_sums() {
  // Of each thread block a tile: 128 outputs x 256 rows, or two blocks and 64 rows.
  return static_cast<std::size_t>(device().n_multiprocessors) * 128 * 256;
}

const char* launch_quant_product(const QuantProduct& p, CUstream_st* stream, const ProductTuning& tuning) {
  if (p.n_rows < 1) return "no product of so few rows";
  switch (p.type) {
    case QuantType::kQ4_0:
      return launch<QuantType::kQ4_0>(p, tuning, stream);
    case QuantType::kQ8_0:
      return launch<QuantType::kQ8_0>(p, tuning, stream);
    case QuantType::kQ4K:
      return launch<QuantType::kQ4K>(p, tuning, stream);
    case QuantType::kQ5K:
      return launch<QuantType::kQ5K>(p, tuning, stream);
    case QuantType::kQ6K:
      return launch<QuantType::kQ6K>(p, tuning, stream);
    case QuantType::kMxfp4:
      return launch<QuantType::kMxfp4>(p, tuning, stream);
    case QuantType::kBf16:
      return launch<QuantType::kBf16>(p, tuning, stream);
    default:
      return "no product for weights of this type";
  }
}

}  // namespace coppice::matmul::cuda
