#include "cli/first_step.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <vector>

namespace coppice::cli {

void try_first_step(executor::Executor& executor) {
  const executor::ExecutorInfo& info = executor.info();
  const std::size_t n_tables = kv::n_table_groups(info.groups);
  const auto n_state = static_cast<std::size_t>(n_tables < info.groups.size() ? info.groups.back().state_pages : 0);
  // Block 0 is the null block.
  std::vector<kv::BlockId> blocks(n_tables + n_state);
  if (blocks.size() >= static_cast<std::size_t>(info.num_blocks))
    return;  // such a pool holds no request, and is refused later
  std::iota(blocks.begin(), blocks.end(), kv::BlockId{1});

  executor::Batch batch;
  batch.rows = {0};
  batch.logit_rows = {0};
  executor::BatchSequence& sequence = batch.sequences.emplace_back();
  sequence.n_rows = 1;
  for (std::size_t i = 0; i < n_tables; ++i)
    sequence.tables.push_back({.blocks = std::span(blocks).subspan(i, 1), .block_size = info.block_size});
  sequence.state_out = std::span(blocks).subspan(n_tables);
  const executor::Result result = executor.forward(batch);
  if (std::ranges::none_of(result.logits.row(0), [](float logit) { return std::isfinite(logit); }))
    throw std::runtime_error("The model gives no numbers for a first token: its file is damaged, or made wrong.");
}

}  // namespace coppice::cli
