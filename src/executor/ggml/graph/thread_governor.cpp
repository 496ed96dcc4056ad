#include "executor/ggml/graph/thread_governor.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace coppice::executor {

namespace {

/// Seconds until the next trial after one that failed: twice as many each time, and so many windows at least, which are
/// long where steps are.
constexpr double kFirstWait = 0.1, kLongestMore = 1.0, kLongestFewer = 8.0, kWindowsMore = 5, kWindowsFewer = 20;
/// A trial of more threads ends at once when they have waited so long: tokens are late meanwhile.
constexpr double kLate = 0.002;
/// Steps so far apart say nothing about each other: neighbours come and go.
constexpr double kPause = 1.0;
constexpr double kForget = 0.1;
/// On a processor that two want each waits half of the time, and more where threads rest (docs/decisions.md,
/// "Rests beside neighbours"). Where so large a share of the threads waits, every processor is taken, and fewer threads
/// have less.
constexpr double kWaitsOnTaken = 0.5, kAllTaken = 0.45;
/// So much faster is no accident.
constexpr double kFaster = 1.03;
/// Seconds of steps that are long, on average over a window: decisions are few.
constexpr double kLong = ThreadGovernor::kWindow / 2;
/// A step of a trial with few threads takes long: never fewer than one in so many of those before.
constexpr int kDeepest = 2;

}  // namespace

ThreadGovernor::ThreadGovernor(int most, std::function<double()> delays)
    : most_(most), n_(most), delays_(std::move(delays)), wait_more_(kFirstWait), wait_fewer_(kFirstWait) {
  window_.delays = seen_ = delays_();
}

bool ThreadGovernor::ran(double now, double seconds, int kind, int used) {
  if (most_ == 1) return false;
  const int before = n_;
  if (now - last_ > kPause) next_more_ = next_fewer_ = now;
  last_ = now;
  const double delays = trial_ ? delays_() : seen_;
  if (trial_ && used < n_) {  // nothing about the trial: it neither had its threads nor should its waiting count
    window_.delays += delays - seen_;
    seen_ = delays;
    return false;
  }
  seen_ = delays;
  double& usual = usual_.try_emplace(kind, seconds).first->second;
  window_.seconds += seconds;
  window_.expected += usual;
  window_.used = std::max(window_.used, used);
  ++window_.steps;
  if (!trial_ && !before_) usual += kForget * (seconds - usual);
  if (window_.seconds >= kWindow) {
    decide(now);
  } else if (trial_ && trial_->more() && trial_->waiting <= kLittle && seen_ - window_.delays >= kLate) {
    give_up(now);
    window_ = {.delays = seen_};
  }
  return n_ != before;
}

void ThreadGovernor::decide(double now) {
  if (!trial_) seen_ = delays_();
  const double waiting = (seen_ - window_.delays) / window_.seconds, speed = window_.expected / window_.seconds;
  const int used = window_.used;
  took_ = window_.seconds;
  long_steps_ = took_ >= window_.steps * kLong;
  window_ = {.delays = seen_};
  if (trial_) return judge(now, waiting, speed);
  if (waiting <= kLittle) wait_fewer_ = kFirstWait;
  if (n_ < least()) {  // short steps had fewer
    n_ = least();
    return;
  }
  const int most_fewer = used - fewest(used);
  if (waiting > kMuch && waiting < kAllTaken * used && most_fewer > 0 && now >= next_fewer_) {
    const int taken = static_cast<int>(std::lround(waiting / kWaitsOnTaken));
    try_out(used - std::clamp(taken, std::min(fewer_, most_fewer), most_fewer), waiting, speed);
  } else if (n_ < most_ && used == n_ && now >= next_more_) {
    try_more(waiting, speed);
  }
}

int ThreadGovernor::fewest(int from) const {
  return std::max(from / kDeepest, least());
}

void ThreadGovernor::try_more(double waiting, double speed) {
  try_out(std::min(n_ + more_, most_), waiting, speed);
}

void ThreadGovernor::try_out(int n, double waiting, double speed) {
  trial_ = Trial{.from = n_, .to = n, .waiting = waiting, .speed = speed};
  n_ = n;
}

void ThreadGovernor::judge(double now, double waiting, double speed) {
  const bool calm = waiting <= kLittle;
  if (!trial_->more()) {
    if (!calm && speed < kFaster * trial_->speed) return give_up(now);
    before_ = Before{.n = trial_->from, .speed = trial_->speed};
    fewer_ = more_ = 1;
    return try_more(waiting, speed);
  }
  // More threads of which none waits are right, even where they are of little use. Where all processors are taken only
  // speed tells.
  const bool free = trial_->waiting <= kMuch;
  if ((free && waiting > kMuch) || speed < (free ? 0.95 : kFaster) * trial_->speed) return give_up(now);
  more_ = std::min(2 * more_, most_);
  wait_more_ = kFirstWait;
  if (n_ < most_) return try_more(waiting, speed);
  before_.reset();
  trial_.reset();
}

void ThreadGovernor::give_up(double now) {
  const Trial trial = *trial_;
  trial_.reset();
  n_ = trial.from;
  if (!trial.more() && trial.to > fewest(trial.from)) {
    fewer_ = 2 * (trial.from - trial.to);  // as long as one of the threads has a neighbour, all are as slow
    return;
  }
  const bool vain = !trial.more() || (before_ && trial.speed < before_->speed);
  if (trial.more()) {
    more_ = 1;
    next_more_ = now + std::max(wait_more_, kWindowsMore * took_);
    wait_more_ = std::min(2 * wait_more_, kLongestMore);
  }
  if (vain) {
    if (before_) n_ = before_->n;
    fewer_ = 1;
    next_fewer_ = now + std::max(wait_fewer_, kWindowsFewer * took_);
    wait_fewer_ = std::min(2 * wait_fewer_, kLongestFewer);
  } else {
    wait_fewer_ = kFirstWait;
  }
  before_.reset();
}

}  // namespace coppice::executor
