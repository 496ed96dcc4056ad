// Memory runs out at every single allocation of the engine's thread during a run, one after the other, for once or for a
// while: requests fail, the engine lives, every request has its end, and no block is lost.
#include <gtest/gtest.h>

#include <iostream>

#include "engine/harness.h"
#include "support/failing_new.h"
#include "support/kv_shapes.h"

namespace coppice::testing {
namespace {

class Script {
 public:
  /// hashes: the digest of so many blocks is the last that can be had for once; 0: all can.
  explicit Script(Groups groups, int hashes = 0) : hashes_(hashes), executor_(config(groups)) {
    engine_.emplace(
        kv::Cache(config(groups)), executor_,
        engine::EngineConfig{.max_batch = 5, .step_tokens = 24, .growth_room = false, .now = [this] { return now_; }},
        [this](std::vector<engine::Event>&& events) {
          const NotCounting not_counting;
          for (const auto& event : events) collect(results_.at(event.request), event);
        });
  }

  /// stop_at: the engine is stopped before request number so many; -1: never.
  void go(int stop_at = -1) {
    std::mt19937_64 random(3);
    const auto shared = random_prompt(random, 21);
    for (int i = 0; i < 9; ++i) {
      Submission s{.prompt = i % 3 == 2 ? random_prompt(random, 30) : shared + random_prompt(random, 4 + random() % 9),
                   .max_tokens = static_cast<std::int32_t>(16 + random() % 16),
                   .n = i % 4 == 1 ? 2 : 1,
                   .seed = random(),
                   .stop_after = i == 4 ? 3 : 0,
                   .salt = i == 7 ? "a salt that is too long for a short string" : ""};
      s.priority = i == 5 ? -1 : 0;
      s.cache_report = i % 2 == 0;
      if (i == 6) s.deadline = now_ + std::chrono::milliseconds(9);
      submit(std::move(s));
      if (i == stop_at) engine_->stop();
      if (i == 8) engine_->cancel(3);
      step();
      step();
    }
    if (stop_at < 0) submit({.prompt = random_prompt(random, 5000), .max_tokens = 2});  // can never fit
    int steps = 0;
    while (step() && !::testing::Test::HasFailure()) ASSERT_LT(++steps, 1000) << "it hangs";
    for (const auto& [id, result] : results_) EXPECT_EQ(error_in(result, groups_), "") << "request " << id;
    const auto figures = engine_->snapshot();
    EXPECT_EQ(figures.cache.in_use, 0);
    EXPECT_EQ(figures.cache.reserved, 0);
    EXPECT_EQ(figures.running_requests + figures.waiting_requests, 0);
    EXPECT_EQ(figures.requests_submitted, figures.requests_finished + figures.requests_cancelled +
                                              figures.requests_timed_out + figures.requests_refused +
                                              figures.requests_failed);
    if (!allocation_failed() && hashes_ >= 0) EXPECT_EQ(figures.requests_failed, 0);
    preemptions_ = figures.preemptions;
    evictions_ = figures.cache.evictions;
  }
  std::int64_t preemptions_ = 0, evictions_ = 0;
  bool hash_failed() const { return hashes_ < 0; }

 private:
  kv::CacheConfig config(Groups groups) {
    groups_ = make_groups(groups);
    return {.block_size = 8,
            .num_blocks = 1 + 11 * static_cast<std::int32_t>(groups_.size()),
            .bytes_per_block = 128,
            .groups = groups_,
            .max_extend = 16,
            .hash = [this](std::span<const std::byte> bytes) {
              if (hashes_ > 0 && --hashes_ == 0) {
                hashes_ = -1;
                throw std::runtime_error("no digest can be had");
              }
              return kv::sha256(bytes);
            }};
  }
  void submit(Submission s) {
    const auto id = engine_->next_id();
    Result& result = results_[id];
    result.submission = s;
    result.samples.resize(static_cast<std::size_t>(s.n));
    engine_->submit(make_request(id, s));
  }
  bool step() {
    now_ += std::chrono::milliseconds(1);
    bool more = false;
    {
      const Counting counting;
      more = engine_->step();
    }
    EXPECT_EQ(engine_->cache().check_integrity(), "") << engine_->cache().dump();
    EXPECT_TRUE(executor_.faults().empty()) << executor_.faults().front();
    return more;
  }

  int hashes_;
  std::vector<kv::GroupSpec> groups_;
  FakeExecutor executor_;
  std::map<engine::RequestId, Result> results_;
  std::optional<engine::Engine> engine_;
  engine::Clock::time_point now_{std::chrono::hours(1)};
};

using OutOfMemory = PerGroups;

// Memory is short for one allocation, two of them, or a while: what is done about the first failure meets the next ones.
TEST_P(OutOfMemory, AtEveryAllocation) {
  const auto lengths = test::kSanitized ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{0, 1, 30};
  for (const std::int64_t more : lengths) {
    std::int64_t n = 0;
    std::optional<Script> run;
    do {
      SCOPED_TRACE("allocation " + std::to_string(++n) + " and " + std::to_string(more) + " more");
      fail_allocation(n, more);
      run.emplace(GetParam()).go();
      if (HasFailure()) return;
    } while (allocation_failed());
    std::cout << n - 1 << " allocations, " << more << " more; the run without a failure: " << run->preemptions_
              << " preemptions, " << run->evictions_ << " evictions\n";
    EXPECT_GT(n, 300);
    if (GetParam() == Groups::kFull) EXPECT_GT(run->preemptions_, 0);  // windows give room back
    EXPECT_GT(run->evictions_, 0);
  }
}

TEST_P(OutOfMemory, AtEveryAllocationOfARunThatIsStopped) {
  for (const std::int64_t more : {0, 30}) {
    std::int64_t n = 0;
    do {
      SCOPED_TRACE("allocation " + std::to_string(++n) + " and " + std::to_string(more) + " more");
      fail_allocation(n, more);
      Script(GetParam()).go(6);
      if (HasFailure()) return;
    } while (allocation_failed());
    EXPECT_GT(n, 100);
  }
}

// Not only memory can run out.
TEST_P(OutOfMemory, NoDigestCanBeHad) {
  fail_allocation(0);
  int n = 0;
  std::optional<Script> run;
  do {
    SCOPED_TRACE("digest " + std::to_string(++n));
    run.emplace(GetParam(), n).go();
    if (HasFailure()) return;
  } while (run->hash_failed());
  EXPECT_GT(n, 50);
}

COPPICE_FOR_ALL_GROUPS(OutOfMemory);

TEST(OutOfMemoryOutside, ARequestThatCouldNotBeHandedOverIsNoneOfTheEngines) {
  Harness h({});
  auto request = make_request(h.engine().next_id(), {.prompt = {1, 2, 3}, .max_tokens = 2});
  const auto submit = [&] {
    const Counting counting;
    h.engine().submit(std::move(request));
  };
  fail_allocation(1);
  EXPECT_THROW(submit(), std::bad_alloc);
  EXPECT_EQ(h.snapshot().requests_submitted, 0);
  EXPECT_FALSE(h.step());
}

}  // namespace
}  // namespace coppice::testing
