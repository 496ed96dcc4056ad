// Which part of a product each thread block computes. A tile is 128 outputs x some rows; its stages are slices of its inputs. Whole tiles
// go to the blocks in turn; those that would make the last round uneven come first, and their stages are shared out evenly
// ("stream-K"; Osama et al. 2023): a block gets a run of them, across tiles, so of a tile that several share, the block with the first
// stages finishes its run with it, while the others begin theirs with it.
#pragma once

#include <cstdint>

namespace coppice::matmul::cuda {

struct TileGrid {
  int n_stages;     ///< of a tile
  int n_row_tiles;  ///< tile t has row tile t % n_row_tiles
  int n_shared;     ///< tiles 0 .. n_shared - 1 are shared out by stages
  int n_tiles;

  /// The first of the shared stages that are block b's; those of tile t are from t * n_stages on.
  __host__ __device__ int first_of(int b, int n_blocks) const {
    return static_cast<int>(static_cast<std::int64_t>(n_shared) * n_stages * b / n_blocks);
  }
};

/// Stages [first, end) of a tile.
struct Segment {
  int tile, first, end;
};

struct TileWalk {
  const TileGrid& grid;
  int n_blocks;
  int at, end;  ///< in the shared stages
  int whole;    ///< the next whole tile

  __device__ TileWalk(const TileGrid& of, int block, int blocks)
      : grid(of),
        n_blocks(blocks),
        at(of.first_of(block, blocks)),
        end(of.first_of(block + 1, blocks)),
        whole(of.n_shared + block) {}

  __device__ bool next(Segment& s) {
    if (at < end) {
      s.tile = at / grid.n_stages;
      s.first = at - s.tile * grid.n_stages;
      s.end = min(grid.n_stages, s.first + end - at);
      at += s.end - s.first;
      return true;
    }
    if (whole >= grid.n_tiles) return false;
    s = {whole, 0, grid.n_stages};
    whole += n_blocks;
    return true;
  }
};

}  // namespace coppice::matmul::cuda
