// How far a download is, on standard error: a line that is written over on a terminal, a line at each tenth elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "pull/download.h"

namespace coppice::cli {

class PullProgress : public pull::Progress {
 public:
  explicit PullProgress(bool terminal) : terminal_(terminal) {}
  /// Ends the line.
  ~PullProgress() override;
  PullProgress(const PullProgress&) = delete;
  PullProgress& operator=(const PullProgress&) = delete;

  void has(const pull::WantedFile& file, std::uint64_t bytes) override;
  void waits(const std::string& why, std::chrono::milliseconds time) override;
  void says(const std::string& sentence) override;

 private:
  using Clock = std::chrono::steady_clock;

  /// `ends`: the next one does not take its place.
  void show(const std::string& line, bool ends);

  const bool terminal_;
  bool open_ = false;  ///< the terminal's line has not ended
  std::string name_;   ///< of the file whose progress is shown
  std::uint64_t first_ = 0, last_ = 0, tenth_ = 0;
  Clock::time_point began_, shown_;
};

}  // namespace coppice::cli
