// RowReader: what comes of a step's logits and hidden states: scores of prompts' tokens, embeddings, new tokens. Not
// thread safe; the engine's thread owns it.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/planned_step.h"
#include "engine/request_table.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/snapshot.h"
#include "executor/executor.h"

namespace coppice::engine {

class RowReader {
 public:
  RowReader(Scheduler& scheduler, RequestTable& requests, Snapshot& figures)
      : scheduler_(scheduler), requests_(requests), figures_(figures) {}

  /// What the executor gave for one sequence's rows.
  struct Rows {
    executor::Logits logits;        ///< [n_logits()], in the order of StepPart::wanted
    executor::HiddenStates hidden;  ///< [n_hidden()]
    kv::Token token = -1;           ///< that the device drew, if it was to
  };

  /// Puts out what comes of a sequence's part in the step that has just been computed, and ends it if that was its
  /// last. Throws what Generation throws. REQUIRES: it has not left. Where a sample isn't ready its row waits:
  /// Sequence::logits.
  void read(const StepPart& part, const Rows& rows, Clock::time_point now);

  /// Draws the token of a row that waits, if its sample is ready by now. Throws what Generation throws.
  void resume(Sequence& sequence, Clock::time_point now);

 private:
  void score(OpenRequest& open, int n, const executor::Logits& logits);
  void pool(OpenRequest& open, int n, const executor::HiddenStates& hidden);
  /// All that is known is computed, and a token of each sample is due; without logits: the end of those that want none.
  void end_prompt(Sequence& sequence, std::span<float> logits);
  void sample_siblings(Sequence& first, std::span<const float> logits);
  using Kept = std::shared_ptr<const std::vector<float>>;
  void sample_one(Sequence& sequence, std::span<float> logits, Kept& kept);
  /// next() is Generation's, or take().
  template <class Next>
  void add_token(Sequence& sequence, Next&& next);

  Scheduler& scheduler_;
  RequestTable& requests_;
  Snapshot& figures_;
  Clock::time_point now_{};  // of the step in hand
  std::vector<float> row_;   // scratch
};

}  // namespace coppice::engine
