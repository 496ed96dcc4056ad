// PlannedStep: which rows of which sequences a step has, from its plan until its results are read. Plain data. It may
// outlive a sequence's place in the batch: whoever leaves is taken out of it, and what its rows give is thrown away.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/request.h"
#include "engine/sequence.h"
#include "engine/wanted_rows.h"
#include "executor/executor.h"

namespace coppice::engine {

/// One sequence's rows in a step.
struct StepPart {
  Sequence* sequence = nullptr;  ///< null: it has left
  std::int32_t first = 0;        ///< position of its first row
  int rows = 0;                  ///< at least 1
  int drawn = -1;                ///< its row's token: of the samples of the step before; -1: its tokens are known
  bool completes = false;        ///< with it all that is known of the sequence's text is computed
  WantedList wanted;

  int n_logits() const {  ///< rows of them, for the host
    int n = 0;
    for (const WantedRows& each : wanted) n += each.purpose == Purpose::kPool || each.draw >= 0 ? 0 : each.n;
    return n;
  }
  int n_hidden() const {
    const WantedRows* const pooled = wanted.find(Purpose::kPool);
    return pooled == nullptr ? 0 : pooled->n;
  }
  int draw() const {  ///< WantedRows::draw; -1: the device draws nothing behind it
    const WantedRows* const sampled = wanted.find(Purpose::kSample);
    return sampled == nullptr ? -1 : sampled->draw;
  }
};

struct PlannedStep {
  std::vector<StepPart> parts;         ///< by the rank of their sequences
  int rows = 0;                        ///< of all parts
  int prompt_rows = 0;                 ///< those of prompts
  int draws = 0;                       ///< tokens that the device draws
  std::optional<executor::Step> step;  ///< none: it is not submitted, or its results are there
  std::uint64_t moves = 0;             ///< Tiers::add_moves()
  Clock::time_point submitted{};

  void clear() {
    parts.clear();
    rows = prompt_rows = draws = 0;
    moves = 0;
    step.reset();
  }
  void forget(const Sequence& sequence) {
    for (StepPart& part : parts) {
      if (part.sequence == &sequence) part.sequence = nullptr;
    }
  }
};

}  // namespace coppice::engine
