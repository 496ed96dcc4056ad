#include "sampling/thought_budget.h"

#include <algorithm>

namespace coppice::sampling {

namespace {

/// A character has at most three more tokens. Who never ends one is cut anyway.
constexpr std::int32_t kLongestCharacter = 4;

std::string_view without_blanks(std::string_view text) {
  return text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
}

}  // namespace

ThoughtBudget::ThoughtBudget(const ThoughtParams& params) : params_(params), state_(State::kBefore) {
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
  state_ = used_ >= params_.budget ? State::kClosing : State::kThinking;
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
  state_ = params_.last.empty() ? State::kDone : State::kBefore;
  text_ = {};
}

void ThoughtBudget::close() {
  if (++closed_ < end().size()) return;
  was_closed_ = true;
  over();
}

void ThoughtBudget::take(std::string_view bytes, bool whole) {
  switch (state_) {
    case State::kBefore:
      text_ += bytes;
      look_for_begin();
      break;
    case State::kThinking:
      ++used_;
      text_ += bytes;
      look_for_end();
      if (state_ == State::kThinking && used_ >= params_.budget &&
          (whole || used_ - params_.budget >= kLongestCharacter))
        state_ = State::kClosing;
      break;
    case State::kClosing:
      close();
      break;
    case State::kDone:
      break;
  }
}

}  // namespace coppice::sampling
