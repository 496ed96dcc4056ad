#include "engine/batch_builder.h"

#include <cstddef>

namespace coppice::engine {

void build_batch(const kv::Cache& cache, const PlannedStep& step, executor::Batch& batch) {
  const std::size_t n_groups = cache.config().groups.size();
  batch.rows.clear();
  batch.logit_rows.clear();
  batch.hidden_rows.clear();
  batch.sample_rows.clear();
  batch.sequences.resize(step.parts.size());

  std::size_t next = 0;
  for (const StepPart& planned : step.parts) {
    const Sequence* const sequence = planned.sequence;
    auto& part = batch.sequences[next++];
    part.n_rows = planned.rows;
    part.first_position = planned.first;
    part.tables.resize(n_groups);
    const std::int32_t begin = batch.n_rows();
    if (planned.drawn >= 0) {
      batch.rows.push_back(executor::RowSource::drawn(planned.drawn));
    } else {
      const kv::TextView text = sequence->row_tokens(planned.first, planned.rows);
      for (std::size_t i = 0; i < text.size(); ++i) batch.rows.emplace_back(text[i].token().value());
    }
    if (cache.config().state_pages > 0) {
      const kv::StatePages state = cache.state(sequence->seq);
      part.state_in = state.in;
      part.state_out = state.out;
    }
    for (std::size_t g = 0; g < n_groups; ++g) part.tables[g] = cache.table(sequence->seq, static_cast<int>(g));
    for (const WantedRows& wanted : planned.wanted) {
      auto& rows = wanted.purpose == Purpose::kPool ? batch.hidden_rows
                   : wanted.draw >= 0               ? batch.sample_rows
                                                    : batch.logit_rows;
      for (int i = 0; i < wanted.n; ++i) rows.push_back(begin + wanted.first + i);
    }
  }
}

}  // namespace coppice::engine
