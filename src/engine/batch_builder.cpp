#include "engine/batch_builder.h"

#include <algorithm>

namespace coppice::engine {

void build_batch(const kv::Cache& cache, std::span<Sequence* const> running, executor::Batch& batch,
                 std::vector<Sequence*>& readers) {
  const std::size_t n_groups = cache.config().groups.size();
  batch.tokens.clear();
  batch.logit_rows.clear();
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
    const auto first = static_cast<std::size_t>(sequence->computed);
    const auto rows = cache.tokens(sequence->seq).subspan(first, static_cast<std::size_t>(sequence->rows));
    batch.tokens.insert(batch.tokens.end(), rows.begin(), rows.end());
    for (std::size_t g = 0; g < n_groups; ++g) part.tables[g] = cache.table(sequence->seq, static_cast<int>(g));
    const int n_logits = sequence->scored + (sequence->sampled ? 1 : 0);
    for (int row = batch.n_rows() - n_logits; row < batch.n_rows(); ++row) batch.logit_rows.push_back(row);
    if (n_logits > 0) readers.push_back(sequence);
  }
}

}  // namespace coppice::engine
