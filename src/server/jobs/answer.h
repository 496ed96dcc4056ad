// Answer: one answer in a client's API, made from a job's news, its Deltas. Dialect::begin() makes it
// (server/api/base/dialect.h), reply_with() feeds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "sampling/generation.h"
#include "server/base/request_error.h"

namespace coppice::server {

/// More of a call of a tool. Id and name come first, the arguments behind them.
struct CallDelta {
  std::size_t index = 0;  ///< of the choice's calls
  std::string id, name;   ///< empty: they came before
  std::string arguments;  ///< more of the JSON
};

/// How a choice ended.
struct ChoiceEnd {
  /// kStop, kLength or kTimeout: other ends are errors of the whole job.
  sampling::Finish finish = sampling::Finish::kStop;
  std::string stop;                   ///< with kStop: the stop string that was met; empty: a token ended it
  bool cut_call = false;              ///< its last call's arguments have no end
  std::int64_t reasoning_tokens = 0;  ///< how many of its tokens were reasoning, its mark included
};

/// News of one choice (a sample of a prompt), of one step or of several: those of the prompt come with its first
/// choice.
struct Delta {
  int choice = 0;
  std::string text;       ///< valid UTF-8
  std::string reasoning;  ///< what comes before the text, where the model's format tells them apart
  std::vector<CallDelta> calls;
  std::vector<kv::Token> tokens;  ///< whose text that is, and those without any
  std::vector<sampling::LogprobEntry> logprobs;
  std::vector<sampling::PromptToken> prompt;  ///< its next tokens, with their scores
  std::vector<float> embedding;               ///< of the prompt: all of it
  std::vector<engine::Progress> progress;     ///< of the prompt, if it was asked for
  std::optional<engine::Usage> so_far;  ///< of the prompt's samples, if progress was asked for: with the last token
  std::optional<ChoiceEnd> end;         ///< nothing comes behind it
  std::optional<engine::Usage> usage;   ///< with the last end of a prompt's samples: of all of them
};

/// Of each prompt; null: it has none.
using CacheReportList = std::span<const std::shared_ptr<const engine::CacheReport>>;

class Answer {
 public:
  virtual ~Answer() = default;
  /// Takes news. A stream returns the events to send, a whole answer keeps them and returns nothing.
  virtual std::string delta(Delta&& delta) = 0;
  /// A stream's last events, or the whole answer, which is then no longer kept. Called once, after all deltas, unless
  /// the job failed. `reports`: complete.
  virtual std::string end(const engine::Usage& usage, CacheReportList reports) = 0;
  /// The last event of a stream that fails.
  virtual std::string error(const RequestError& error) = 0;
  /// Did the choice that ended last end with calls of tools?
  virtual bool calls() const { return false; }
  /// What a whole answer's deltas take in its words so far. A stream keeps none.
  virtual std::size_t bytes() const { return 0; }
};

}  // namespace coppice::server
