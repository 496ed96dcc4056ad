#include "server/jobs/parsed_answer.h"

#include <fmt/format.h>

#include <utility>

namespace coppice::server {

ParsedAnswer::ParsedAnswer(std::unique_ptr<Answer> answer, const std::shared_ptr<const text::AnswerFormat>& format,
                           int n_choices, std::string name)
    : answer_(std::move(answer)), name_(std::move(name)) {
  for (int i = 0; i < n_choices; ++i) readers_.emplace_back(format);
}

std::string ParsedAnswer::delta(Delta&& delta) {
  text::AnswerReader& reader = readers_.at(static_cast<std::size_t>(delta.choice));
  const std::string text = std::exchange(delta.text, {});
  bytes_ += text.size();
  add(reader.push(text), delta);
  if (delta.finish) add(reader.finish(), delta);
  return answer_->delta(std::move(delta));
}

void ParsedAnswer::add(text::AnswerParts&& parts, Delta& to) const {
  to.text += parts.content;
  to.reasoning += parts.reasoning;
  for (text::CallPart& part : parts.calls) {
    CallDelta& call = to.calls.emplace_back();
    call.index = part.index;
    if (!part.name.empty()) call.id = fmt::format("call_{}_{}_{}", name_, to.choice, part.index);
    call.name = std::move(part.name);
    call.arguments = std::move(part.arguments);
  }
}

}  // namespace coppice::server
