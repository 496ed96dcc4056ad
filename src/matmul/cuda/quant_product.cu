// Which way a product goes: in whole numbers, in bf16 by warps (few rows), or in tiles (many).
#include <algorithm>
#include <cstdint>

#include "cuda/launch.cuh"
#include "matmul/cuda/byte_product.cuh"
#include "matmul/cuda/few_rows.cuh"
#include "matmul/cuda/quant_product.h"
#include "matmul/cuda/tile_types.h"

namespace coppice::matmul::cuda {

namespace {

template <QuantType kType, int kTiles, int kRowTiles, bool kGated>
__global__ __launch_bounds__(32 * kMostWarps) void multiply_quantised(const QuantProduct p) {
  extern __shared__ __align__(16) unsigned char memory[];
  allow_next_launch();
  multiply_few<kType, kTiles, kRowTiles, kGated>(p, memory);
}

template <QuantType kType, int kTiles, int kRowTiles, bool kGated>
const char* launch(const QuantProduct& p, const Gpu& gpu) {
  const int of_warp = few_rows_bytes<kType, kTiles, kRowTiles>(p.n_rows);
  const int n_blocks = ((p.n_out + kTileOutputs - 1) / kTileOutputs + kTiles - 1) / kTiles;
  const int n_warps = choose_warps(gpu, n_blocks, (p.n_in + kStageInputs - 1) / kStageInputs, of_warp);
  const LaunchShape shape = {.n_blocks = n_blocks,
                             .n_threads = 32 * n_warps,
                             .shared_bytes = n_warps * of_warp,
                             .early = p.n_rows <= coppice::cuda::kMostCrowdingRows};
  return launch_early(multiply_quantised<kType, kTiles, kRowTiles, kGated>, shape, gpu, p);
}
template <QuantType kType, int kRowTiles>
const char* launch_few(const QuantProduct& p, const Gpu& gpu) {
  constexpr int kTiles = 2;
  return p.y != nullptr ? launch<kType, kTiles, kRowTiles, false>(p, gpu)
                        : launch<kType, kTiles, kRowTiles, true>(p, gpu);
}

/// Thread blocks of a product in whole numbers; n_slots 0: better in bf16, or its digits have no room.
struct ByteLaunch {
  int n_warps = 0, n_slots = 0, n_blocks = 0, bytes = 0;
};

/// Blocks of eight warps take half a multiprocessor's memory: two work at once, or, where one has few stages, the next
/// launch's already fetches its weights. Rows that leave no room for that get one block of sixteen warps.
template <QuantType kType, int kRowTiles>
ByteLaunch choose_launch(const QuantProduct& p, const ProductTuning& tuning, const Gpu& gpu) {
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
  const int all = gpu.shared_bytes(), half = gpu.half_shared_bytes();
  if (tuning.n_warps > 0) {
    ByteLaunch launch = fit(tuning.n_warps, tuning.n_slots > 0 ? all : half);
    launch.n_blocks = std::min(n_tiles, tuning.n_blocks);
    return launch;
  }
  const bool few = n_tiles * n_chunks <= kFewStages * gpu.n_multiprocessors();
  if (few && p.n_rows > 2) return {};  // bf16 is faster
  ByteLaunch launch = fit(8, half);
  launch.n_blocks = (few ? 1 : 2) * gpu.n_multiprocessors();
  if (launch.n_slots == 0 || (few && p.n_rows * n_chunks * DigitForm::bytes(kType) > half / 3)) {
    launch = fit(16, all);
    launch.n_blocks = gpu.n_multiprocessors();
  }
  launch.n_blocks = std::min(n_tiles, launch.n_blocks);
  return launch;
}

/// In whole numbers; "" if that does not pay, or the rows' digits have no room.
template <QuantType kType, int kRowTiles>
const char* launch_bytes(const QuantProduct& p, const ProductTuning& tuning, const Gpu& gpu) {
  const ByteLaunch launch = choose_launch<kType, kRowTiles>(p, tuning, gpu);
  if (launch.n_slots == 0) return "";
  const LaunchShape shape = {launch.n_blocks, 32 * launch.n_warps, launch.bytes};
  return launch_early(multiply_in_bytes<kType, kRowTiles>, shape, gpu, p, launch.n_slots);
}

/// Up to 16 rows at once, on any GPU.
template <QuantType kType>
const char* launch_16(QuantProduct p, const Gpu& gpu) {
  const int n_rows = p.n_rows;
  for (int row = 0; row < n_rows; row += 16) {
    p.n_rows = std::min(16, n_rows - row);
    const char* error = p.n_rows <= 8 ? launch_few<kType, 1>(p, gpu) : launch_few<kType, 2>(p, gpu);
    if (error != nullptr) return error;
    p.x = static_cast<const std::byte*>(p.x) + std::size_t{16} * static_cast<std::size_t>(p.n_in) * 2;
    const std::size_t n_sums = std::size_t{16} * static_cast<std::size_t>(p.n_out);
    if (p.y != nullptr) {
      p.y += n_sums;
    } else {
      p.gated.out = static_cast<__nv_bfloat16*>(p.gated.out) + n_sums / 2;
    }
  }
  return nullptr;
}

template <QuantType kType>
const char* launch(const QuantProduct& p, const ProductTuning& tuning, const Gpu& gpu) {
  if (p.n_slices > 1) return gpu.is_hopper() ? launch_tiles<kType>(p, tuning, gpu) : "no product in slices";
  if (!gpu.is_hopper() || tuning.plain) return launch_16<kType>(p, gpu);
  if constexpr (kType != QuantType::kMxfp4 &&
                kType != QuantType::kBf16) {  // MXFP4's numbers cost more to make than that saves
    if (p.n_rows <= tuning.most_byte_rows) {
      const char* error =
          p.n_rows <= 2 ? launch_bytes<kType, 1>(p, tuning, gpu) : launch_bytes<kType, 2>(p, tuning, gpu);
      if (error == nullptr || *error != 0) return error;
    }
  }
  constexpr bool kExact = kType == QuantType::kBf16;  // either way
  if (kExact && tuning.least_tile_rows == 0 && least_tile_rows(p.n_in, p.n_out) <= 5)
    return launch_tiles<kType>(p, tuning, gpu);
  if (p.n_rows < (tuning.least_tile_rows > 0 ? tuning.least_tile_rows : least_tile_rows(p.n_in, p.n_out)))
    return launch_16<kType>(p, gpu);
  return launch_tiles<kType>(p, tuning, gpu);
}

}  // namespace

int least_tile_rows(int n_in, int n_out) {
  const std::int64_t n_weights = static_cast<std::int64_t>(n_in) * n_out;
  return n_weights > 1 << 26 ? 5 : n_weights > 1 << 24 ? 9 : 17;
}

int product_slices(const Gpu& gpu, int n_in, int n_out, int n_rows) {
  constexpr int kLeastRows = 17, kMostRows = 64, kMostSlices = 4;
  constexpr int kTile = 128, kStage = 256;  // outputs and, at most, inputs
  if (!gpu.is_hopper() || n_rows < kLeastRows || n_rows > kMostRows) return 1;
  // Of tiles that all blocks share evenly, none may have more to do than then.
  const int n_tiles = (n_out + kTile - 1) / kTile, n_stages = n_in / kStage, n_blocks = gpu.n_multiprocessors();
  const int n = std::min({kMostSlices, n_blocks / n_tiles, n_stages});
  if (n < 2 || (n_stages + n - 1) / n > (n_tiles * n_stages + n_blocks - 1) / n_blocks) return 1;
  return n;
}

std::size_t product_scratch_sums(const Gpu& gpu) {
  // Of each thread block a tile: 128 outputs x 256 rows, or two blocks and 64 rows.
  return static_cast<std::size_t>(gpu.n_multiprocessors()) * 128 * 256;
}

const char* launch_quant_product(const QuantProduct& p, const Gpu& gpu, const ProductTuning& tuning) {
  if (p.n_rows < 1) return "no product of so few rows";
  switch (p.type) {
    case QuantType::kQ4_0:
      return launch<QuantType::kQ4_0>(p, tuning, gpu);
    case QuantType::kQ8_0:
      return launch<QuantType::kQ8_0>(p, tuning, gpu);
    case QuantType::kQ4K:
      return launch<QuantType::kQ4K>(p, tuning, gpu);
    case QuantType::kQ5K:
      return launch<QuantType::kQ5K>(p, tuning, gpu);
    case QuantType::kQ6K:
      return launch<QuantType::kQ6K>(p, tuning, gpu);
    case QuantType::kMxfp4:
      return launch<QuantType::kMxfp4>(p, tuning, gpu);
    case QuantType::kBf16:
      return launch<QuantType::kBf16>(p, tuning, gpu);
    default:
      return "no product for weights of this type";
  }
}

}  // namespace coppice::matmul::cuda
