// Schedule: a SharePlan cut into tiles for workers. A tile is a stretch of a run's blocks times some of the run's
// rows; a worker reads the tile's keys and values once and leaves one partial state per row and head. Rows whose keys
// were cut into several tiles are merged afterwards. Plain data; knows no tensor library.
//
// Workers claim *jobs*, lists of neighbouring tiles of about equal cost, dearest first, from a shared counter: a long
// run is split so that many workers can share it, tiny ones are bundled. The arrays keep their capacity between steps.
//
// The cuts depend on the plan and the cost model alone and never on how many workers there are in a step, so the same
// rows give the same bits on any number. Executors of at most two threads have another model than larger ones have.
//
// How it is cut: a run that costs much is cut into 2, 4, 8 or more pieces, none so small that the cut would cost more
// than half of it, nor smaller than the whole over CostModel::pieces. Where workers are many they share a job's key
// heads. (An even cut of the whole, by McNaughton's rule, splits more.)
//
// Invariants
//  1. Tiles of a run cover each (block, row) pair of it that holds a visible token exactly once; a tile in which a row
//     sees nothing may still list it (its partial state is then empty), but not as its first or last row.
//  2. Jobs partition the tiles; none is empty.
//  3. Every row of the step has at least one partial (rows that see nothing do not exist: a row sees its own key).
//  4. Partials are numbered 0 .. n_partials - 1, each written by exactly one (tile, row) and listed for just one row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/plan/share_plan.h"

namespace coppice::attention {

/// Blocks [first_block, +n_blocks) of SharePlan::blocks x rows [first_row, +n_rows) of SharePlan::rows. `run_offset`
/// is the tile's first slot counted from its run's first slot: intervals in `rows` are relative to the run. The tile's
/// i-th row writes partial first_partial + i.
struct Tile {
  std::int32_t first_block = 0, n_blocks = 0;
  std::int32_t first_row = 0, n_rows = 0;
  std::int32_t run_offset = 0;
  std::int32_t first_partial = 0;
};

/// Tiles [first_tile, first_tile + n_tiles), and what they cost together.
struct Job {
  std::int32_t first_tile = 0, n_tiles = 0;
  double cost = 0.0;
};

/// What a tile costs, in any unit: n_blocks * (block + n_rows * row) + overhead. Visible keys only are counted for rows
/// (a causal chunk's early rows cost less).
struct CostModel {
  double block = 4.0;     ///< loading and converting a block
  double row = 1.0;       ///< one row's attention over a block
  double overhead = 8.0;  ///< of a tile, whatever it holds
  double partial = 5.0;   ///< one row's partial state, written and merged: what a cut costs for each row that it splits
  int pieces = 8;         ///< a run that is all there is to do is cut into so many at most: a power of 2
  int max_tile_rows = 64;  ///< the kernel's bound
};

struct Schedule {
  std::vector<Tile> tiles;
  std::vector<Job> jobs;
  std::int32_t n_partials = 0;
  std::vector<std::int32_t> first_partial_of_row;  ///< [n_rows + 1], into partials
  std::vector<std::int32_t> partials;              ///< partial numbers, row by row

  std::span<const std::int32_t> partials_of(int row) const {
    const auto first = static_cast<std::size_t>(first_partial_of_row[static_cast<std::size_t>(row)]);
    const auto end = static_cast<std::size_t>(first_partial_of_row[static_cast<std::size_t>(row) + 1]);
    return std::span(partials).subspan(first, end - first);
  }
};

/// Refills `schedule`. Runs are split along their rows only where they have more than max_tile_rows: a block that is
/// loaded once more costs more than a partial state.
/// REQUIRES: all costs >= 0, block > 0.
void make_schedule(const SharePlan& plan, const CostModel& cost, Schedule& schedule);

}  // namespace coppice::attention
