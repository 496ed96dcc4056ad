// Watchdog: ends the process with a finding where an input takes more CPU time of this thread, without a pause, than
// threads that all requests share may give to one.
#pragma once

#include <fmt/format.h>
#include <time.h>

#include <algorithm>

#include "fuzz/fuzz.h"
#include "port/turn.h"
#include "support/sanitized.h"

namespace coppice::testing {

inline double thread_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Watchdog final : public port::Turn {
 public:
  /// Of an input of a mebibyte, between two steps. Sanitizers and emulators take most of the time that they see.
  static constexpr double kMostSeconds = test::kSlow ? 5 : 0.25;

  explicit Watchdog(double most_seconds = kMostSeconds) : most_(most_seconds) { port::set_turn(this); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog() override {
    between_steps();
    port::set_turn(nullptr);
    if (longest_ > most_)
      finding(fmt::format("an input took {:.2f} s of a thread that all share, without a pause", longest_));
  }

  void between_steps() noexcept override {
    const double now = thread_seconds() - excused_;
    longest_ = std::max(longest_, now - begin_);
    begin_ = now;
  }
  double longest() const { return longest_; }

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
  double most_;
  double begin_ = thread_seconds() - excused_, longest_ = 0;
};

}  // namespace coppice::testing
