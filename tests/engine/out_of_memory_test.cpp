// Memory runs out at every single allocation of a run of the engine, one after the other: that costs the request that
// it was for, or those of one step, and never the engine.
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <new>
#include <random>
#include <string>
#include <utility>

#include "engine/harness.h"
#include "support/failing_new.h"
#include "support/kept_answer.h"

namespace coppice::testing {
namespace {

/// Its own memory, and the sink's, never runs out: other tests look at an executor that throws.
class UncountedExecutor final : public executor::Executor {
 public:
  UncountedExecutor(const kv::CacheConfig& config, int depth) : fake_(config, 0, depth) {}
  const executor::ExecutorInfo& info() const override { return fake_.info(); }
  int depth() const override { return fake_.depth(); }
  executor::Step submit(const executor::Batch& batch) override {
    const NotCounting not_counting;
    return fake_.submit(batch);
  }
  void sample(executor::Step step, std::span<const sampling::SamplerSpec> specs) override {
    const NotCounting not_counting;
    fake_.sample(step, specs);
  }
  executor::Result wait(executor::Step step) override {
    const NotCounting not_counting;
    return fake_.wait(step);
  }
  const FakeExecutor& fake() const { return fake_; }

 private:
  FakeExecutor fake_;
};

/// Preemptions, shared prefixes, samples that part, cancellations, deadlines, requests that are turned away.
class Script {
 public:
  Script(Groups groups, int depth)
      : config_{.groups = groups,
                .num_blocks = 1 + 13 * static_cast<std::int32_t>(make_groups(groups).size()),
                .max_batch = 5,
                .step_tokens = 24,
                .max_extend = 16,
                .max_waiting = 5,
                .growth_room = false},
        executor_(cache_config(config_), depth),
        engine_(kv::Cache(cache_config(config_)), executor_, engine_config(config_),
                [this](std::vector<engine::Event>&& events) {
                  const NotCounting not_counting;
                  for (const auto& event : events) collect(results_.at(event.request), event);
                }) {}

  void go() {
    std::mt19937_64 random(11);
    const auto shared = random_prompt(random, 21);
    for (int i = 0; i < 12; ++i) {
      submit({.prompt = i % 3 == 2 ? random_prompt(random, 30) : shared + random_prompt(random, 4 + random() % 9),
              .max_tokens = static_cast<std::int32_t>(16 + random() % 16),
              .n = i % 4 == 1 ? 2
                   : i == 6   ? 9
                              : 1,
              .seed = random(),
              .salt = i % 5 == 4 ? "a salt that is too long for a short string" : "",
              .cache_report = i % 2 == 0,
              .deadline = i == 7 ? engine::Clock::time_point{} : engine::Clock::now() + std::chrono::hours(1)});
      if (i != 8) step();
      if (i == 9) engine_.cancel(4);
    }
    while (step()) {
    }
    EXPECT_TRUE(executor_.fake().faults().empty());
  }

  void expect_all_well() {
    const auto figures = engine_.snapshot();
    std::int64_t failed = 0;
    for (const auto& [id, result] : results_) {
      EXPECT_EQ(error_in(result, make_groups(config_.groups)), "") << "request " << id;
      failed += result.message == "out of memory";
    }
    EXPECT_EQ(figures.requests_failed, failed);
    EXPECT_LE(failed + 12 - std::ssize(results_), config_.max_batch);
    if (!allocation_failed()) {
      EXPECT_EQ(failed, 0);
      EXPECT_GT(figures.preemptions, 0);
      EXPECT_GT(figures.requests_cancelled, 0);
      EXPECT_GT(figures.requests_timed_out, 0);
      EXPECT_GT(figures.requests_refused, 1);
    }
    EXPECT_EQ(figures.requests_submitted, figures.requests_finished + figures.requests_cancelled +
                                              figures.requests_timed_out + figures.requests_refused +
                                              figures.requests_failed);
    EXPECT_EQ(figures.cache.in_use, 0);
    EXPECT_EQ(figures.cache.reserved, 0);
  }

 private:
  void submit(const Submission& submission) {
    const auto id = engine_.next_id();
    Result& result = results_[id];
    result.samples.resize(static_cast<std::size_t>(submission.n));
    result.submission = submission;
    auto request = make_request(id, submission);
    try {
      const Counting counting;
      engine_.submit(std::move(request));
    } catch (const std::bad_alloc&) {
      results_.erase(id);  // nothing may come of it
    }
  }

