// Loading: how far a model's loading is, and when a client that comes too early should ask again.
//
// OpenAI's and Anthropic's libraries ask twice more, and wait as long as Retry-After says; older ones, if that is at
// most 60 s. Told 1 s, they give up after 2 s.
//
// A value.
#pragma once

#include <chrono>
#include <string>

namespace coppice::server {

class Loading {
 public:
  using Clock = std::chrono::steady_clock;

  /// `fraction`: of the stage.
  void set(std::string stage, double fraction, Clock::time_point now);

  const std::string& stage() const { return stage_; }
  double fraction() const { return fraction_; }
  /// A little more than the stage's rest should take, as it went so far, and 5 to 60, as other stages may follow. 2 at
  /// a stage's end, behind which nothing is told.
  int retry_after_s(Clock::time_point now) const;

 private:
  std::string stage_ = "starting";
  double fraction_ = 0, first_ = 0;     ///< by now; when the stage began
  Clock::time_point began_{}, last_{};  ///< the stage; said last
};

}  // namespace coppice::server
