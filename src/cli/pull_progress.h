// How far a download is, on standard error: a line that is written over on a terminal, a line at each tenth elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "pull/download.h"

namespace coppice::cli {

class PullProgress {
 public:
  explicit PullProgress(bool terminal) : terminal_(terminal) {}

  void operator()(const pull::WantedFile& file, std::uint64_t have);

 private:
  using Clock = std::chrono::steady_clock;

  const bool terminal_;
  std::string name_;  ///< of the file whose progress is shown
  std::uint64_t first_ = 0, tenth_ = 0;
  Clock::time_point began_, shown_;
};

}  // namespace coppice::cli
