// Breaker: keeps away from what fails, and tries it again after a pause that doubles. Plain data; not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <utility>

namespace coppice::tier {

class Breaker {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kFirstPause{5}, kLongestPause{300};

  /// `tolerated`: failures in a row that don't count yet.
  explicit Breaker(int tolerated = 0) : tolerated_(tolerated) {}

  /// Whether it may be tried now.
  bool allows(Clock::time_point now) const { return !off_ || now >= until_; }
  bool off() const { return off_; }

  /// True: it is off from now on, and wasn't.
  bool fail(Clock::time_point now) {
    if (!off_ && failures_++ < tolerated_) return false;
    if (off_ && now < until_) return false;  // of those that were under way
    const bool is_new = !off_;
    pause_ = is_new ? kFirstPause : std::min(2 * pause_, kLongestPause);
    off_ = true;
    until_ = now + pause_;
    return is_new;
  }
  /// True: it was off.
  bool succeed() {
    failures_ = 0;
    return std::exchange(off_, false);
  }

 private:
  int tolerated_;
  int failures_ = 0;
  bool off_ = false;
  std::chrono::seconds pause_ = kFirstPause;
  Clock::time_point until_;
};

}  // namespace coppice::tier
