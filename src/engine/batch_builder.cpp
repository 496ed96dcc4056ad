#include "engine/batch_builder.h"

#include <algorithm>

namespace coppice::engine {

void build_batch(const kv::Cache& cache, std::span<Sequence* const> running, executor::Batch& batch,
                 std::vector<Sequence*>& readers) {
  const std::size_t n_groups = cache.config().groups.size();
  batch.tokens.clear();
  batch.logit_rows.clear();
  batch.hidden_rows.clear();
  const auto has_rows = [](const Sequence* sequence) { return sequence->rows > 0; };
  batch.sequences.resize(static_cast<std::size_t>(std::ranges::count_if(running, has_rows)));
  readers.clear();

  std::size_t next = 0;
  for (Sequence* sequence : running) {
    if (sequence->rows == 0) continue;
    auto& part = batch.sequences[next++];
    part.n_rows = sequence->rows;
    part.first_position = sequence->computed;
    part.tables.resize(n_groups);
    const auto tokens = sequence->row_tokens();
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
    if (cache.config().state_pages > 0) {
      const kv::StatePages state = cache.state(sequence->seq);
      part.state_in = state.in;
      part.state_out = state.out;
    }
    for (std::size_t g = 0; g < n_groups; ++g) part.tables[g] = cache.table(sequence->seq, static_cast<int>(g));
    const auto add_last = [end = batch.n_rows()](std::vector<std::int32_t>& rows, int n) {
      for (int row = end - n; row < end; ++row) rows.push_back(row);
    };
    add_last(batch.logit_rows, sequence->n_logits());
    add_last(batch.hidden_rows, sequence->pooled);
    if (sequence->scored > 0 || sequence->pooled > 0 || sequence->sampled) readers.push_back(sequence);
  }
}

}  // namespace coppice::engine
