// Launches of tile_product.cuh's kernels for one type; each type is a translation unit of its own, since they take long
// to compile.
#pragma once

#include <algorithm>

#include "cuda/launch.cuh"
#include "cuda/tensor_map.h"
#include "matmul/cuda/tile_product.cuh"
#include "matmul/cuda/tile_types.h"

namespace coppice::matmul::cuda {

/// A last round of so many tiles of many rows is left whole (TileGrid::share()): what was fastest (docs/decisions.md,
/// "Many rows on GPUs"). Weights of 16 bits that are read at different times don't stay in L2.
template <QuantType kType, int kRows>
int even_round(int n_blocks) {
  if (kRows < 128) return n_blocks;
  return kType == QuantType::kBf16 ? n_blocks / 2 : n_blocks * 7 / 8;
}

/// Rings of half a multiprocessor's memory, so that two blocks work at once or the next launch's fetches its weights
/// already; tiles of many rows need all of it. From kMostCrowdingRows on a block that has a multiprocessor for itself
/// takes more than half, so that two of an early launch can't meet on one while another has none.
template <QuantType kType, int kRows, bool kParts, bool kGated>
const char* launch_tiles_of(const QuantProduct& p, const ProductTuning& tuning, const Gpu& gpu,
                            const PartRows& parts = {}) {
  using Form = TileForm<kType, kRows>;
  CUtensorMap map;
  if (const char* error = coppice::cuda::describe_rows(map, p.x, p.n_rows, p.n_in, kRows)) return error;
  constexpr bool kHalf = tile_blocks(kRows) == 2;
  TileLaunch launch{.parts = parts};
  TileGrid& grid = launch.grid;
  grid.n_stages = (p.n_in + Form::kStage - 1) / Form::kStage;
  grid.n_row_tiles = (p.n_rows + kRows - 1) / kRows;
  grid.n_tiles = (p.n_out + kTileHeight - 1) / kTileHeight * grid.n_row_tiles;
  // A block shall have a few stages at least, or its start and its end take longer than they do.
  constexpr int kFewInputs = 2600;
  const int n_multiprocessors = gpu.n_multiprocessors();
  const bool many = kHalf && static_cast<std::int64_t>(grid.n_tiles) * p.n_in >= 2LL * n_multiprocessors * kFewInputs;
  // Two blocks unpack more at once. Numbers that are there already only have to come: longer rings and fewer parts are
  // better.
  const bool two = many && (kType != QuantType::kBf16 || kParts) && p.n_slices == 1;
  const bool alone = kHalf && !two && (many || p.n_rows > coppice::cuda::kMostCrowdingRows || p.n_slices > 1);
  launch.row_slots = kRows < 64 ? 8 : kHalf && alone ? 6 : 4;
  for (launch.weight_slots = 6; launch.weight_slots > 2; --launch.weight_slots)
    if (Form::bytes(launch.weight_slots, launch.row_slots) <=
        (kHalf && !alone ? gpu.half_shared_bytes() : gpu.shared_bytes()))
      break;
  int n_blocks = tuning.n_tile_blocks > 0 ? tuning.n_tile_blocks : two ? 2 * n_multiprocessors : n_multiprocessors;
  n_blocks = std::min({n_blocks, (kHalf && !alone ? 2 : 1) * n_multiprocessors, grid.n_tiles * grid.n_stages});
  if (p.n_slices > 1) {
    n_blocks = grid.n_tiles * p.n_slices;
    if (kParts || grid.n_row_tiles > 1 || n_blocks > n_multiprocessors || p.n_slices > grid.n_stages)
      return "no product of so many slices";
  } else if (!kParts && alone &&
             grid.n_tiles <= n_blocks) {  // no more blocks than it takes for none to have more stages
    const int n_stages = grid.n_tiles * grid.n_stages, most = (n_stages + n_blocks - 1) / n_blocks;
    n_blocks = (n_stages + most - 1) / most;
  }
  grid.share(n_blocks, even_round<kType, kRows>(n_blocks));
  const int bytes = Form::bytes(launch.weight_slots, launch.row_slots);
  const LaunchShape shape = {.n_blocks = n_blocks,
                             .n_threads = kTileThreads,
                             .shared_bytes = alone ? std::max(bytes, gpu.half_shared_bytes() + 1024) : bytes,
                             .early = p.n_rows <= coppice::cuda::kMostEarlyRows};
  if (kParts) grid.n_tiles /= grid.n_row_tiles;  // the kernel multiplies by the panels, which are as many at least
  return launch_early(multiply_tiles<kType, kRows, kParts, kGated>, shape, gpu, p, launch, map);
}

template <QuantType kType, int kRows>
const char* launch_tiles_of(const QuantProduct& p, const ProductTuning& tuning, const Gpu& gpu) {
  return p.y != nullptr ? launch_tiles_of<kType, kRows, false, false>(p, tuning, gpu)
                        : launch_tiles_of<kType, kRows, false, true>(p, tuning, gpu);
}

template <QuantType kType>
const char* launch_tiles_of(const QuantProduct& p, const ProductTuning& tuning, const Gpu& gpu) {
  if (p.n_rows <= 16) return launch_tiles_of<kType, 16>(p, tuning, gpu);
  if (p.n_rows <= 32) return launch_tiles_of<kType, 32>(p, tuning, gpu);
  if (p.n_rows <= 64) return launch_tiles_of<kType, 64>(p, tuning, gpu);
  // Rows that are computed for nothing, against weights unpacked twice as often.
  const auto rows_with = [&](int tile) { return (p.n_rows + tile - 1) / tile * tile; };
  if (rows_with(128) * 9 / 8 <= rows_with(256)) return launch_tiles_of<kType, 128>(p, tuning, gpu);
  return launch_tiles_of<kType, 256>(p, tuning, gpu);
}

template <QuantType kType>
const char* launch_part_tiles_of(const QuantProduct& p, const PartRows& parts, const Gpu& gpu) {
  if (parts.panel_rows == 64) return launch_tiles_of<kType, 64, true, false>(p, {}, gpu, parts);
  if (parts.panel_rows == 128) return launch_tiles_of<kType, 128, true, false>(p, {}, gpu, parts);
  return "no product of panels of this size";
}

}  // namespace coppice::matmul::cuda
