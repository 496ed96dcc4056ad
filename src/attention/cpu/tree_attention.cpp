#include "attention/cpu/tree_attention.h"

#include <algorithm>

#include "attention/cpu/tile_kernel.h"
#include "check/assert.h"

namespace coppice::attention {

/// On cache lines of its own: workers count while they run.
struct alignas(64) TreeAttention::Worker {
  TileScratch scratch;
  std::uint64_t bytes_read = 0;
};

std::string TreeAttention::misfit(const HeadShape& heads, int block_size) {
  if (heads.head_dim % 16 != 0) return "heads of " + std::to_string(heads.head_dim) + " values";
  if (block_size % 8 != 0 || block_size > 64) return "blocks of " + std::to_string(block_size) + " tokens";
  if (heads.n_head % heads.n_kv_head != 0 || heads.heads_per_kv() > TileScratch::kMaxQueries) {
    return std::to_string(heads.n_head) + " query heads on " + std::to_string(heads.n_kv_head) + " key heads";
  }
  return {};
}

TreeAttention::TreeAttention(const HeadShape& heads, int block_size, int n_workers) : heads_(heads) {
  COPPICE_ASSERT(misfit(heads, block_size).empty());
  workers_.reserve(static_cast<std::size_t>(n_workers));
  for (int i = 0; i < n_workers; ++i) workers_.push_back({TileScratch(heads, block_size)});
}

TreeAttention::~TreeAttention() = default;

CostModel TreeAttention::cost_model() const {
  return {.pieces = workers_.size() <= 2 ? 4 : 8, .max_tile_rows = max_tile_rows(heads_)};
}

void TreeAttention::prepare(const Schedule& schedule) {
  const std::size_t n = static_cast<std::size_t>(schedule.n_partials) * static_cast<std::size_t>(heads_.n_head) *
                        static_cast<std::size_t>(heads_.head_dim + 2);
  if (states_.size() < n) states_.resize(n);
}

void TreeAttention::partials(const TreeStep& step, const TreeCall& call, std::atomic<std::int32_t>& next_unit,
                             int worker, int n_workers) {
  Worker& w = workers_[static_cast<std::size_t>(worker)];
  const Schedule& schedule = step.schedule;
  const std::size_t state = static_cast<std::size_t>(heads_.n_head) * static_cast<std::size_t>(heads_.head_dim + 2);
  // Heads that are attended to one by one take a quarter longer: not for fewer workers than jobs.
  const auto n_jobs = static_cast<int>(schedule.jobs.size());
  int n_groups = 1;  // of key heads, all of the same size
  while (n_groups < heads_.n_kv_head && (n_jobs * n_groups < n_workers || heads_.n_kv_head % n_groups != 0)) ++n_groups;
  for (;;) {
    const int i = next_unit.fetch_add(1, std::memory_order_relaxed);
    if (i >= n_jobs * n_groups) return;
    const Job& job = schedule.jobs[static_cast<std::size_t>(i / n_groups)];
    const int n_heads = heads_.n_kv_head / n_groups;
    for (int t = job.first_tile; t < job.first_tile + job.n_tiles; ++t) {
      const Tile& tile = schedule.tiles[static_cast<std::size_t>(t)];
      const auto first_block = static_cast<std::size_t>(tile.first_block);
      const auto first_row = static_cast<std::size_t>(tile.first_row);
      w.bytes_read += attend_tile(
          {.heads = heads_,
           .pool = call.pool,
           .blocks = std::span(step.plan->blocks).subspan(first_block, static_cast<std::size_t>(tile.n_blocks)),
           .rows = std::span(step.plan->rows).subspan(first_row, static_cast<std::size_t>(tile.n_rows)),
           .run_offset = tile.run_offset,
           .q = call.q,
           .states = states_.data() + static_cast<std::size_t>(tile.first_partial) * state,
           .first_kv_head = i % n_groups * n_heads,
           .n_kv_heads = n_heads},
          w.scratch);
    }
  }
}

void TreeAttention::merge(const TreeStep& step, KvFormat format, float* out, int n_rows, int worker, int n_workers,
                          const float* sinks) const {
  const auto border = [&](int i) { return static_cast<int>(std::int64_t{n_rows} * i / n_workers); };
  const std::ptrdiff_t row_size = std::ptrdiff_t{heads_.n_head} * heads_.head_dim;
  for (int row = border(worker); row < border(worker + 1); ++row) {
    if (row < step.plan->n_rows) {
      merge_row(heads_, format, states_.data(), step.schedule.partials_of(row), out + row * row_size, sinks);
    } else {
      std::fill_n(out + row * row_size, row_size, 0.0F);
    }
  }
}

std::uint64_t TreeAttention::bytes_read() const {
  std::uint64_t bytes = 0;
  for (const Worker& w : workers_) bytes += w.bytes_read;
  return bytes;
}

}  // namespace coppice::attention
