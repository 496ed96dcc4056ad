#include "executor/ggml/step_plan.h"

#include <algorithm>
#include <numeric>

namespace coppice::executor {

namespace {

/// What gathering a key costs, in rows that attend to it (docs/adr/0002-gather.md).
constexpr std::int64_t kGatherCost = 4;
/// Streams of one call are padded to the longest; none may be shorter than 3/4 of it.
constexpr int kStreamSlackNum = 3, kStreamSlackDen = 4;

int ceil_div(std::int64_t a, std::int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}
int round_up(int n, int unit) {
  return (n + unit - 1) / unit * unit;
}

/// Few lengths, so that graphs live long: making one costs less than 1 ms, a sequence needs one in 128 steps or more.
int padded_blocks(int n) {
  return round_up(n, n <= 64 ? 4 : n <= 256 ? 8 : 32);
}

/// Rows of a matrix product cost about the same each, so few are wasted.
int padded_rows(int n) {
  return n <= 16 ? n : n <= 64 ? round_up(n, 4) : round_up(n, 32);
}

/// Stable. (std::stable_sort of libstdc++ 12 calls what C++23 took away.)
template <class T, class Key>
void sort_by(std::vector<T>& items, Key key) {
  std::vector<std::pair<int, std::size_t>> places;
  for (std::size_t i = 0; i < items.size(); ++i) places.emplace_back(key(items[i]), i);
  std::ranges::sort(places);
  std::vector<T> sorted;
  for (const auto& [k, i] : places) sorted.push_back(std::move(items[i]));
  items = std::move(sorted);
}

class Planner {
 public:
  Planner(const Batch& batch, std::span<const kv::GroupSpec> groups, const PlanPolicy& policy)
      : batch_(batch),
        groups_(groups),
        policy_(policy),
        block_size_(batch.sequences.front().tables.front().block_size) {}

  StepPlan plan() {
    if (policy_.units) {
      order();
      cluster();
      emit();
    } else {
      emit_all();
    }
    pad_rows();
    outputs();
    return std::move(plan_);
  }

 private:
  const BatchSequence& seq(int i) const { return batch_.sequences[static_cast<std::size_t>(i)]; }
  int blocks_of(int s) const { return ceil_div(std::int64_t{seq(s).first_position} + seq(s).n_rows, block_size_); }

  /// Leading table entries that two sequences have in common, in a group.
  int common(int a, int b, std::size_t group) const {
    const auto x = seq(a).tables[group].blocks, y = seq(b).tables[group].blocks;
    const int n = std::min(blocks_of(a), blocks_of(b));
    int i = 0;
    while (i < n && x[static_cast<std::size_t>(i)] == y[static_cast<std::size_t>(i)]) ++i;
    return i;
  }

