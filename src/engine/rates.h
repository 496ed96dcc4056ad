// Rates: how fast things went lately, for the estimates that clients are told. Not thread safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <deque>

#include "engine/request.h"

namespace coppice::engine {

class Rates {
 public:
  /// A request left the queue for good.
  void left_queue(Clock::time_point now) {
    left_.push_back(now);
    if (left_.size() > kRemembered) left_.pop_front();
  }

  /// A step took `seconds`; `prompt_rows` of its `rows` belonged to prompts.
  void stepped(int prompt_rows, int rows, double seconds) {
    if (2 * prompt_rows <= rows) return;  // it says more about decoding
    prompt_rows_ = prompt_rows_ * kKept + prompt_rows;
    prompt_seconds_ = prompt_seconds_ * kKept + seconds;
  }

  /// 0: not known yet.
  double prefill_tokens_per_second() const { return prompt_seconds_ > 0 ? prompt_rows_ / prompt_seconds_ : 0; }

  /// After this time, at the recent pace, `waiting` requests will have left the queue. Between kSoonest and kLatest:
  /// nobody should hammer, and nobody should be sent away for good by a pace that may change.
  double drain_seconds(std::size_t waiting, Clock::time_point now) const {
    if (left_.size() < 2) return kSoonest;
    const double span = std::chrono::duration<double>(now - left_.front()).count();
    const double each = span / static_cast<double>(left_.size());
    return std::clamp(each * static_cast<double>(waiting), kSoonest, kLatest);
  }

  static constexpr double kSoonest = 1, kLatest = 60;

 private:
  static constexpr std::size_t kRemembered = 64;
  static constexpr double kKept = 0.9;  // of the past, at each step

  std::deque<Clock::time_point> left_;
  double prompt_rows_ = 0, prompt_seconds_ = 0;
};

}  // namespace coppice::engine
