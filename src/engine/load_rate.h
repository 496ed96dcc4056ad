// LoadRate: how many bytes a second a store gives, while something is awaited of it. Not thread safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "engine/request.h"

namespace coppice::engine {

class LoadRate {
 public:
  void asked(Clock::time_point now) {
    if (coming_++ == 0) since_ = std::max(now, until_);
  }
  /// What was asked for has come at `when`, with so many bytes; 0: it didn't come.
  void came(double bytes, Clock::time_point when) {
    bytes_ += bytes;
    ++pieces_;
    until_ = std::max(until_, when);
    if (--coming_ > 0) return;
    seconds_ += std::max(0.0, std::chrono::duration<double>(until_ - since_).count());
    if (seconds_ < kRemembered) return;
    bytes_ /= 2;
    seconds_ /= 2;
    pieces_ /= 2;
  }
  std::int64_t coming() const { return coming_; }

  /// 0: not known: too little has come, or that was long ago.
  double bytes_per_second(Clock::time_point now) const {
    return seconds_ > 0 && pieces_ >= kEnough && now - until_ < kValid ? bytes_ / seconds_ : 0;
  }

 private:
  static constexpr double kRemembered = 1;          // seconds
  static constexpr double kEnough = 8;              // pieces
  static constexpr std::chrono::minutes kValid{5};  // then it is tried again

  std::int64_t coming_ = 0;
  double bytes_ = 0, seconds_ = 0, pieces_ = 0;
  Clock::time_point since_{}, until_{};
};

}  // namespace coppice::engine