  /// Sequences that share blocks come to stand side by side. Those that share none keep the batch's order, so that
  /// block ids decide nothing: each is sorted under the first sequence with its first block.
  void order() {
    const int n = static_cast<int>(batch_.sequences.size());
    order_.resize(static_cast<std::size_t>(n));
    std::iota(order_.begin(), order_.end(), 0);
    if (!policy_.share) return;
    for (std::size_t i = 1; i < order_.size(); ++i) {  // insertion behind the sequence with the longest common prefix
      const int s = order_[i];
      std::size_t best = i;
      int longest = 0;
      for (std::size_t j = 0; j < i; ++j) {
        if (const int c = common(order_[j], s, 0); c >= longest && c > 0) longest = c, best = j + 1;
      }
      std::rotate(order_.begin() + static_cast<std::ptrdiff_t>(best), order_.begin() + static_cast<std::ptrdiff_t>(i),
                  order_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }

  void cluster() {
    std::int64_t keys = 0, rows = 0;  // of the cluster being filled, in blocks
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const int s = order_[i];
      const std::int64_t own = blocks_of(s), own_rows = seq(s).n_rows;
      const std::int64_t shared = policy_.share && i > 0 ? common(order_[i - 1], s, 0) : 0;
      const std::int64_t joined = keys + own - shared;
      if (shared > 0 &&
          joined * (kGatherCost + rows + own_rows) < keys * (kGatherCost + rows) + own * (kGatherCost + own_rows)) {
        clusters_.back().push_back(s);
        keys = joined;
        rows += own_rows;
      } else {
        clusters_.push_back({s});
        keys = own;
        rows = own_rows;
      }
    }
  }

  /// Streams first, then sharing groups, then chunks: padding rows join the last unit.
  void emit() {
    std::vector<int> lone;
    std::vector<std::vector<int>> rest;
    for (const auto& c : clusters_) {
      if (policy_.share && c.size() == 1 && seq(c[0]).n_rows == 1) {
        lone.push_back(c[0]);
      } else {
        rest.push_back(c);
      }
    }
    sort_by(lone, [&](int q) { return -blocks_of(q); });
    for (std::size_t i = 0; i < lone.size();) {
      std::size_t end = i;
      while (end < lone.size() && blocks_of(lone[end]) * kStreamSlackDen >= blocks_of(lone[i]) * kStreamSlackNum) ++end;
      emit_unit({lone.begin() + static_cast<std::ptrdiff_t>(i), lone.begin() + static_cast<std::ptrdiff_t>(end)}, true);
      i = end;
    }
    sort_by(rest, [&](const auto& c) { return rows_of(c); });
    for (const auto& c : rest) emit_unit(c, false);
  }

  void emit_all() {
    plan_.batch_row.resize(batch_.tokens.size());
    std::iota(plan_.batch_row.begin(), plan_.batch_row.end(), 0);
    plan_.units.emplace_back();
    plan_.shape.units.push_back({.n_streams = 1, .n_rows = batch_.n_rows(), .keys = {}});
  }

  int rows_of(const std::vector<int>& sequences) const {
    int n = 0;
    for (const int s : sequences) n += seq(s).n_rows;
    return n;
  }

  void emit_unit(const std::vector<int>& sequences, bool streams) {
    Unit unit;
    unit.first_row = static_cast<int>(plan_.batch_row.size());
    UnitShape shape;
    shape.n_streams = streams ? static_cast<int>(sequences.size()) : 1;
    shape.n_rows = streams ? 1 : rows_of(sequences);
    for (const int s : sequences) {
      unit.sequences.push_back({s, static_cast<int>(plan_.batch_row.size())});
      for (int r = 0; r < seq(s).n_rows; ++r) plan_.batch_row.push_back(seq(s).first_row + r);
    }
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      shape.keys.push_back(streams ? lay_streams(unit, g) : lay_union(unit, g));
    }
    plan_.units.push_back(std::move(unit));
    plan_.shape.units.push_back(std::move(shape));
  }

  /// Table entries [first, blocks_of) that some row of the sequence sees.
  int first_block(int s, std::size_t g) const {
    return static_cast<int>(first_visible(groups_[g], seq(s).first_position) / block_size_);
  }

  int pad_keys(int blocks, int tokens) const { return policy_.pad ? padded_blocks(blocks) * block_size_ : tokens; }

