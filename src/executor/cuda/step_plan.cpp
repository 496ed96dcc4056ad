#include "executor/cuda/step_plan.h"

#include <algorithm>
#include <cstdlib>

namespace coppice::executor::cuda {

namespace {

using attention::cuda::TreeLimits;
using attention::cuda::TreePlan;

/// Slots that some row sees, each once.
std::uint64_t visible_slots(const attention::SharePlan& plan) {
  std::uint64_t slots = 0;
  for (const attention::Run& run : plan.runs) {
    const auto rows = plan.rows_of(run);
    slots += static_cast<std::uint64_t>(std::ranges::max(rows, {}, &attention::RowInterval::hi).hi -
                                        std::ranges::min(rows, {}, &attention::RowInterval::lo).lo);
  }
  return slots;
}

/// Whether a sequence may be cut before a position: no row in front of it sees what is behind.
bool may_cut(const BatchSequence& s, std::int64_t position) {
  return kv::end_visible(position - 1, s.both_ways) <= position;
}

/// Slots that the items' copies bring in.
std::uint64_t fetched_slots(const TreePlan& plan) {
  std::uint64_t blocks = 0;
  for (const attention::cuda::Item& item : plan.items) blocks += static_cast<std::uint64_t>(item.n_blocks);
  return blocks * attention::cuda::kBlockSize;
}

}  // namespace

HeadCounts most_heads(std::span<const AttentionGroup> groups) {
  HeadCounts most;
  for (const AttentionGroup& g : groups) {
    most.heads = std::max(most.heads, g.heads.n_head);
    most.values = std::max(most.values, g.heads.n_head * g.heads.head_dim);
  }
  return most;
}

StepLimits step_limits(int max_rows, int max_sequences, int context, std::span<const AttentionGroup> groups,
                       std::size_t state_bytes) {
  const TreeLimits least = attention::cuda::worst_case(1, 1, context);
  TreeLimits limits = attention::cuda::worst_case(max_rows, max_sequences, context);
  const HeadCounts most = most_heads(groups);
  const std::size_t of_slot = static_cast<std::size_t>(most.values + 2 * most.heads) * sizeof(float);
  const int fit = static_cast<int>(std::min<std::size_t>(state_bytes / of_slot, 1 << 20));
  limits.slots = std::max(least.slots, std::min(limits.slots, fit));
  limits.item_rows = limits.slots + max_rows;  // a row without a partial state has one item
  limits.items = std::max(least.items, std::min(limits.items, std::max(max_rows, 1 << 14)));
  return {max_rows, max_sequences, limits};
}

std::size_t state_bytes(std::size_t gpu_bytes) {
  return std::max(std::size_t{256} << 20, gpu_bytes / 128);
}

StepPlan::StepPlan(const StepLimits& limits, std::span<const AttentionGroup> groups, int n_workers, int position_size,
                   bool plain_kernel)
    : max_rows_(limits.max_rows), position_size_(position_size) {
  for (const AttentionGroup& g : groups) {
    attention::cuda::TreeCost cost = {
        .n_workers = n_workers, .n_kv_head = g.heads.n_kv_head, .heads_per_kv = g.heads.heads_per_kv()};
    if (plain_kernel) cost.use_plain_kernel();
    planners_.push_back(
        {attention::SharePlanner(g.kv), attention::cuda::TreePlanner(limits.tree, cost), g.bytes_per_token(), {}});
  }
  groups_.resize(groups.size());
}

void StepPlan::find_positions(const Batch& batch) {
  positions_.clear();
  if (!batch.positions.empty()) {
    for (const RopePosition& p : batch.positions) positions_.insert(positions_.end(), {p.time, p.height, p.width});
    return;
  }
  for (const BatchSequence& s : batch.sequences) {
    for (int i = 0; i < s.n_rows; ++i)
      positions_.insert(positions_.end(), static_cast<std::size_t>(position_size_), s.first_position + i);
  }
}

bool StepPlan::plan(const Batch& batch) {
  if (batch.n_rows() > max_rows_) return false;
  find_positions(batch);
  KvTraffic step;
  for (std::size_t g = 0; g < planners_.size(); ++g) {
    Planners& p = planners_[g];
    sequences_.clear();
    p.slots.clear();
    for (const BatchSequence& s : batch.sequences) {
      sequences_.push_back({static_cast<int>(p.slots.size()), s.n_rows, s.first_position, s.tables[g], s.both_ways});
      for (int i = 0; i < s.n_rows; ++i)
        p.slots.push_back(static_cast<std::int32_t>(s.tables[g].slot(s.first_position + i)));
    }
    const attention::SharePlan& shared = p.sharing.plan(sequences_);
    const TreePlan* tree = p.tree.plan(shared);
    if (tree == nullptr) return false;
    groups_[g] = {p.slots, tree};
    step.bytes_read += fetched_slots(*tree) * p.bytes_per_token;
    step.bytes_unique += visible_slots(shared) * p.bytes_per_token;
  }
  traffic_.bytes_read += step.bytes_read;
  traffic_.bytes_unique += step.bytes_unique;
  return true;
}

bool wants_all_logits(const Batch& batch) {
  if (!batch.hidden_rows.empty() || batch.logit_rows.size() + batch.sample_rows.size() == 0) return false;
  auto logits = batch.logit_rows.begin(), samples = batch.sample_rows.begin();
  int row = 0;
  for (const BatchSequence& s : batch.sequences) {
    for (const int end = row + s.n_rows; row < end; ++row) {
      const bool scored = logits != batch.logit_rows.end() && *logits == row;
      const bool sampled = samples != batch.sample_rows.end() && *samples == row;
      if (s.n_rows > 1 && !scored && !sampled) return false;
      logits += scored ? 1 : 0;
      samples += sampled ? 1 : 0;
    }
  }
  return true;
}

int middle_cut(const Batch& batch) {
  const int middle = batch.n_rows() / 2;
  int best = 0, row = 0;
  const auto look_at = [&](int cut) {
    if (cut > 0 && (best == 0 || std::abs(cut - middle) < std::abs(best - middle))) best = cut;
  };
  for (const BatchSequence& s : batch.sequences) {
    look_at(row);
    for (int i = 1; i < s.n_rows; ++i) {
      if (may_cut(s, std::int64_t{s.first_position} + i)) look_at(row + i);
    }
    row += s.n_rows;
  }
  return best;
}

Batch part_of(const Batch& batch, int first, int n) {
  Batch part;
  if (first == 0) {
    part.block_ops = batch.block_ops;
    part.outside = batch.outside;
  }
  part.rows.assign(batch.rows.begin() + first, batch.rows.begin() + first + n);
  part.embeddings = batch.embeddings;
  if (!batch.positions.empty())
    part.positions.assign(batch.positions.begin() + first, batch.positions.begin() + first + n);
  int row = 0;
  for (const BatchSequence& s : batch.sequences) {
    const int from = std::max(first, row), to = std::min(first + n, row + s.n_rows);
    if (from < to) {
      BatchSequence& of_part = part.sequences.emplace_back(s);
      of_part.n_rows = to - from;
      of_part.first_position = s.first_position + (from - row);
      if (from > row) of_part.state_in = s.state_out;  // which the part before has written
      const std::int64_t begin = of_part.first_position, end = begin + of_part.n_rows;
      std::erase_if(of_part.both_ways, [&](const kv::BothWays& b) { return b.end <= begin || b.begin >= end; });
    }
    row += s.n_rows;
  }
  const auto take = [&](const std::vector<std::int32_t>& rows, std::vector<std::int32_t>& to) {
    for (const std::int32_t r : rows) {
      if (r >= first && r < first + n) to.push_back(r - first);
    }
  };
  take(batch.logit_rows, part.logit_rows);
  take(batch.hidden_rows, part.hidden_rows);
  take(batch.sample_rows, part.sample_rows);
  return part;
}

}  // namespace coppice::executor::cuda
