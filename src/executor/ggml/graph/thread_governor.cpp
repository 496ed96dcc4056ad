#include "executor/ggml/graph/thread_governor.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace coppice::executor {

namespace {

/// Seconds until the next trial after one that failed: twice as many each time.
constexpr double kFirstWait = 0.1, kLongestMore = 1.0, kLongestFewer = 4.0;
/// A trial of more threads ends at once when they have waited so long: tokens are late meanwhile.
constexpr double kLate = 0.002;
/// Steps so far apart say nothing about each other: neighbours come and go.
constexpr double kPause = 1.0;
constexpr double kForget = 0.1;

}  // namespace

ThreadGovernor::ThreadGovernor(int most, std::function<double()> delays)
    : most_(most), n_(most), delays_(std::move(delays)), wait_more_(kFirstWait), wait_fewer_(kFirstWait) {
  window_.delays = delays_();
}

bool ThreadGovernor::ran(double now, double seconds, int kind) {
  if (most_ == 1) return false;
  const int before = n_;
  if (now - last_ > kPause) next_more_ = next_fewer_ = now;
  last_ = now;
  double& usual = usual_.try_emplace(kind, seconds).first->second;
  window_.seconds += seconds;
  window_.expected += usual;
  if (!trial_) usual += kForget * (seconds - usual);
  const bool risky = trial_ && trial_->more() && trial_->waiting <= kLittle;
  const bool over = window_.seconds >= kWindow;
  if (!over && !risky) return false;
  const double delays = delays_(), waited = delays - window_.delays;
  if (!over && waited < kLate) return false;
  if (over) {
    decide(now, waited / window_.seconds, window_.expected / window_.seconds);
  } else {
    give_up(now);
  }
  window_ = {.delays = delays};
  return n_ != before;
}

void ThreadGovernor::decide(double now, double waiting, double speed) {
  if (trial_) return judge(now, waiting, speed);
  if (waiting <= kLittle) wait_fewer_ = kFirstWait;
  if (waiting > kMuch && n_ > 1 && now >= next_fewer_) {
    try_out(-std::clamp(static_cast<int>(std::lround(waiting)), std::min(fewer_, n_ - 1), n_ - 1), waiting, speed);
  } else if (n_ < most_ && now >= next_more_) {
    try_out(std::min(more_, most_ - n_), waiting, speed);
  }
}

void ThreadGovernor::try_out(int step, double waiting, double speed) {
  trial_ = Trial{.from = n_, .waiting = waiting, .speed = speed, .step = step};
  n_ += step;
}

void ThreadGovernor::judge(double now, double waiting, double speed) {
  const bool calm = waiting <= kLittle;
  // More threads of which none waits are right, even where they are of little use. Where all processors are taken only speed tells.
  const double least = trial_->more() ? (trial_->waiting <= kMuch ? 0.95 : 1.05) : (calm ? 0.9 : 1.03);
  const bool disturbed = trial_->more() && trial_->waiting <= kMuch && waiting > kMuch;
  if (disturbed || speed < least * trial_->speed) return give_up(now);
  if (trial_->more()) {
    more_ = std::min(2 * more_, most_);
    wait_more_ = kFirstWait;
    next_more_ = now;
  } else {
    fewer_ = 1;
    wait_fewer_ = kFirstWait;
    next_more_ = now + wait_more_;
  }
  trial_.reset();
}

void ThreadGovernor::give_up(double now) {
  n_ = trial_->from;
  if (trial_->more()) {
    more_ = 1;
    next_more_ = now + wait_more_;
    wait_more_ = std::min(2 * wait_more_, kLongestMore);
  } else if (const int fewer = -trial_->step; fewer + 1 < n_) {
    fewer_ = std::min(2 * fewer, n_ - 1);  // as long as one of the threads has a neighbour, all are as slow
  } else {
    fewer_ = 1;
    next_fewer_ = now + wait_fewer_;
    wait_fewer_ = std::min(2 * wait_fewer_, kLongestFewer);
  }
  trial_.reset();
}

}  // namespace coppice::executor
