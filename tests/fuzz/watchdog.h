// Watchdog: ends the process with a finding where an input takes more CPU time of this thread than threads that all requests share may
// give to one.
#pragma once

#include <fmt/format.h>
#include <time.h>

#include "fuzz/fuzz.h"
#include "support/sanitized.h"

namespace coppice::testing {

inline double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Watchdog {
 public:
  /// Of an input of a mebibyte. Sanitizers take most of the time that they see.
  static constexpr double kMostSeconds = test::kSanitized ? 15 : 1;

  Watchdog() = default;
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() {
    const double seconds = thread_seconds() - begin_ - (excused_ - excused_before_);
    if (seconds > kMostSeconds) finding(fmt::format("an input took {:.1f} s of a thread that all share", seconds));
  }

  /// What has a limit of its own, and another thread: compiling.
  class Excuse {
   public:
    Excuse() = default;
    Excuse(const Excuse&) = delete;
    Excuse& operator=(const Excuse&) = delete;
    ~Excuse() { excused_ += thread_seconds() - begin_; }

   private:
    double begin_ = thread_seconds();
  };

 private:
  static inline thread_local double excused_ = 0;
  double begin_ = thread_seconds(), excused_before_ = excused_;
};

}  // namespace coppice::testing
