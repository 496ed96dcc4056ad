#include "executor/ggml/graph/thread_governor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>

#include "executor/ggml/graph/step_cost.h"

namespace coppice::executor {
namespace {

/// A machine whose steps take 40 ms of one thread. A thread on a busy processor waits half of the time, and all wait
/// for it.
class Machine {
 public:
  explicit Machine(int n_processors, std::uint32_t seed = 1)
      : n_processors_(n_processors), random_(seed), governor_(n_processors, [this] { return delays_; }) {}

  int busy = 0;         ///< processors that other programs hold, for as long as nobody else wants them
  double noise = 0.02;  ///< of a step's time
  int fewest = 1000;    ///< threads that a step had
  double work = 1;      ///< of a step

  void run(double seconds) {
    for (const double end = now_ + seconds; now_ < end;) step(1000, work);
  }
  void pause(double seconds) { now_ += seconds; }
  /// A prompt's step, which is worth all threads, and an answer of 64 steps that are worth `worth` and take a hundredth
  /// of its time. Returns seconds of the prompt's.
  double answer(int worth) {
    const double before = now_;
    step(1000, 10.0, /*kind=*/512);
    const double seconds = now_ - before;
    for (int i = 0; i < 64; ++i) step(worth, 0.1, /*kind=*/1);
    return seconds;
  }
  int n() const { return governor_.n_threads(); }

  /// Of the last run, in steps of one thread a second.
  double speed_of(double seconds) {
    const double start = now_;
    const int before = n_steps_;
    run(seconds);
    return (n_steps_ - before) / (now_ - start);
  }

 private:
  void step(int worth, double of_work, int kind = 1) {
    const int n = std::min(governor_.n_threads(), worth), free = n_processors_ - busy;
    const int shared = std::max(n - free, 0);
    const double quiet = of_work * 0.040 / n * (1 + noise * std::uniform_real_distribution(-1.0, 1.0)(random_));
    // With one shared processor half of the speed; with many all of them are seldom there at once.
    const double seconds = shared == 0 ? quiet : quiet * (2 + 0.1 * shared);
    // Whoever is waited for waits itself, the others sleep.
    delays_ += shared == 0 ? 0.01 * seconds : std::min<double>(shared, 1 + 0.2 * shared) * 0.5 * seconds;
    now_ += seconds;
    ++n_steps_;
    fewest = std::min(fewest, n);
    governor_.ran(now_, seconds, kind, n);
  }

