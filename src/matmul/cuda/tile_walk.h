// Which part of a product each thread block computes. A tile is 128 outputs x some rows; its stages are slices of its
// inputs. Whole tiles go to the blocks in turn; those that would make the last round uneven come first, and their
// stages are shared out evenly
// ("stream-K"; Osama et al. 2023): a block gets a run of them, across tiles, so of a tile that several share, the block
// with the first stages finishes its run with it, while the others begin theirs with it. The first waits for the
// others' parts, so each must have some: no run is empty. Knows no CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

namespace coppice::matmul::cuda {

struct TileGrid {
  int n_stages;     ///< of a tile
  int n_row_tiles;  ///< tile t has row tile t % n_row_tiles
  int n_shared;     ///< tiles 0 .. n_shared - 1 are shared out by stages
  int n_tiles;

  /// Sets n_shared. A last round of `even` tiles or more is even enough to be left whole: then blocks that meet the
  /// same weights do so at the same time, and these come from memory once. Where the uneven tiles have fewer stages
  /// than there are blocks, a whole round is shared out with them. REQUIRES: n_blocks <= n_tiles * n_stages.
  constexpr void share(int n_blocks, int even) {
    n_shared = n_tiles % n_blocks;
    if (n_shared >= even) n_shared = 0;
    if (n_shared > 0 && n_shared < n_tiles && n_shared * n_stages < n_blocks) n_shared += n_blocks;
  }
  /// The first of the shared stages that are block b's; those of tile t are from t * n_stages on.
  constexpr int first_of(int b, int n_blocks) const {
    return static_cast<int>(static_cast<std::int64_t>(n_shared) * n_stages * b / n_blocks);
  }
  /// The last block that has stages of a shared tile. REQUIRES: `block` has some.
  constexpr int last_with(int tile, int block, int n_blocks) const {
    while (first_of(block + 1, n_blocks) < (tile + 1) * n_stages) ++block;
    return block;
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

  constexpr TileWalk(const TileGrid& of, int block, int blocks)
      : grid(of),
        n_blocks(blocks),
        at(of.first_of(block, blocks)),
        end(of.first_of(block + 1, blocks)),
        whole(of.n_shared + block) {}

  constexpr bool next(Segment& s) {
    if (at < end) {
      s.tile = at / grid.n_stages;
      s.first = at - s.tile * grid.n_stages;
      s.end = std::min(grid.n_stages, s.first + end - at);
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
