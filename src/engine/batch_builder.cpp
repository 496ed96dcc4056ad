// A new field of a Batch (executor/executor.h) is filled here, and checked in executor/base/batch_check.cpp. On CPUs
// executor/ggml/graph/step_graph.cpp gives it to the graph; on GPUs executor/cuda/step_memory.cpp to the device, and
// step_plan.cpp parts steps that are too large. Which rows a step has: scheduler.cpp.
#include "engine/batch_builder.h"

#include <cstddef>

#include "check/assert.h"

namespace coppice::engine {

namespace {

// Tokens, and where media stand their embeddings.
void add_rows(const Sequence& sequence, const StepPart& planned, executor::BatchSequence& part,
              executor::Batch& batch) {
  const kv::TextView text = sequence.row_tokens(planned.first, planned.rows);
  const Prompt& prompt = sequence.request->request.prompt;
  for (std::int32_t i = 0; i < planned.rows; ++i) {
    if (const auto token = text[static_cast<std::size_t>(i)].token()) {
      batch.rows.emplace_back(*token);
    } else {
      batch.rows.push_back(executor::RowSource::embedding(static_cast<std::int32_t>(batch.embeddings.size())));
      batch.embeddings.push_back(prompt.embedding(planned.first + i));
    }
  }
  for (const kv::MediumSpan& span : text.spans()) {
    if (span.medium.whole)
      part.both_ways.push_back({.begin = planned.first + span.first, .end = planned.first + span.end()});
  }
}

// One row that has another position than its index gives all of the step positions.
void add_positions(const PlannedStep& step, executor::Batch& batch) {
  for (const StepPart& planned : step.parts) {
    const Prompt& prompt = planned.sequence->request->request.prompt;
    for (std::int32_t i = 0; i < planned.rows; ++i) batch.positions.push_back(prompt.position(planned.first + i));
  }
}

}  // namespace

void build_batch(const kv::Cache& cache, const PlannedStep& step, executor::Batch& batch) {
  const std::size_t n_groups = cache.config().groups.size();
  batch.rows.clear();
  batch.logit_rows.clear();
  batch.hidden_rows.clear();
  batch.sample_rows.clear();
  batch.embeddings.clear();
  batch.positions.clear();
  batch.sequences.resize(step.parts.size());
  bool with_positions = false;

  std::size_t next = 0;
  for (const StepPart& planned : step.parts) {
    const Sequence* const sequence = planned.sequence;
    COPPICE_ASSERT(sequence != nullptr && (planned.drawn < 0 || planned.rows == 1));
    auto& part = batch.sequences[next++];
    part.n_rows = planned.rows;
    part.first_position = planned.first;
    part.tables.resize(n_groups);
    part.both_ways.clear();
    const std::int32_t begin = batch.n_rows();
    if (planned.drawn >= 0) {
      batch.rows.push_back(executor::RowSource::drawn(planned.drawn));
    } else {
      add_rows(*sequence, planned, part, batch);
    }
    with_positions |= sequence->request->request.prompt.has_positions();
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
  if (with_positions) add_positions(step, batch);
}

}  // namespace coppice::engine
