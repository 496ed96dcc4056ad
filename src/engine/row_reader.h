// RowReader: what comes of a step's logits and hidden states: scores of prompts' tokens, embeddings, new tokens. Not thread safe;
// the engine's thread owns it.
#pragma once

#include <span>
#include <vector>

#include "engine/config.h"
#include "engine/request_table.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/snapshot.h"
#include "executor/executor.h"

namespace coppice::engine {

class RowReader {
 public:
  RowReader(Scheduler& scheduler, RequestTable& requests, Snapshot& figures, const EngineConfig& config)
      : scheduler_(scheduler), requests_(requests), figures_(figures), config_(config) {}

  /// What the model said of one sequence's rows.
  struct Rows {
    executor::Logits logits;        ///< [n_logits()]: of those to score, then of the one to sample from
    executor::HiddenStates hidden;  ///< [pooled]
  };

  /// Puts out what comes of a sequence's part in the step that has just been computed, and ends it if that was its last.
  /// Throws what Generation throws.
  void read(Sequence& sequence, const Rows& rows, Clock::time_point now);

 private:
  void score(Sequence& sequence, const executor::Logits& logits);
  void pool(Sequence& sequence, const executor::HiddenStates& hidden);
  void sample_siblings(Sequence& first, std::span<const float> logits);
  void sample_one(Sequence& sequence, std::span<float> logits);

  Scheduler& scheduler_;
  RequestTable& requests_;
  Snapshot& figures_;
  const EngineConfig& config_;
  Clock::time_point now_{};  // of the step in hand
  std::vector<float> row_;   // scratch
};

}  // namespace coppice::engine
