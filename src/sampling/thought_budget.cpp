#include "sampling/thought_budget.h"

#include <algorithm>

namespace coppice::sampling {

namespace {

/// A character has at most three more tokens. Who never ends one is cut anyway.
constexpr std::int32_t kLongestCharacter = 4;

}  // namespace

ThoughtBudget::ThoughtBudget(const ThoughtParams& params) : params_(params), state_(State::kBefore) {
  if (params_.open) begin("");
}

void ThoughtBudget::begin(std::string_view rest) {
  state_ = params_.budget == 0 ? State::kClosing : State::kThinking;
  text_ = rest;
  look_for_end();
}

void ThoughtBudget::look_for_end() {
  if (text_.find(params_.end) != std::string::npos) {
    state_ = State::kDone;
    text_ = {};
  } else {
    text_.erase(0, text_.size() - std::min(text_.size(), params_.end.size() - 1));
  }
}

void ThoughtBudget::take(std::string_view bytes, bool whole) {
  switch (state_) {
    case State::kBefore: {
      text_ += bytes;
      const std::string_view said =
          std::string_view(text_).substr(std::min(text_.find_first_not_of(" \t\r\n"), text_.size()));
      if (said.starts_with(params_.begin)) {
        begin(std::string(said.substr(params_.begin.size())));
      } else if (!std::string_view(params_.begin).starts_with(said)) {
        state_ = State::kDone;
        text_ = {};
      }
      break;
    }
    case State::kThinking:
      ++used_;
      text_ += bytes;
      look_for_end();
      if (state_ == State::kThinking && used_ >= params_.budget &&
          (whole || used_ - params_.budget >= kLongestCharacter))
        state_ = State::kClosing;
      break;
    case State::kClosing:
      if (++closed_ == params_.close.size()) state_ = State::kDone;
      break;
    case State::kDone:
      break;
  }
}

}  // namespace coppice::sampling
