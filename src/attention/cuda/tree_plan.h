// TreePlan: a SharePlan cut into work items for a GPU. An item is some blocks times up to 128 queries (rows x
// query heads of one key head); the kernel computes each item once for every key head. A row that lies in one item only
// gets its output from there; a row that lies in several has one partial state ("slot") for each, merged afterwards.
//
// Plain data that a kernel reads as it stands, in arrays of fixed capacity: a CUDA graph that was captured once serves
// every batch whose plan fits. Knows no CUDA; tested without a GPU.
//
// Two things make items: long runs are cut into chunks, as long as the cost model finds best; runs of few tokens and
// few rows are bundled, so that 64 fresh branches make a handful of items and not 64.
//
// Invariants
//  1. Each (row, visible token) pair lies in exactly one item, inside that item's interval of the row.
//  2. Every row of an item sees at least one token of it.
//  3. An item has 1 .. 128 queries, and blocks of one run, or up to 32 of several: only the last of a run's may have
//     slots that nobody sees. A row may be listed twice, for two bundled runs.
//  4. Slots [MergeRow::first_slot, +n_slots) belong to one row, in the order of its items, and each slot to one (item,
//     row).
//  5. Equal inputs give equal plans: the kernel adds in the plan's order, so the same batch gives the same bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/plan/share_plan.h"

namespace coppice::attention::cuda {

inline constexpr int kItemBlocks = 32;    ///< that an Item lists
inline constexpr int kItemQueries = 128;  ///< at most: two warpgroups of 64
inline constexpr int kSlimQueries = 8;    ///< up to so many have a way of computing of their own
inline constexpr int kBlockSize = 32;     ///< slots; the only size that the kernel knows

/// What a row sees of an item: tokens [lo, hi), counted from the item's first slot. slot: where its partial state goes;
/// -1: nowhere, the result is final.
struct ItemRow {
  std::int32_t row = 0;
  std::int32_t lo = 0, hi = 0;
  std::int32_t slot = -1;
};

/// Rows [first_row, +n_rows) of TreePlan::rows. All of them see tokens [full_lo, full_hi), so nothing is masked there.
/// The first blocks are listed here, the others by the Items `more`, `more` + 1 ..., 32 each, of which nothing else
/// counts.
struct Item {
  std::int32_t first_row = 0, n_rows = 0;
  std::int32_t n_blocks = 0;
  std::int32_t full_lo = 0, full_hi = 0;
  std::uint32_t ragged = 0;  ///< bit b: block b of the last 32 has slots that nobody sees, which may hold anything
  std::int32_t more = 0;
  std::int32_t unused = 0;
  kv::BlockId blocks[kItemBlocks] = {};
  std::uint8_t seen[kItemBlocks] = {};  ///< of each of the last 32 blocks: slots up to the last that some row sees
};
static_assert(sizeof(Item) == 192);

/// A row with several partial states.
struct MergeRow {
  std::int32_t row = 0;
  std::int32_t first_slot = 0, n_slots = 0;
  std::int32_t unused = 0;
};

/// Capacities of the arrays.
struct TreeLimits {
  int items = 0;
  int item_rows = 0;
  int slots = 0;
  int merge_rows = 0;
};

/// Enough for every step of at most max_rows rows of at most max_sequences sequences, none longer than max_context
/// tokens, however they share.
TreeLimits worst_case(int max_rows, int max_sequences, int max_context);

/// What the kernel costs, in microseconds: fitted so that the cheapest cut of an H100's steps is at most a few
/// hundredths slower than the fastest that was timed (docs/decisions.md, "Tree attention on GPUs").
struct TreeCost {
  int n_workers = 132;   ///< thread blocks that run at once
  int n_kv_head = 8;     ///< items are computed once for each
  int heads_per_kv = 4;  ///< queries of a row in an item
  struct OfItem {
    double item, step;  ///< whatever it holds; four blocks, or what is left of them
  };
  OfItem slim = {0.8, 0.8};    ///< up to kSlimQueries
  OfItem narrow = {4.0, 1.0};  ///< up to half of kItemQueries
  OfItem wide = {4.3, 2.0};
  double memory = 0.017;    ///< a step's blocks of a head, if the memory is all that limits
  double slot = 0.019;      ///< writing and merging the partial states of a row, all heads
  int chunk_blocks = 0;     ///< the longest chunk, a multiple of four; 0: what costs least
  int bundled_blocks = -1;  ///< runs up to this long may share an item; 0: none; -1: what costs least

  /// The kernel for int8 blocks, and for GPUs without wgmma, takes longer.
  void use_plain_kernel() {
    slim = {3.0, 2.8};
    narrow = {3.9, 3.4};
    wide = {12.6, 7.8};
    memory = 0.011;
    slot = 0.012;
  }
};

struct TreePlan {
  TreeLimits limits;
  std::int32_t n_items = 0;
  std::vector<Item> items;  ///< n_items, in the order in which workers take them, then those that list more blocks
  std::vector<ItemRow> rows;
  std::vector<MergeRow> merge_rows;
  std::int32_t n_slots = 0;
};

/// Makes plans, one at a time. Keeps its arrays, so a step in the steady state allocates nothing. Not thread safe.
class TreePlanner {
 public:
  TreePlanner(const TreeLimits& limits, const TreeCost& cost);

  /// nullptr if the plan does not fit into the limits. The result is valid until the next call.
  /// REQUIRES: plan.block_size == kBlockSize.
  const TreePlan* plan(const SharePlan& plan);

 private:
  /// Blocks [first_block, +n_blocks) of a run, read by rows [first_row, +n_rows) of SharePlan::rows; offset: of the
  /// first slot in its run.
  struct Piece {
    std::int32_t first_block = 0, n_blocks = 0;
    std::int32_t first_row = 0, n_rows = 0;
    std::int32_t offset = 0;
  };
  /// Pieces [first, +n) of pieces_, one behind the other.
  struct Group {
    std::int32_t first = 0, n = 0;
    std::int32_t n_blocks = 0;
    std::int32_t n_queries = 0;
    /// More than one of the kernel's warpgroups holds.
    bool is_wide() const { return n_queries > kItemQueries / 2; }
  };

  void find_bands(const SharePlan& plan);
  void cut(int chunk_blocks, int bundled_blocks);
  void open_bundle(const Piece& band, int chunk_blocks);
  void close_bundle();
  double estimate();
  bool write(const SharePlan& plan);
  bool write_item(const SharePlan& plan, const Group& group);
  bool number_slots(const SharePlan& plan);

  TreeCost cost_;
  TreePlan plan_;
  std::vector<Piece> bands_;   ///< runs, cut along their rows only
  std::vector<Piece> pieces_;  ///< of the cut that is being looked at
  std::vector<Group> groups_;
  std::vector<Piece> bundle_;
  std::int32_t bundle_blocks_ = 0, bundle_rows_ = 0;
  std::vector<Item> more_;
  std::int64_t n_lists_ = 0, n_item_rows_ = 0;  ///< TreePlan::items and rows of the cut that is being looked at
  std::vector<double> loads_;                   ///< [groups of workers]
  std::vector<std::int32_t> slots_of_row_;      ///< [rows], then where the next one goes
};

}  // namespace coppice::attention::cuda
