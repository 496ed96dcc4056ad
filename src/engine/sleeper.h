// Sleeper: lets the weights' memory go when nothing has been computed for a while. StepLoop brings it back once
// somebody would have rows. Not thread safe; the engine's thread owns it.
#pragma once

#include <optional>

#include "engine/config.h"
#include "engine/step_runner.h"

namespace coppice::engine {

class Sleeper {
 public:
  Sleeper(StepRunner& runner, const EngineConfig& config)
      : runner_(runner), after_(config.sleep_after), last_(config.now()) {}

  /// There was a step with rows, or somebody waits for one.
  void worked(Clock::time_point now) { last_ = now; }
  /// When it is time; never: it sleeps, or may not.
  std::optional<Clock::time_point> due() const {
    if (after_ == Clock::duration::zero() || runner_.asleep()) return std::nullopt;
    return last_ + after_;
  }
  /// True: it has gone to sleep. REQUIRES: no step is under way, and nobody waits for one.
  bool rest(Clock::time_point now) {
    if (due().value_or(Clock::time_point::max()) > now) return false;
    try {
      if (runner_.sleep()) return true;
    } catch (const executor::StepError&) {  // the device failed: the next step's requests are told so
    }
    after_ = Clock::duration::zero();  // the executor can't
    return false;
  }

 private:
  StepRunner& runner_;
  Clock::duration after_;
  Clock::time_point last_;
};

}  // namespace coppice::engine