  bool step() {
    bool more = false;
    EXPECT_NO_THROW({
      const Counting counting;
      more = engine_.step();
    });
    EXPECT_EQ(engine_.cache().check_integrity(), "");
    return more;
  }

  HarnessConfig config_;
  std::map<engine::RequestId, Result> results_;
  UncountedExecutor executor_;
  engine::Engine engine_;
};

class OutOfMemory : public ::testing::TestWithParam<int> {};  // depth: with 1 a step is in flight nearly always

TEST_P(OutOfMemory, AtEveryAllocation) {
  for (const Groups groups : {Groups::kFull, Groups::kFullAndSliding}) {
    std::int64_t n = 0;
    do {
      SCOPED_TRACE("allocation " + std::to_string(++n));
      fail_allocation(n);
      Script script(groups, GetParam());
      script.go();
      script.expect_all_well();
      if (HasFailure()) return;
    } while (allocation_failed());
    std::cout << n - 1 << " allocations\n";
    EXPECT_GT(n, 500);
  }
}

/// Orders and questions belong to no request: what they throw may not end the engine, and an order has its answer. What
/// a revoked key pinned goes in any case.
TEST_P(OutOfMemory, AtEveryAllocationOfOrdersAndQuestions) {
  using Kind = engine::PrefixCommand::Kind;
  const HarnessConfig config{.depth = GetParam()};
  std::int64_t n = 0;
  do {
    SCOPED_TRACE("allocation " + std::to_string(++n));
    UncountedExecutor executor(cache_config(config), GetParam());
    engine::Engine engine(kv::Cache(cache_config(config)), executor, engine_config(config),
                          [](std::vector<engine::Event>&&) {});
    fail_allocation(0);
    for (const char* payer : {"gone", "stays"})
      engine.submit(make_request(engine.next_id(), {.prompt = Prompt(40, 7),
                                                    .only_prompt = true,
                                                    .salt = payer,
                                                    .pins = {{.tokens = 40, .ttl = std::chrono::hours(1)}},
                                                    .payer = payer}));
    while (engine.step()) {
    }
    ASSERT_GT(engine.snapshot().cache.pinned, 0);
    const auto pinned = engine.snapshot().cache.pinned;
    const auto list = KeptAnswer<engine::PrefixAnswer>::make(), keep = KeptAnswer<engine::PrefixAnswer>::make();
    const auto view = KeptAnswer<engine::View>::make();
    engine.ask({.kind = Kind::kList, .owner = {.payer = "gone", .ns = {.salt = "gone"}}}, list->reply());
    engine.ask({.kind = Kind::kKeepPayers, .payers = {"stays", "a name too long to be in place"}}, keep->reply());
    engine.ask(engine::Question{.ns = {.salt = "stays"}, .limits = {}}, view->reply());
    fail_allocation(n);
    EXPECT_NO_THROW({
      const Counting counting;
      while (engine.step()) {
      }
    });
    EXPECT_EQ(engine.cache().check_integrity(), "");
    EXPECT_EQ(engine.snapshot().cache.pinned, pinned / 2);
    EXPECT_TRUE(list->is_told && keep->is_told && view->is_told) << "an answer, or that there is none";
    EXPECT_TRUE(list->answer || keep->answer) << "one allocation failed, not two";
    if (HasFailure()) return;
  } while (allocation_failed());
  EXPECT_GT(n, 5);
}

/// Destructors cancel.
TEST_P(OutOfMemory, CancellingTakesNone) {
  Harness h({.max_batch = 1, .depth = GetParam()});
  const auto running = h.submit({.prompt = {1, 2, 3}, .max_tokens = 100});
  const auto waiting = h.submit({.prompt = {4, 5, 6}, .max_tokens = 100});
  h.step();
  const auto in_the_mailbox = h.submit({.prompt = {7, 8, 9}, .max_tokens = 100});
  fail_allocation(1, 1000);
  {
    const Counting counting;
    for (const auto id : {in_the_mailbox, waiting, running, running, engine::RequestId{1000}}) h.cancel(id);
  }
  EXPECT_FALSE(allocation_failed());
  fail_allocation(0);
  h.finish();
  EXPECT_EQ(h.snapshot().requests_cancelled, 3);
}

INSTANTIATE_TEST_SUITE_P(Depths, OutOfMemory, ::testing::Values(0, 1));

}  // namespace
}  // namespace coppice::testing
