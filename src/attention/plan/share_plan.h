// SharePlan: who reads which blocks in a step. A step's batch is a set of paths in the tree; the plan cuts
// them into *runs*: stretches of neighbouring blocks that the same rows stand on, at any depth. An executor reads each
// run once for all of its rows. Plain data, the same for every executor; knows no tensor library.
//
// One plan serves one layer group. Not thread safe; the executor's thread owns it.
//
// Invariants
//  1. Each (row, visible token) pair lies in exactly one run, and in that run's interval of the row.
//  2. A block appears in one run only; a run's blocks have neighbouring positions and none is the null block.
//  3. A run's rows are ascending; every interval is non-empty and inside the run.
//  4. The structure depends on which table entries are equal, never on the ids' values: physically shuffled blocks give
//     the same runs in the same order: by the first sequence that reads them, then by position.
//  5. Runs are as long as they can be: neighbours in position differ in the sequences that read them, or in a block id.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kv/types.h"

namespace coppice::attention {

/// One sequence's rows in the step: rows [first_row, first_row + n_rows), at positions first_position + i, each seeing
/// the keys up to its own position, as far back as the group allows, and what sees it and is seen both ways.
struct SequenceRows {
  int first_row = 0;
  int n_rows = 0;
  std::int32_t first_position = 0;
  kv::TableView table;                           ///< covers [0, first_position + n_rows)
  std::span<const kv::BothWays> both_ways = {};  ///< inside the rows' positions; ascending, apart
};

/// What one row sees of a run: tokens [lo, hi), counted from the run's first slot.
struct RowInterval {
  std::int32_t row = 0;
  std::int32_t lo = 0, hi = 0;
  friend bool operator==(const RowInterval&, const RowInterval&) = default;
};

/// Blocks [first_block, first_block + n_blocks) of SharePlan::blocks, read by the rows [first_row, first_row + n_rows)
/// of SharePlan::rows.
struct Run {
  std::int32_t first_block = 0, n_blocks = 0;
  std::int32_t first_row = 0, n_rows = 0;
  friend bool operator==(const Run&, const Run&) = default;
};

struct SharePlan {
  int block_size = 0;
  int n_rows = 0;  ///< rows of the step
  std::vector<kv::BlockId> blocks;
  std::vector<Run> runs;
  std::vector<RowInterval> rows;

  std::span<const kv::BlockId> blocks_of(const Run& r) const {
    return std::span(blocks).subspan(static_cast<std::size_t>(r.first_block), static_cast<std::size_t>(r.n_blocks));
  }
  std::span<const RowInterval> rows_of(const Run& r) const {
    return std::span(rows).subspan(static_cast<std::size_t>(r.first_row), static_cast<std::size_t>(r.n_rows));
  }
};

/// Makes plans, and keeps the last one: while the tree stands still, only lengths are refreshed. All arrays keep their
/// capacity; a pool of n blocks costs 4 n bytes.
class SharePlanner {
 public:
  explicit SharePlanner(kv::GroupSpec group) : group_(std::move(group)) {}

  /// REQUIRES: the sequences' rows cover [0, n_rows) in order, at least one each; all tables have one block size;
  /// visible positions have blocks other than the null block; a block has the same index in all tables that hold it.
  /// The result is valid until the next call. If memory runs out (std::bad_alloc), the next one begins anew.
  const SharePlan& plan(std::span<const SequenceRows> sequences);

  /// Plans whose structure was made anew, and those that were only refreshed.
  std::int64_t rebuilt() const { return rebuilt_; }
  std::int64_t refreshed() const { return refreshed_; }

 private:
  /// Table entries [begin, end).
  struct Entries {
    std::int32_t begin = 0, end = 0;
    friend bool operator==(const Entries&, const Entries&) = default;
  };
  /// Entries that `reader` sees and `owner` is the first sequence to see.
  struct Stretch {
    std::int32_t owner = 0, reader = 0;
    Entries entries;
  };
  /// Of a run: the table index of its first block, and its sequences, in readers_.
  struct RunReaders {
    std::int32_t index = 0;
    std::int32_t first_reader = 0, n_readers = 0;
  };

  Entries visible_entries(const SequenceRows& sequence) const;
  bool stands_still(std::span<const SequenceRows> sequences) const;
  void rebuild(std::span<const SequenceRows> sequences);
  void find_stretches(std::span<const SequenceRows> sequences);
  void cut_runs(std::span<const Stretch> of_one_owner, std::span<const kv::BlockId> table);
  void write_intervals(std::span<const SequenceRows> sequences);
  std::int32_t owner_of(kv::BlockId block);
  std::int32_t end_of_owned(std::int32_t owner, std::int32_t index) const;

  kv::GroupSpec group_;
  SharePlan plan_;
  std::vector<Entries> visible_;             ///< [sequences]
  std::vector<RunReaders> readers_of_runs_;  ///< as plan_.runs
  std::vector<std::int32_t> readers_;        ///< sequences, run by run, ascending
  bool whole_ = false;                       ///< the last rebuild came to its end
  std::int64_t rebuilt_ = 0, refreshed_ = 0;

  // Scratch of a rebuild.
  std::vector<Stretch> stretches_;
  std::vector<std::size_t> first_stretch_;  ///< [sequences so far], while stretches_ is in the readers' order
  std::vector<std::int32_t> cuts_;
  std::vector<std::uint32_t> marks_;      ///< [block id]: epoch_ + owner; less than epoch_: not met yet
  std::uint32_t epoch_ = 1, marked_ = 0;  ///< marked_: sequences of the last rebuild
};

}  // namespace coppice::attention
