// ParsedAnswer: an answer whose text may hold reasoning and calls of tools. It reads them and passes them on to the
// answer in the client's API.
//
// Not thread safe.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "server/jobs/answer.h"
#include "server/jobs/thought_count.h"
#include "text/answer_format.h"
#include "text/chat_template.h"

namespace coppice::server {

class ParsedAnswer final : public Answer {
 public:
  /// What calls' ids are made of, where the model writes none.
  struct Ids {
    text::CallIds form = text::CallIds::kAny;
    std::size_t before = 0;  ///< calls in the chat
    std::string name;        ///< no other answer has it
  };
  /// `held`: a grammar holds the calls (text::AnswerReader).
  ParsedAnswer(std::unique_ptr<Answer> answer, const std::shared_ptr<const text::AnswerFormat>& format, int n_choices,
               Ids ids, bool held);

  std::string delta(Delta&& delta) override;
  std::string end(const engine::Usage& usage, CacheReportList reports) override { return answer_->end(usage, reports); }
  std::string error(const RequestError& error) override { return answer_->error(error); }
  bool calls() const override { return calls_; }
  /// With the texts that are read.
  std::size_t bytes() const override { return answer_->bytes() + bytes_; }

 private:
  struct Choice {
    text::AnswerReader reader;
    ThoughtCount thoughts{};
    bool calls = false;
    std::set<std::string> ids{};  ///< of its calls
  };
  void add(text::AnswerParts&& parts, Delta& to);
  std::string id_of(const text::CallPart& part, int choice);

  std::unique_ptr<Answer> answer_;
  std::vector<Choice> choices_;
  Ids ids_;
  std::size_t bytes_ = 0;
  bool calls_ = false;
};

}  // namespace coppice::server
