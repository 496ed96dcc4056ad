// StepBudget: how many rows a step may have. Beside decodes EngineConfig::step_tokens. Where nothing decodes nobody waits for a step but who
// comes meanwhile, and more rows share what a step does once: such a step may have 2, 4 or more times as many, up to alone_tokens, as long as it
// takes no longer than alone_seconds at the pace of the last one. Plain arithmetic. Not thread safe.
#pragma once

#include <algorithm>

#include "engine/config.h"

namespace coppice::engine {

class StepBudget {
 public:
  /// max_batch: decodes never fill a step.
  StepBudget(const EngineConfig& config, int max_batch)
      : step_tokens_(std::max(config.step_tokens, max_batch + 1)),
        alone_tokens_(std::max(config.alone_tokens, step_tokens_)),
        alone_seconds_(config.alone_seconds),
        alone_(step_tokens_) {}

  int beside_decodes() const { return step_tokens_; }
  int alone() const { return alone_; }

  /// A step took `seconds`; `prompt_rows` of its `rows` belonged to prompts. One with few rows says little about the pace of many.
  void stepped(int prompt_rows, int rows, double seconds) {
    if (prompt_rows < rows || 2 * rows < alone_) return;
    const int before = alone_;
    for (alone_ = step_tokens_; may_double(before, seconds / rows);) alone_ *= 2;
  }

 private:
  /// At most twice what was tried: the rows behind see more and take longer.
  bool may_double(int before, double seconds_a_row) const {
    return alone_ <= before && 2 * alone_ <= alone_tokens_ && 2 * alone_ * seconds_a_row <= alone_seconds_;
  }

  int step_tokens_, alone_tokens_;
  double alone_seconds_;
  int alone_;
};

}  // namespace coppice::engine
