#include "attention/cuda/tree_plan.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>

namespace coppice::attention::cuda {

namespace {

/// Blocks that the kernel computes at a time.
constexpr int kStepBlocks = 4;
/// Chunks that are tried, in blocks, the longest first.
constexpr std::array kChunks = {1024, 512, 384, 256, 192, 128, 96, 64, 48, 40, 32, 28, 24, 20, 16, 12, 8, 4};
/// The longest runs that are bundled, in blocks: each is tried.
constexpr std::array kBundled = {2, 8};
/// Runs up to this long are bundled with many others.
constexpr int kShortBlocks = 2;
/// With more items than this for each worker, uneven shares are no matter any more, and only the sum is looked at.
constexpr int kManyItems = 16;

int ceil_div(std::int64_t a, std::int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

}  // namespace

// A row sees at most c = ceil(context / 32) + 1 blocks of at most 2 * sequences runs, each of which is cut into chunks
// of 32 (at worst one begun chunk more for each run). The same bounds the items: each has a row.
TreeLimits worst_case(int max_rows, int max_sequences, int max_context) {
  const int blocks = ceil_div(max_context, kBlockSize) + 1;
  const int runs = std::min(2 * max_sequences, blocks);
  const int in_items = max_rows * (ceil_div(blocks, kItemBlocks) + runs);
  return {.items = in_items, .item_rows = in_items, .slots = in_items, .merge_rows = max_rows};
}

TreePlanner::TreePlanner(const TreeLimits& limits, const TreeCost& cost) : cost_(cost) {
  plan_.limits = limits;
  plan_.items.reserve(static_cast<std::size_t>(limits.items));
  plan_.rows.reserve(static_cast<std::size_t>(limits.item_rows));
  plan_.merge_rows.reserve(static_cast<std::size_t>(limits.merge_rows));
}

const TreePlan* TreePlanner::plan(const SharePlan& plan) {
  find_bands(plan);
  int chunk = cost_.chunk_blocks, bundled = cost_.bundled_blocks;
  double least = std::numeric_limits<double>::infinity();
  for (const int bundled_blocks : kBundled) {
    if (cost_.bundled_blocks >= 0 && bundled_blocks != kBundled.front()) break;
    std::size_t n_before = 0;
    for (const int chunk_blocks : kChunks) {
      if (cost_.chunk_blocks > 0 && chunk_blocks != kChunks.front()) break;
      const int tried_chunk = cost_.chunk_blocks > 0 ? cost_.chunk_blocks : chunk_blocks;
      const int tried_bundled = cost_.bundled_blocks >= 0 ? cost_.bundled_blocks : bundled_blocks;
      cut(tried_chunk, tried_bundled);
      if (n_lists_ > plan_.limits.items || n_item_rows_ > plan_.limits.item_rows) break;  // shorter ones are more
      if (groups_.size() == n_before) continue;                                           // most likely the same
      n_before = groups_.size();
      const double cost = estimate();
      if (cost >= least) continue;
      least = cost;
      chunk = tried_chunk;
      bundled = tried_bundled;
    }
  }
  if (chunk == 0) chunk = kChunks.front();
  if (bundled < 0) bundled = kBundled.front();
  cut(chunk, bundled);
  return write(plan) ? &plan_ : nullptr;
}

/// Cuts runs into bands of rows that fit into an item, and each to the blocks that its rows see.
void TreePlanner::find_bands(const SharePlan& plan) {
  bands_.clear();
  const int most_rows = std::max(1, kItemQueries / cost_.heads_per_kv);
  for (const Run& run : plan.runs) {
    for (int at = 0; at < run.n_rows; at += most_rows) {
      Piece band{.first_row = run.first_row + at, .n_rows = std::min(most_rows, run.n_rows - at)};
      std::int32_t lo = std::numeric_limits<std::int32_t>::max(), hi = 0;
      for (const RowInterval& r : plan.rows_of({0, 0, band.first_row, band.n_rows})) {
        lo = std::min(lo, r.lo);
        hi = std::max(hi, r.hi);
      }
      const int first = lo / kBlockSize;
      band.first_block = run.first_block + first;
      band.n_blocks = ceil_div(hi, kBlockSize) - first;
      band.offset = first * kBlockSize;
      bands_.push_back(band);
    }
  }
}

/// Fills groups_ with the items of a cut into chunks of at most so many blocks, dearest first. Runs up to
/// bundled_blocks are bundled if their rows are few; longer ones than kShortBlocks only into slim items.
void TreePlanner::cut(int chunk_blocks, int bundled_blocks) {
  pieces_.clear();
  groups_.clear();
  n_lists_ = n_item_rows_ = 0;
  for (const Piece& band : bands_) {
    n_item_rows_ += std::int64_t{band.n_rows} * ceil_div(band.n_blocks, chunk_blocks);
    const int n_queries = band.n_rows * cost_.heads_per_kv;
    const int most = band.n_blocks <= kShortBlocks ? kItemQueries / 4 : kSlimQueries;
    if (band.n_blocks <= std::min(bundled_blocks, chunk_blocks) && n_queries <= most) {
      open_bundle(band, std::min(chunk_blocks, kItemBlocks));
      continue;
    }
    const int n = ceil_div(band.n_blocks, chunk_blocks);
    const int steps = ceil_div(band.n_blocks, kStepBlocks);
    for (int i = 0; i < n; ++i) {  // even shares, in steps
      const int from = kStepBlocks * (steps * i / n), to = std::min(band.n_blocks, kStepBlocks * (steps * (i + 1) / n));
      if (from >= to) continue;
      Piece piece = band;
      piece.first_block += from;
      piece.offset += from * kBlockSize;
      piece.n_blocks = to - from;
      n_lists_ += ceil_div(piece.n_blocks, kItemBlocks);
      groups_.push_back({static_cast<std::int32_t>(pieces_.size()), 1, piece.n_blocks, n_queries});
      pieces_.push_back(piece);
    }
  }
  close_bundle();
  std::ranges::sort(groups_, [](const Group& a, const Group& b) {
    if (a.is_wide() != b.is_wide()) return a.is_wide();
    return a.n_blocks != b.n_blocks ? a.n_blocks > b.n_blocks : a.first < b.first;
  });
}

/// Puts a short band into the open bundle, after closing one that has no room for it.
void TreePlanner::open_bundle(const Piece& band, int chunk_blocks) {
  const int n_queries = (bundle_rows_ + band.n_rows) * cost_.heads_per_kv;
  const int most = band.n_blocks <= kShortBlocks ? kItemQueries / 2 : kSlimQueries;
  if (bundle_blocks_ + band.n_blocks > chunk_blocks || n_queries > most) close_bundle();
  bundle_.push_back(band);
  bundle_blocks_ += band.n_blocks;
  bundle_rows_ += band.n_rows;
}

void TreePlanner::close_bundle() {
  if (bundle_.empty()) return;
  ++n_lists_;
  groups_.push_back({static_cast<std::int32_t>(pieces_.size()), static_cast<std::int32_t>(bundle_.size()),
                     bundle_blocks_, bundle_rows_ * cost_.heads_per_kv});
  pieces_.insert(pieces_.end(), bundle_.begin(), bundle_.end());
  bundle_.clear();
  bundle_blocks_ = bundle_rows_ = 0;
}

/// When the last worker is through, if each takes the next item as soon as it is free, but no sooner than the memory
/// allows. All key heads of an item cost the same, so groups of n_kv_head workers stand for single ones.
double TreePlanner::estimate() {
  const auto teams = static_cast<std::size_t>(std::max(1, cost_.n_workers / cost_.n_kv_head));
  double last = 0.0;
  const auto cost_of = [&](const Group& g) {
    const TreeCost::OfItem& of = g.is_wide() ? cost_.wide : g.n_queries > kSlimQueries ? cost_.narrow : cost_.slim;
    return of.item + of.step * ceil_div(g.n_blocks, kStepBlocks);
  };
  if (groups_.size() > teams * kManyItems) {
    for (const Group& g : groups_) last += cost_of(g) * cost_.n_kv_head / cost_.n_workers;
  } else {
    loads_.assign(teams, 0.0);  // a heap, the least load in front
    for (const Group& g : groups_) {
      std::ranges::pop_heap(loads_, std::greater{});
      last = std::max(last, loads_.back() += cost_of(g));
      std::ranges::push_heap(loads_, std::greater{});
    }
  }
  double reading = 0.0;
  for (const Group& g : groups_) reading += cost_.memory * cost_.n_kv_head * ceil_div(g.n_blocks, kStepBlocks);
  return std::max(last, reading) + cost_.slot * static_cast<double>(n_item_rows_);
}

bool TreePlanner::write(const SharePlan& plan) {
  plan_.items.clear();
  plan_.rows.clear();
  more_.clear();
  for (const Group& group : groups_) {
    if (!write_item(plan, group)) return false;
  }
  plan_.n_items = static_cast<std::int32_t>(plan_.items.size());
  for (Item& item : plan_.items) item.more += plan_.n_items;
  plan_.items.insert(plan_.items.end(), more_.begin(), more_.end());
  return number_slots(plan);
}

/// False if the arrays are full.
bool TreePlanner::write_item(const SharePlan& plan, const Group& group) {
  Item item{.first_row = static_cast<std::int32_t>(plan_.rows.size()), .more = static_cast<std::int32_t>(more_.size())};
  std::int32_t full_lo = 0, full_hi = std::numeric_limits<std::int32_t>::max();
  for (int p = group.first; p < group.first + group.n; ++p) {
    const Piece& piece = pieces_[static_cast<std::size_t>(p)];
    const std::int32_t base = item.n_blocks * kBlockSize, end = piece.n_blocks * kBlockSize;
    std::int32_t seen = 0;
    for (const RowInterval& r : plan.rows_of({0, 0, piece.first_row, piece.n_rows})) {
      const std::int32_t lo = std::max(0, r.lo - piece.offset), hi = std::min(end, r.hi - piece.offset);
      if (lo >= hi) continue;
      if (std::ssize(plan_.rows) == plan_.limits.item_rows) return false;
      plan_.rows.push_back({.row = r.row, .lo = base + lo, .hi = base + hi});
      full_lo = std::max(full_lo, base + lo);
      full_hi = std::min(full_hi, base + hi);
      seen = std::max(seen, hi);
      ++item.n_rows;
    }
    const int n_blocks = ceil_div(seen, kBlockSize), tail = std::max(0, item.n_blocks + n_blocks - kItemBlocks);
    for (int b = 0; b < n_blocks; ++b, ++item.n_blocks) {
      const int at = item.n_blocks % kItemBlocks;
      if (at == 0 && item.n_blocks > 0) more_.emplace_back();
      (item.n_blocks < kItemBlocks ? item : more_.back()).blocks[at] =
          plan.blocks[static_cast<std::size_t>(piece.first_block + b)];
      if (item.n_blocks < tail) continue;
      const int of_block = std::min(seen - b * kBlockSize, kBlockSize);
      item.seen[item.n_blocks - tail] = static_cast<std::uint8_t>(of_block);
      if (of_block < kBlockSize) item.ragged |= 1U << (item.n_blocks - tail);
    }
  }
  if (item.n_rows == 0) return true;  // between the windows of the band's first and last rows
  item.full_lo = full_lo;
  item.full_hi = std::max(full_lo, full_hi);
  plan_.items.push_back(item);
  return std::ssize(plan_.items) + std::ssize(more_) <= plan_.limits.items;
}

/// Rows in several items get a slot in each. False if there are more than the limits allow.
bool TreePlanner::number_slots(const SharePlan& plan) {
  slots_of_row_.assign(static_cast<std::size_t>(plan.n_rows), 0);
  for (const ItemRow& r : plan_.rows) ++slots_of_row_[static_cast<std::size_t>(r.row)];
  plan_.merge_rows.clear();
  plan_.n_slots = 0;
  for (std::int32_t row = 0; row < plan.n_rows; ++row) {
    std::int32_t& n = slots_of_row_[static_cast<std::size_t>(row)];
    if (n < 2) {
      n = -1;
      continue;
    }
    if (plan_.n_slots + n > plan_.limits.slots || std::ssize(plan_.merge_rows) == plan_.limits.merge_rows) return false;
    plan_.merge_rows.push_back({.row = row, .first_slot = plan_.n_slots, .n_slots = n});
    const std::int32_t first = plan_.n_slots;
    plan_.n_slots += n;
    n = first;
  }
  for (ItemRow& r : plan_.rows) {
    std::int32_t& next = slots_of_row_[static_cast<std::size_t>(r.row)];
    if (next >= 0) r.slot = next++;
  }
  return true;
}

}  // namespace coppice::attention::cuda
