// SharedSteps: how many rows of prompts a step has while several keys come: as many as take kSeconds at the recent pace, and kLeastRows at
// least. A key's short request waits for the step that runs, and shares the next ones: with whole steps of a slow device that is a second.
// Who has the engine alone keeps whole steps, which read the weights less often.
//
// Not thread safe; the engine's thread owns it.
#pragma once

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <string>

#include "engine/request.h"

namespace coppice::engine {

class SharedSteps {
 public:
  static constexpr double kSeconds = 0.08;
  static constexpr int kLeastRows = 32;
  /// Since another key's request came.
  static constexpr std::chrono::seconds kLately{60};

  void came(const std::string& key, Clock::time_point now) {
    if (last_ && key != *last_) until_ = now + kLately;
    last_ = key;
  }

  /// The most; INT_MAX: any number. tokens_per_second: of prompts, lately; 0: not known.
  int most_rows(double tokens_per_second, Clock::time_point now) const {
    constexpr int kAny = std::numeric_limits<int>::max();
    if (now >= until_) return kAny;
    const double rows = tokens_per_second * kSeconds;
    return rows < kAny ? std::max(static_cast<int>(rows), kLeastRows) : kAny;
  }

 private:
  std::optional<std::string> last_;  ///< whose the last request was
  Clock::time_point until_{};
};

}  // namespace coppice::engine
