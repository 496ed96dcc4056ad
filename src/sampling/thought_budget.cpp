#include "sampling/thought_budget.h"

#include <algorithm>
#include <utility>

namespace coppice::sampling {

namespace {

/// A character has at most three more tokens. Who never ends one is cut anyway.
constexpr std::int32_t kLongestCharacter = 4;

std::string_view without_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

}  // namespace

ThoughtBudget::ThoughtBudget(const ThoughtParams& params) : params_(params), phase_(Phase::kBefore) {
  if (params_.open) begin("");
}

/// Before the answer, or, where they may come again, anywhere.
void ThoughtBudget::look_for_begin() {
  const std::string_view mark = without_blanks(params_.begin);
  if (params_.last.empty()) {
    const std::string_view said = without_blanks(text_);
    if (said.starts_with(mark))
      begin(std::string(said.substr(mark.size())));
    else if (!mark.starts_with(said))
      over();
  } else if (const std::size_t at = text_.find(mark); at != text_.npos) {
    begin(text_.substr(at + mark.size()));
  } else {
    text_.erase(0, text_.size() - std::min(text_.size(), mark.size() - 1));
  }
}

void ThoughtBudget::begin(std::string_view rest) {
  phase_ = used_ >= params_.budget ? Phase::kClosing : Phase::kThinking;
  closed_ = 0;
  text_ = rest;
  look_for_end();
}

void ThoughtBudget::look_for_end() {
  if (text_.find(params_.end) != std::string::npos)
    over();
  else
    text_.erase(0, text_.size() - std::min(text_.size(), params_.end.size() - 1));
}

void ThoughtBudget::over() {
  phase_ = params_.last.empty() ? Phase::kDone : Phase::kBefore;
  text_ = {};
}

void ThoughtBudget::close() {
  if (++closed_ < end().size()) return;
  const bool first = !std::exchange(was_closed_, true);
  over();
  if (!first || params_.ways.empty()) return;
  phase_ = Phase::kChoosing;
  for (const auto& way : params_.ways) ways_.push_back(&way);
}

std::vector<kv::Token> ThoughtBudget::choice() const {
  std::vector<kv::Token> tokens;
  if (phase_ != Phase::kChoosing) return tokens;
  for (const auto* way : ways_) tokens.push_back((*way)[on_way_]);
  std::ranges::sort(tokens);
  const auto again = std::ranges::unique(tokens);
  tokens.erase(again.begin(), again.end());
  return tokens;
}

/// The first way that is at its end was the one.
void ThoughtBudget::choose(kv::Token token) {
  std::erase_if(ways_, [&](const auto* way) { return (*way)[on_way_] != token; });
  ++on_way_;
  if (ways_.empty() || std::ranges::any_of(ways_, [&](const auto* way) { return way->size() == on_way_; })) over();
}

void ThoughtBudget::take(kv::Token token, std::string_view bytes, bool whole) {
  switch (phase_) {
    case Phase::kBefore:
      text_ += bytes;
      look_for_begin();
      break;
    case Phase::kThinking:
      ++used_;
      text_ += bytes;
      look_for_end();
      if (phase_ == Phase::kThinking && used_ >= params_.budget &&
          (whole || used_ - params_.budget >= kLongestCharacter))
        phase_ = Phase::kClosing;
      break;
    case Phase::kClosing:
      close();
      break;
    case Phase::kChoosing:
      choose(token);
      break;
    case Phase::kDone:
      break;
  }
}

}  // namespace coppice::sampling
