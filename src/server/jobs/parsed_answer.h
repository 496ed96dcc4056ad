// ParsedAnswer: an answer whose text may hold reasoning and calls of tools. It reads them and passes them on to the answer in the
// client's API.
//
// Not thread safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/jobs/answer.h"
#include "text/answer_format.h"

namespace coppice::server {

class ParsedAnswer final : public Answer {
 public:
  /// name: calls' ids begin with it; no other answer's do.
  ParsedAnswer(std::unique_ptr<Answer> answer, const std::shared_ptr<const text::AnswerFormat>& format, int n_choices,
               std::string name);

  std::string delta(Delta&& delta) override;
  std::string end(const engine::Usage& usage, CacheReportList reports) override { return answer_->end(usage, reports); }
  std::string error(const RequestError& error) const override { return answer_->error(error); }
  /// With the texts that are read.
  std::size_t bytes() const override { return answer_->bytes() + bytes_; }

 private:
  void add(text::AnswerParts&& parts, Delta& to) const;

  std::unique_ptr<Answer> answer_;
  std::vector<text::AnswerReader> readers_;  ///< of each choice
  std::string name_;
  std::size_t bytes_ = 0;
};

}  // namespace coppice::server
