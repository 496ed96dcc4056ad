// Allowance: how much may be written, at most so many bytes in any day. Plain data; not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

namespace coppice::tier {

/// It gathers for a tenth of a day, and comes in at nine tenths a day: so no day sees more than all of it.
class Allowance {
 public:
  using Clock = std::chrono::steady_clock;

  /// 0: no limit.
  explicit Allowance(std::uint64_t bytes_a_day) : a_day_(static_cast<double>(bytes_a_day)), there_(a_day_ / 10) {}

  /// False: there isn't as much now.
  bool spend(std::uint64_t bytes, Clock::time_point now) {
    if (a_day_ == 0) return true;
    const std::chrono::duration<double> passed = now - last_.value_or(now);
    last_ = now;
    there_ += std::max(passed.count(), 0.0) / kDaySeconds * 0.9 * a_day_;
    there_ = std::min(there_, a_day_ / 10);
    if (there_ < static_cast<double>(bytes)) return false;
    there_ -= static_cast<double>(bytes);
    return true;
  }

 private:
  static constexpr double kDaySeconds = 86400;

  double a_day_, there_;
  std::optional<Clock::time_point> last_;
};

}  // namespace coppice::tier
