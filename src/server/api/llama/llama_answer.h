// LlamaAnswer: the answers of llama-server's /completion: an object for each choice, or a stream whose last event for a
// choice has what the object has besides the text.
//
// Not thread safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/api/base/dialect.h"
#include "server/api/base/json.h"
#include "server/api/llama/llama_dialect.h"
#include "server/jobs/answer.h"

namespace coppice::server {

class LlamaAnswer final : public Answer {
 public:
  LlamaAnswer(LlamaForm form, const GenerationTerms& terms, const sampling::SamplingParams& sampling,
              JsonObject settings, AnswerHead head);
  std::string delta(Delta&& delta) override;
  std::string end(const engine::Usage& usage, CacheReportList reports) override;
  std::string error(const RequestError& error) override;
  std::size_t bytes() const override { return bytes_; }

 private:
  struct Choice {
    std::string text;  ///< of a whole answer
    JsonArray tokens, probs;
    std::size_t n_tokens = 0;
    bool new_line = false;
    std::optional<sampling::Finish> finish;
    std::string stop;
  };
  std::string event(std::size_t index, const Delta& delta);
  std::string progress_event(std::size_t index, const engine::Progress& progress) const;
  JsonObject last(std::size_t index, const engine::Usage& usage);
  std::size_t samples() const { return choices_.size() / usages_.size(); }

  LlamaForm form_;
  bool stream_, with_probs_, of_drawn_;
  Telemetry telemetry_;
  std::optional<std::int32_t> max_tokens_;
  JsonObject settings_;
  AnswerHead head_;
  std::vector<Choice> choices_;
  std::vector<engine::Usage> usages_;  ///< by prompt
  std::size_t bytes_ = 0;
};

}  // namespace coppice::server
