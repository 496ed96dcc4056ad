// Rates: how fast things went lately, for the estimates that clients are told. Not thread safe.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>

#include "engine/request.h"

namespace coppice::engine {

class Rates {
 public:
  /// A request left the queue for good. from_empty: nobody waited before this step. An idle hour says nothing about the
  /// pace, so after a minute without anybody who waits it is measured anew.
  void left_queue(Clock::time_point now, bool from_empty) {
    if (from_empty && n_left_ > 0 && now - left_[(n_left_ - 1) % kRemembered] > kIdle) n_left_ = 0;
    left_[n_left_++ % kRemembered] = now;
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
    if (n_left_ < 2) return kSoonest;
    const auto oldest = n_left_ < kRemembered ? left_[0] : left_[n_left_ % kRemembered];
    const double span = std::chrono::duration<double>(now - oldest).count();
    const double each = span / static_cast<double>(std::min(n_left_, kRemembered));
    return std::clamp(each * static_cast<double>(waiting), kSoonest, kLatest);
  }

  static constexpr double kSoonest = 1, kLatest = 60;

 private:
  static constexpr std::size_t kRemembered = 64;
  static constexpr std::chrono::minutes kIdle{1};
  static constexpr double kKept = 0.9;  // of the past, at each step

  std::array<Clock::time_point, kRemembered> left_{};  // a ring
  std::size_t n_left_ = 0;
  double prompt_rows_ = 0, prompt_seconds_ = 0;
};

}  // namespace coppice::engine
