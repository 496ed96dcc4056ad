// The warps of a thread block share tiles of 16 outputs, and take turns at the stages of 256 inputs. Weights and rows of a stage come
// through a ring in shared memory of the warp's own, so warps wait for nothing but their copies. The first weights are on their way
// before the launch in front has ended (programmatic dependent launch), since nothing on the device writes them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "matmul/cuda/quant_product.h"

namespace coppice::matmul::cuda {

namespace {

constexpr int kMostWarps = 16;
constexpr int kStageInputs = 256;
constexpr int kStages = 2;
constexpr int kRowBytes = kStageInputs * 2 + 32;  ///< of x in a stage; 32 more, or rows share banks

constexpr int stage_weights(QuantType type) {  ///< bytes of a tile
  const ChunkForm form = chunk_form(type);
  return kStageInputs / form.inputs * form.bytes();
}
constexpr int stage_bytes(QuantType type, int tiles, int n_rows) {
  return tiles * stage_weights(type) + n_rows * kRowBytes;
}

__device__ inline void copy_16(void* to, const void* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kLeft>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/// D += A * B: A 16 outputs x 16 inputs, B 16 inputs x 8 rows.
__device__ inline void multiply(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Lets the next launch of the stream begin as soon as there is room.
__device__ inline void allow_next_launch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Until the launch before is through and what it wrote can be seen.
__device__ inline void wait_for_launch_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Two bf16 whole numbers from bits below 128, which bf16(128) takes as its last ones, less `zero` (128 + the type's). 0: they stay
/// 128 too large.
__device__ inline std::uint32_t numbers(std::uint32_t bits, std::uint32_t zero) {
  if (zero == 0) return bits;
  const __nv_bfloat162 x =
      __hsub2(reinterpret_cast<const __nv_bfloat162&>(bits), reinterpret_cast<const __nv_bfloat162&>(zero));
  return reinterpret_cast<const std::uint32_t&>(x);
}
constexpr std::uint32_t kMagic = 0x43004300;  ///< two bf16 128

/// One lane's weights of 64 inputs as numbers for four products: [16 inputs][A's registers].
template <QuantType kType>
__device__ inline void unpack(const unsigned char* chunks, int quarter, int lane, std::uint32_t (&a)[4][4]) {
  constexpr ChunkForm kForm = chunk_form(kType);
  if constexpr (kType == QuantType::kQ8_0) {
    const unsigned char* chunk = chunks + quarter * kForm.bytes();
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const uint4 w = *reinterpret_cast<const uint4*>(chunk + (block * 32 + lane) * 16);
      const std::uint32_t words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {  // word i / 2, pair i % 2; a byte is its low seven bits less its sign's 128
        const std::uint32_t x = words[i / 2] >> (8 * (i % 2));
        a[2 * block + i / 2 % 2][i % 2 * 2 + i / 4] = numbers((x & 0x007f007f) | kMagic, (x & 0x00800080) | kMagic);
      }
    }
  } else {
    constexpr bool kSuper = kForm.inputs == 256;
    const unsigned char* chunk = kSuper ? chunks : chunks + quarter * kForm.bytes();
    const uint4 w = *reinterpret_cast<const uint4*>(chunk + ((kSuper ? quarter * 32 : 0) + lane) * 16);
    const std::uint32_t words[4] = {w.x, w.y, w.z, w.w};
    constexpr std::uint32_t kZero = kType == QuantType::kQ4_0 ? 0x43084308 : kType == QuantType::kQ6K ? 0x43204320 : 0;
    std::uint32_t high[2] = {};
    if constexpr (kType == QuantType::kQ5K)
      high[0] = *reinterpret_cast<const std::uint32_t*>(chunk + kForm.high_at() + lane * 16 + 4 * quarter);
    if constexpr (kType == QuantType::kQ6K) {
      const uint2 h =
          *reinterpret_cast<const uint2*>(chunk + kForm.high_at() + quarter / 2 * 512 + lane * 16 + quarter % 2 * 8);
      high[0] = h.x;
      high[1] = h.y;
    }
#pragma unroll
    for (int word = 0; word < 4; ++word) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        std::uint32_t bits = (words[word] >> (4 * pair) & 0x000f000f) | kMagic;
        const int n = 4 * word + pair;
        if constexpr (kType == QuantType::kQ5K) bits |= (n < 4 ? high[0] << (4 - n) : high[0] >> (n - 4)) & 0x00100010;
        if constexpr (kType == QuantType::kQ6K)
          bits |= (n % 8 < 2 ? high[n / 8] << (4 - n % 8 * 2) : high[n / 8] >> (n % 8 * 2 - 4)) & 0x00300030;
        // Word 2 * block + upper output; pairs 0 and 1 are of the block's first 16 inputs.
        a[word / 2 * 2 + pair / 2][pair % 2 * 2 + word % 2] = numbers(bits, kZero);
      }
    }
  }
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
    if constexpr (kForm.inputs == 64) {
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
      const uchar4 of = *reinterpret_cast<const uchar4*>(chunks + kForm.scales_at() + out * 16 + 4 * quarter);
      s[0][upper] = s[1][upper] = dm.x * static_cast<float>(of.x);
      s[2][upper] = s[3][upper] = dm.x * static_cast<float>(of.z);
      t[0][upper] = fmaf(-128.0F, s[0][upper], dm.y * static_cast<float>(of.y));
      t[1][upper] = fmaf(-128.0F, s[2][upper], dm.y * static_cast<float>(of.w));
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
      for (int i = lane; i < pieces; i += 32) copy_16(to + 16 * i, from + 16 * i);
    }
  }
  __device__ void fetch_rows(int stage, int slot) const {
    if (stage >= n_stages || stage * kStageInputs + 8 * lane >= p.n_in) return;
    unsigned char* to = ring + slot * bytes + kTiles * stage_weights(kType) + 16 * lane;
    const auto* x = static_cast<const std::byte*>(p.x) + static_cast<std::size_t>(stage * kStageInputs + 8 * lane) * 2;
    for (int row = 0; row < p.n_rows; ++row)
      copy_16(to + row * kRowBytes, x + static_cast<std::size_t>(row) * p.n_in * 2);
  }

