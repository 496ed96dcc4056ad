// StepBudget: how many rows a step may have. Beside decodes EngineConfig::step_tokens, of which prompts get half; two
// things bound them by time, too:
//  - Where nothing decodes nobody waits for the step but who comes meanwhile, and more rows share what a step does
//    once: such a step may have 2, 4 or more times as many, up to alone_tokens, as long as it takes no longer than
//    alone_seconds at the pace of the last one.
//  - While several keys come, a key's short request waits for the step that runs, and shares the next ones. Then
//    prompts have no more rows than take kSharedSeconds at the recent pace, and no fewer than kSharedRows, which read
//    the weights seldom enough.
//
// Plain arithmetic. Not thread safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "engine/config.h"

namespace coppice::engine {

class StepBudget {
 public:
  static constexpr double kSharedSeconds = 0.08;
  static constexpr int kSharedRows = 32;
  /// Since another key's request came.
  static constexpr std::chrono::seconds kLately{60};

  /// max_batch: decodes never fill a step.
  StepBudget(const EngineConfig& config, int max_batch, int block_size)
      : step_tokens_(std::max(config.step_tokens, max_batch + 1)),
        alone_tokens_(std::max(config.alone_tokens, step_tokens_)),
        alone_seconds_(config.alone_seconds),
        block_size_(block_size),
        alone_(step_tokens_) {}

  /// A key's request comes.
  void came(const std::string& key, Clock::time_point now) {
    if (last_ && key != *last_) several_until_ = now + kLately;
    last_ = key;
  }

  /// Of a step with so many decodes.
  int rows(int decodes) const { return decodes == 0 ? alone_ : step_tokens_; }

  /// ... of prompts, at least one. tokens_per_second: of prompts, lately; 0: not known.
  int prompt_rows(int decodes, double tokens_per_second, Clock::time_point now) const {
    int most = rows(decodes);
    if (now < several_until_ && tokens_per_second * kSharedSeconds < most)
      most = std::max(static_cast<int>(tokens_per_second * kSharedSeconds), std::min(kSharedRows, most));
    if (decodes == 0) return most;
    return std::min(step_tokens_ - decodes, std::max(most / kPartBesideDecodes, block_size_));
  }

  /// A step took `seconds`; `prompt_rows` of its `rows` belonged to prompts. One with few rows says little about the
  /// pace of many.
  void stepped(int prompt_rows, int rows, double seconds) {
    if (prompt_rows < rows || 2 * rows < alone_) return;
    const int before = alone_;
    for (alone_ = step_tokens_; may_double(before, seconds / rows);) alone_ *= 2;
  }

 private:
  // A step that also decodes gives prompts this part of its budget at most: running streams wait for the whole step.
  // Prompts lose little: in a matrix product of 256 rows a row costs a CPU no more than in one of 512, so the smaller
  // steps only add the decodes' own time. A quarter makes streams steadier still, but those who wait for their first
  // token wait longer behind them.
  static constexpr int kPartBesideDecodes = 2;

  /// At most twice what was tried: the rows behind see more and take longer.
  bool may_double(int before, double seconds_a_row) const {
    return alone_ <= before && 2 * alone_ <= alone_tokens_ && 2 * alone_ * seconds_a_row <= alone_seconds_;
  }

  int step_tokens_, alone_tokens_;
  double alone_seconds_;
  int block_size_;
  int alone_;
  std::optional<std::string> last_;  ///< whose the last request was
  Clock::time_point several_until_{};
};

}  // namespace coppice::engine