  int n_processors_;
  std::mt19937 random_;
  double delays_ = 0, now_ = 100;
  int n_steps_ = 0;
  ThreadGovernor governor_;
};

TEST(ThreadGovernor, AllThreadsWhereNobodyElseRuns) {
  Machine machine(16);
  for (int i = 0; i < 50; ++i) {
    machine.run(0.1);
    EXPECT_EQ(machine.n(), 16);
  }
}

TEST(ThreadGovernor, StepsDownToTheFreeProcessors) {
  for (const int busy : {1, 4, 8}) {
    Machine machine(16);
    machine.run(0.5);
    machine.busy = busy;
    machine.run(1.0);
    EXPECT_NEAR(machine.n(), 16 - busy, 1) << busy;
    const double alone = (16 - busy) / 0.040;
    EXPECT_GT(machine.speed_of(10), 0.9 * alone) << busy;
  }
}

/// Where most are busy a trial of so few would take long, and all threads together have more.
TEST(ThreadGovernor, TriesNoFewerThanAboutHalf) {
  Machine machine(16);
  machine.run(0.5);
  machine.busy = 13;
  machine.run(10);
  EXPECT_GE(machine.fewest, 6);
  EXPECT_GT(machine.speed_of(10), 0.9 * 16 / 0.040 / 3.3);
}

/// With fewer, two servers beside each other drift to uneven shares of a machine, 2.3 to 1 once. Whatever it is told.
TEST(ThreadGovernor, LongStepsKeepHalfOfTheThreads) {
  const char* given = std::getenv("COPPICE_SEED");
  const auto seed = given ? static_cast<std::uint32_t>(std::stoul(given)) : std::random_device{}();
  SCOPED_TRACE("COPPICE_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  double delays = 0, now = 0;
  ThreadGovernor governor(15, [&] { return delays; });
  const auto run = [&](double least, double most, int kind) {
    const double seconds = std::uniform_real_distribution(least, most)(random);
    now += seconds;
    delays += seconds * std::uniform_real_distribution(0.0, 0.6)(random) * governor.n_threads();
    governor.ran(now, seconds, kind, governor.n_threads());
  };
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 1'000; ++k) run(0.001, 0.003, /*kind=*/1);  // these may have fewer
    for (int k = 0; k < 4; ++k) run(0.05, 0.3, /*kind=*/512);       // of which trials may be left
    for (int k = 0; k < 100; ++k) {
      run(0.05, 0.3, /*kind=*/512);
      ASSERT_GE(governor.n_threads(), 8);
    }
  }
}

/// A prompt's step of 2,048 rows takes a quarter of a second: trials are few.
TEST(ThreadGovernor, LongStepsArentSpentOnTrials) {
  Machine machine(16);
  machine.work = 80;
  machine.busy = 16;
  machine.run(30);
  EXPECT_GT(machine.speed_of(60) * 80, 0.9 * 16 / 0.040 / 3.6);
  machine.busy = 8;
  machine.run(30);
  EXPECT_GT(machine.speed_of(60) * 80, 0.85 * 8 / 0.040);
}

TEST(ThreadGovernor, TakesThemBackWithinTwoSeconds) {
  Machine machine(16);
  machine.busy = 8;
  machine.run(20);
  ASSERT_LE(machine.n(), 9);
  machine.busy = 0;
  machine.run(2);
  EXPECT_EQ(machine.n(), 16);
}

TEST(ThreadGovernor, AfterAPauseItTriesAtOnce) {
  Machine machine(8);
  machine.busy = 4;
  machine.run(20);
  machine.busy = 0;
  machine.pause(5);
  machine.run(0.5);
  EXPECT_EQ(machine.n(), 8);
}

/// Fewer are no faster then.
TEST(ThreadGovernor, KeepsMostWhereAllProcessorsAreTaken) {
  Machine machine(4);
  machine.busy = 4;
  EXPECT_GT(machine.speed_of(10), 0.9 * 4 / 0.040 / 2.4);
}

/// A step on one of 16 threads takes as long as many on all.
TEST(ThreadGovernor, NeverTriesVeryFewWhereAllProcessorsAreTaken) {
  Machine machine(16);
  machine.busy = 16;
  machine.run(10);
  EXPECT_GE(machine.fewest, 6);
}

/// Steps of one stream are calm on half of the processors: that says nothing about the other half.
TEST(ThreadGovernor, SmallStepsSayNothingAboutThreadsThatTheyDontHave) {
  Machine machine(16);
  machine.busy = 8;
  for (int i = 0; i < 100; ++i) machine.answer(8);
  double seconds = 0;
  for (int i = 0; i < 100; ++i) seconds += machine.answer(8);
  EXPECT_LT(seconds / 100, 0.40 / 8 / 0.9);
  // And prompts of one step find it out when the others go, too.
  machine.busy = 0;
  for (int i = 0; i < 20; ++i) machine.answer(8);
  EXPECT_EQ(machine.n(), 16);
}

TEST(ThreadGovernor, OneThreadStaysOne) {
  Machine machine(1);
  machine.busy = 1;
  machine.run(2);
  EXPECT_EQ(machine.n(), 1);
}

/// Whatever it is told, there is a thread, and no more than there are.
TEST(ThreadGovernor, NeverLeavesItsBounds) {
  const char* given = std::getenv("COPPICE_SEED");
  const auto seed = given ? static_cast<std::uint32_t>(std::stoul(given)) : std::random_device{}();
  SCOPED_TRACE("COPPICE_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  double delays = 0, now = 0;
  ThreadGovernor governor(6, [&] { return delays; });
  for (int i = 0; i < 20'000; ++i) {
    const double seconds = std::uniform_real_distribution(1e-5, 0.03)(random);
    if (random() % 3 != 0) delays += seconds * std::uniform_real_distribution(0.0, 6.0)(random);
    now += seconds + (random() % 500 == 0 ? 3 : 0);
    governor.ran(now, seconds, static_cast<int>(random() % 4),
                 1 + static_cast<int>(random() % static_cast<unsigned>(governor.n_threads())));
    ASSERT_GE(governor.n_threads(), 1);
    ASSERT_LE(governor.n_threads(), 6);
  }
}

TEST(StepCost, ASmallStepIsWorthFewThreads) {
  StepCost small(200), large(200), unknown(200);
  for (int i = 0; i < 20; ++i) {
    small.ran(8, 0.004 / 8 + 200 * StepCost::kShare * 8);
    large.ran(8, 0.4 / 8 + 200 * StepCost::kShare * 8);
  }
  EXPECT_NEAR(small.threads(16), 8, 1);  // the root of 4,000 us / 70 us
  EXPECT_EQ(large.threads(16), 16);
  EXPECT_EQ(unknown.threads(16), 16);
  EXPECT_EQ(small.threads(2), 2);
}

/// Threads of the last of `n` steps, and how many of all had more than 16. `seconds`: of a step, by its threads.
template <class Seconds>
std::pair<int, int> after(int n, Seconds seconds) {
  StepCost cost(200);
  int threads = 0, more = 0;
  for (int i = 0; i < n; ++i) {
    threads = cost.threads(64);
    more += threads > 16 ? 1 : 0;
    cost.ran(threads, seconds(threads));
  }
  return {threads, more};
}

TEST(StepCost, MoreThanSixteenThreadsMustShowTheirWorth) {
  EXPECT_EQ(after(100, [](int n) { return 1.0 / n; }).first, 64);
  // As on 64 processors of a virtual machine that hadn't as many cores.
  const auto [threads, more] = after(1000, [](int n) { return n > 16 ? 0.15 : 1.0 / n; });
  EXPECT_EQ(threads, 16);
  EXPECT_LT(more, 20);
  EXPECT_EQ(after(100, [](int n) { return n > 32 ? 0.15 : 1.0 / n; }).first, 32);
}

}  // namespace
}  // namespace coppice::executor
