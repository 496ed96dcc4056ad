#include "server/jobs/parsed_answer.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

#include "text/chat_history.h"

namespace coppice::server {

ParsedAnswer::ParsedAnswer(std::unique_ptr<Answer> answer, const std::shared_ptr<const text::AnswerFormat>& format,
                           int n_choices, Ids ids, bool held)
    : answer_(std::move(answer)), ids_(std::move(ids)) {
  for (int i = 0; i < n_choices; ++i) choices_.push_back({text::AnswerReader(format, held)});
}

std::string ParsedAnswer::delta(Delta&& delta) {
  Choice& choice = choices_.at(static_cast<std::size_t>(delta.choice));
  choice.thoughts.push(delta.text, delta.tokens.size());
  const std::string text = std::exchange(delta.text, {});
  bytes_ += text.size();
  add(choice.reader.push(text), delta);
  if (delta.end) add(choice.reader.finish(), delta);
  choice.thoughts.read(delta.reasoning, !delta.text.empty() || !delta.calls.empty());
  choice.calls |= !delta.calls.empty();
  if (delta.end) {
    delta.end->reasoning_tokens = choice.thoughts.tokens();
    calls_ = choice.calls && !delta.end->cut_call;
  }
  return answer_->delta(std::move(delta));
}

void ParsedAnswer::add(text::AnswerParts&& parts, Delta& to) {
  to.text += parts.content;
  to.reasoning += parts.reasoning;
  if (to.end) to.end->cut_call |= parts.cut;
  for (text::CallPart& part : parts.calls) {
    CallDelta& call = to.calls.emplace_back();
    call.index = part.index;
    if (!part.name.empty()) call.id = id_of(part, to.choice);
    call.name = std::move(part.name);
    call.arguments = std::move(part.arguments);
  }
}

/// The model's own, unless it is a bare number (a place in its turn, which the next turn's calls have, too) or another
/// call of the choice has it: its result would answer either.
std::string ParsedAnswer::id_of(const text::CallPart& part, int choice) {
  std::set<std::string>& taken = choices_.at(static_cast<std::size_t>(choice)).ids;
  const bool named = part.id.find_first_not_of("0123456789") != std::string::npos;
  std::string id = named ? part.id : "";
  for (std::size_t n = part.index; id.empty() || taken.contains(id); ++n) {
    const std::string own = fmt::format("call_{}_{}_{}", ids_.name, choice, n);
    id = text::call_id(ids_.form, own, part.name, ids_.before + n);
  }
  taken.insert(id);
  return id;
}

}  // namespace coppice::server
