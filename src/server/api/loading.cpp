#include "server/api/loading.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace coppice::server {

void Loading::set(std::string stage, double fraction, Clock::time_point now) {
  if (stage != stage_) {
    began_ = now;
    first_ = fraction;
  }
  stage_ = std::move(stage);
  fraction_ = fraction;
  last_ = now;
}

int Loading::retry_after_s(Clock::time_point now) const {
  constexpr int kLast = 2;
  constexpr double kLeast = 5, kMost = 60, kMargin = 1.25;
  const double done = fraction_ - first_, rest = 1 - fraction_;
  if (rest <= 0) return kLast;  // what tells no progress
  const std::chrono::duration<double> so_far = last_ - began_, since = now - last_;
  const double seconds = done > 0 ? kMargin * so_far.count() * rest / done - since.count() : 0;
  return static_cast<int>(std::ceil(std::clamp(seconds, kLeast, kMost)));
}

}  // namespace coppice::server
