// PlannedStep: which rows of which sequences a step has, from its plan until its results are read. Plain data. It may outlive a sequence's
// place in the batch: whoever leaves is taken out of it, and what its rows give is thrown away.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "engine/sequence.h"
#include "executor/executor.h"

namespace coppice::engine {

/// One sequence's rows in a step.
struct StepPart {
  Sequence* sequence = nullptr;  ///< null: it has left
  std::int32_t first = 0;        ///< position of its first row
  int rows = 0;                  ///< at least 1
  int scored = 0;                ///< rows whose logits are for scoring: its last, but for a sampled one
  int pooled = 0;                ///< rows whose hidden states make an embedding: its last
  bool sampled = false;          ///< its last row gives the next token, or an embedding
  int draw = -1;                 ///< that token is this one of those that the device draws; -1: the host draws it
  int token = -1;                ///< its row's token is this one of those that the step before draws; -1: it is known

  /// Rows whose logits are wanted: its last, but for one behind which the device draws. Nothing is drawn behind a pooled one.
  int n_logits() const { return scored + (sampled && pooled == 0 && draw < 0 ? 1 : 0); }
};

struct PlannedStep {
  std::vector<StepPart> parts;         ///< by the rank of their sequences
  int rows = 0;                        ///< of all parts
  int prompt_rows = 0;                 ///< those of prompts
  int draws = 0;                       ///< tokens that the device draws
  std::optional<executor::Step> step;  ///< none: it is not submitted, or its results are there
  Clock::time_point submitted{};

  void clear() {
    parts.clear();
    rows = prompt_rows = draws = 0;
    step.reset();
  }
  void forget(const Sequence& sequence) {
    for (StepPart& part : parts) {
      if (part.sequence == &sequence) part.sequence = nullptr;
    }
  }
};

}  // namespace coppice::engine
