// XGrammar's private header of messages declares CountWork() (cmake/xgrammar), which no public one does.
#include "grammar/work.h"

#include <fmt/format.h>
#include <support/logging.h>

#include <ctime>

#include "port/turn.h"

namespace coppice::grammar {

namespace {

constexpr std::int64_t kStepsBetween = 1000;  ///< readings of the clock: a mask's, or some 0.1 ms of smaller ones

thread_local WorkLimit* counting = nullptr;

}  // namespace

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

WorkLimit::WorkLimit(double seconds) : seconds_(seconds), until_(cpu_seconds() + seconds) {
  counting = this;
}

WorkLimit::~WorkLimit() {
  counting = nullptr;
}

void WorkLimit::count(int steps) {
  unchecked_ += steps;
  if (unchecked_ < kStepsBetween) return;
  unchecked_ = 0;
  port::between_steps();
  if (cpu_seconds() > until_)
    throw WorkError(fmt::format("it takes too much work: more than {:g} s to compile", seconds_));
}

static void count_work(int steps) {
  if (counting != nullptr) counting->count(steps);
}

}  // namespace coppice::grammar

namespace xgrammar {

void CountWork(int steps) {
  coppice::grammar::count_work(steps);
}

}  // namespace xgrammar