  /// 64 inputs.
  __device__ void compute(const unsigned char* stage, int quarter) {
    const unsigned char* rows = stage + kTiles * stage_weights(kType) + quarter * 128 + lane % 4 * 8;
    uint2 x[kRowTiles][4];
    float x_sums[kRowTiles][2][4] = {};
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const int row = min(lane / 4 + 8 * r, p.n_rows - 1);  // the results of others are not written
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[r][i] = *reinterpret_cast<const uint2*>(rows + row * kRowBytes + i * 32);
        constexpr std::uint32_t kOnes = 0x3f803f80;
        if constexpr (kAdds) multiply(x_sums[r][i / 2], kOnes, kOnes, kOnes, kOnes, x[r][i].x, x[r][i].y);
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
          for (int k = i; k < i + kAtOnce; ++k)
            multiply(part, a[k][0], a[k][1], a[k][2], a[k][3], x[r][k].x, x[r][k].y);
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

struct Device {
  int n_multiprocessors = 1, shared_bytes = 0;  ///< shared: of a thread block at most
};
/// The one that is current first: a process uses one.
const Device& device() {
  static const Device found = [] {
    Device d;
    int number = 0;
    cudaGetDevice(&number);
    cudaDeviceGetAttribute(&d.n_multiprocessors, cudaDevAttrMultiProcessorCount, number);
    cudaDeviceGetAttribute(&d.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, number);
    return d;
  }();
  return found;
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
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(n_blocks);
  config.blockDim = static_cast<unsigned>(32 * n_warps);
  config.dynamicSmemBytes = static_cast<std::size_t>(n_warps * of_warp);
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  const cudaError_t launched = cudaLaunchKernelEx(&config, multiply_quantised<kType, kTiles, kRowTiles>, p);
  return launched == cudaSuccess ? nullptr : cudaGetErrorString(launched);
}

template <QuantType kType>
const char* launch(const QuantProduct& p, cudaStream_t stream) {
  if (p.n_rows <= 8) return launch<kType, 2, 1>(p, stream);
  return launch<kType, 2, 2>(p, stream);
}

}  // namespace

const char* launch_quant_product(const QuantProduct& p, CUstream_st* stream) {
  if (p.n_rows < 1 || p.n_rows > kMostRows) return "no product of so many rows";
  switch (p.type) {
    case QuantType::kQ4_0:
      return launch<QuantType::kQ4_0>(p, stream);
    case QuantType::kQ8_0:
      return launch<QuantType::kQ8_0>(p, stream);
    case QuantType::kQ4K:
      return launch<QuantType::kQ4K>(p, stream);
    case QuantType::kQ5K:
      return launch<QuantType::kQ5K>(p, stream);
    case QuantType::kQ6K:
      return launch<QuantType::kQ6K>(p, stream);
    default:
      return "no product for weights of this type";
  }
}

}  // namespace coppice::matmul::cuda
