#include "engine/step_runner.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/batch_builder.h"
#include "engine/stopwatch.h"

namespace coppice::engine {

void StepRunner::build(const kv::Cache& cache, const PlannedStep& step) {
  build_batch(cache, step, batch_);
}

void StepRunner::submit(PlannedStep& step) {
  const Stopwatch stopwatch(seconds_);
  step.submitted = Clock::now();
  step.step = executor_.submit(batch_);
}

void StepRunner::wake() {
  constexpr auto kAtOnce = std::chrono::milliseconds(20);  // so long others wait for an answer
  const Stopwatch stopwatch(waking_seconds_);
  waking_ = false;
  asleep_ = !executor_.wake(Clock::now() + kAtOnce);
  waking_ = asleep_;
  if (!asleep_) ++wakes_;
}

void StepRunner::sample(const PlannedStep& step, std::span<const sampling::SamplerSpec> specs) {
  if (!specs.empty()) executor_.sample(*step.step, specs);
}

const executor::Result& StepRunner::wait(PlannedStep& step) {
  const Stopwatch stopwatch(seconds_);
  result_ = executor_.wait(*std::exchange(step.step, {}));
  const Clock::time_point begun = std::max(step.submitted, waited_);  // it ran behind the one before it
  waited_ = Clock::now();
  seconds_of_last_ = std::chrono::duration<double>(waited_ - begun).count();
  return result_;
}

}  // namespace coppice::engine