  /// The union of the sequences' blocks, each once. Returns the stream's keys.
  int lay_union(Unit& unit, std::size_t g) {
    std::vector<kv::BlockId> blocks;
    std::vector<KeyColumns> all;
    int tokens = 0;
    for (std::size_t i = 0; i < unit.sequences.size(); ++i) {
      const int s = unit.sequences[i].sequence;
      const auto table = seq(s).tables[g].blocks;
      const int shared = i > 0 ? common(unit.sequences[i - 1].sequence, s, g) : 0;
      KeyColumns c;
      c.columns.assign(static_cast<std::size_t>(blocks_of(s)), -1);
      for (int b = first_block(s, g); b < blocks_of(s); ++b) {
        const auto at = static_cast<std::size_t>(b);
        if (b < shared && all.back().columns[at] >= 0) {
          c.columns[at] = all.back().columns[at];
        } else if (table[at] != kv::kNullBlock) {
          c.columns[at] = static_cast<int>(blocks.size());
          blocks.push_back(table[at]);
          tokens = (c.columns[at] + 1) * block_size_;
          if (b + 1 == blocks_of(s)) {
            const int filled = static_cast<int>((seq(s).first_position + seq(s).n_rows - 1) % block_size_) + 1;
            tokens -= block_size_ - filled;
          }
        }
      }
      all.push_back(std::move(c));
    }
    const int keys = pad_keys(static_cast<int>(blocks.size()), tokens);
    blocks.resize(static_cast<std::size_t>(ceil_div(keys, block_size_)), kv::kNullBlock);
    unit.blocks.push_back(std::move(blocks));
    unit.columns.push_back(std::move(all));
    return keys;
  }

  /// Each sequence's own blocks, one stream after the other, all padded alike. Returns a stream's keys.
  int lay_streams(Unit& unit, std::size_t g) {
    int longest = 0;
    for (const UnitSequence& u : unit.sequences) {
      longest = std::max(longest, blocks_of(u.sequence) - first_block(u.sequence, g));
    }
    const int keys = padded_blocks(longest) * block_size_;
    std::vector<kv::BlockId> blocks;
    std::vector<KeyColumns> all;
    for (const UnitSequence& u : unit.sequences) {
      const auto table = seq(u.sequence).tables[g].blocks;
      const int first = first_block(u.sequence, g);
      KeyColumns c;
      c.columns.assign(static_cast<std::size_t>(blocks_of(u.sequence)), -1);
      for (int b = first; b < blocks_of(u.sequence); ++b) {
        c.columns[static_cast<std::size_t>(b)] = b - first;
        blocks.push_back(table[static_cast<std::size_t>(b)]);
      }
      all.push_back(std::move(c));
      blocks.resize(all.size() * static_cast<std::size_t>(keys / block_size_), kv::kNullBlock);
    }
    unit.blocks.push_back(std::move(blocks));
    unit.columns.push_back(std::move(all));
    return keys;
  }

  void pad_rows() {
    const int n = static_cast<int>(plan_.batch_row.size());
    UnitShape& last = plan_.shape.units.back();
    if (policy_.pad && last.n_streams == 1) {
      const int padded = padded_rows(n);
      last.n_rows += padded - n;
      plan_.batch_row.resize(static_cast<std::size_t>(padded), -1);
    }
    plan_.shape.n_rows = static_cast<int>(plan_.batch_row.size());
  }

  void outputs() {
    std::vector<std::int32_t> place(batch_.tokens.size(), -1);
    for (std::size_t i = 0; i < plan_.batch_row.size(); ++i) {
      if (plan_.batch_row[i] >= 0) place[static_cast<std::size_t>(plan_.batch_row[i])] = static_cast<std::int32_t>(i);
    }
    for (const std::int32_t r : batch_.logit_rows) plan_.output_rows.push_back(place[static_cast<std::size_t>(r)]);
    if (const int n = static_cast<int>(plan_.output_rows.size()); policy_.pad && n > 0) {
      plan_.output_rows.resize(static_cast<std::size_t>(std::min(padded_rows(n), plan_.shape.n_rows)), 0);
    }
    plan_.shape.n_outputs = static_cast<int>(plan_.output_rows.size());
  }

  const Batch& batch_;
  std::span<const kv::GroupSpec> groups_;
  PlanPolicy policy_;
  int block_size_;
  std::vector<int> order_;
  std::vector<std::vector<int>> clusters_;
  StepPlan plan_;
};

}  // namespace

StepPlan plan_step(const Batch& batch, std::span<const kv::GroupSpec> groups, const PlanPolicy& policy) {
  return Planner(batch, groups, policy).plan();
}

}  // namespace coppice::executor
