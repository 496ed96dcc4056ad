// The engine in its thread, clients in theirs: submit, cancel, snapshot and stop at any time; the cache is checked
// after each step. Fit for TSan.
//
// An operation is a submission or a cancellation. There are some 2,800 in all (COPPICE_OPERATIONS: another number, in
// rounds of a fresh engine), a quarter of them with each set of groups and each depth of the executor, and each hard
// transition must be met once in a thousand.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <iostream>
#include <map>
#include <mutex>
#include <thread>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

// Results by request, filled on the engine's thread, awaited on the clients'.
class Inbox {
 public:
  void expect(engine::RequestId id, const Submission& submission) {
    const std::lock_guard lock(mutex_);
    Result& result = results_[id];
    result.submission = submission;
    result.samples.resize(static_cast<std::size_t>(submission.n));
  }
  void take(const std::vector<engine::Event>& events) {
    const std::lock_guard lock(mutex_);
    for (const auto& event : events) collect(results_.at(event.request), event);
    changed_.notify_all();
  }
  void wait_done(engine::RequestId id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return results_.at(id).done; });
  }
  /// Or done: it may never stream.
  void wait_streaming(engine::RequestId id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return results_.at(id).done || !results_.at(id).samples[0].tokens.empty(); });
  }
  const std::map<engine::RequestId, Result>& results() const { return results_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<engine::RequestId, Result> results_;
};

constexpr int kClients = 4;
constexpr int kRequestsEach = 150;

/// An engine that runs, and its clients' mail.
class World {
 public:
  World(Groups groups, int depth) : config_(config(groups)), executor_(config_, 0, depth) {
    engine_.emplace(kv::Cache(config_), executor_,
                    engine::EngineConfig{.max_batch = 8, .step_tokens = 64, .growth_room = false, .check_every = 1},
                    [this](std::vector<engine::Event>&& events) { inbox_.take(events); });
    loop_ = std::thread([this] { engine_->run(); });
  }
  ~World() {
    if (loop_.joinable()) stop();
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void stop() {
    engine_->stop();
    loop_.join();
  }
  engine::RequestId submit(const Submission& submission) {
    const auto id = engine_->next_id();
    inbox_.expect(id, submission);
    engine_->submit(make_request(id, submission));
    return id;
  }
  engine::Engine& engine() { return *engine_; }
  Inbox& inbox() { return inbox_; }

  /// REQUIRES: stopped.
  void expect_all_well() {
    for (const auto& [id, result] : inbox_.results()) {
      EXPECT_EQ(error_in(result, config_.groups), "") << "request " << id;
    }
    EXPECT_TRUE(executor_.faults().empty());
    EXPECT_EQ(engine_->cache().check_integrity(), "");
    const auto figures = engine_->snapshot();
    EXPECT_EQ(figures.integrity_findings, 0);
    EXPECT_EQ(figures.cache.in_use, 0);
    EXPECT_EQ(figures.cache.reserved, 0);
    EXPECT_EQ(figures.requests_submitted, figures.requests_finished + figures.requests_cancelled +
                                              figures.requests_timed_out + figures.requests_refused +
                                              figures.requests_failed);
  }

 private:
  // Room for three requests or so: the prompts share a beginning of 60 tokens.
  static kv::CacheConfig config(Groups groups) {
    const auto specs = make_groups(groups);
    return {.block_size = 8,
            .num_blocks = 35 * static_cast<std::int32_t>(specs.size()),
            .bytes_per_block = 128,
            .groups = specs,
            .max_extend = 64};
  }

  kv::CacheConfig config_;
  FakeExecutor executor_;
  Inbox inbox_;
  std::optional<engine::Engine> engine_;
  std::thread loop_;
};

/// Looks at the snapshot all the time.
class Watcher {
 public:
  explicit Watcher(const engine::Engine& engine) : engine_(engine), thread_([this] { watch(); }) {}
  ~Watcher() {
    watching_ = false;
    thread_.join();
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  void watch() {
    std::int64_t steps = 0;
    while (watching_) {
      const auto figures = engine_.snapshot();
      EXPECT_GE(figures.steps, steps);
      EXPECT_EQ(figures.cache.total, figures.cache.free + figures.cache.cached + figures.cache.in_use);
      steps = figures.steps;
      std::this_thread::yield();
    }
  }

  const engine::Engine& engine_;
  std::atomic<bool> watching_ = true;
  std::thread thread_;
};

/// One client's requests. Returns its operations.
std::int64_t run_client(World& world, const Prompt& shared, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<engine::RequestId> ids;
  std::int64_t operations = 0;
  for (int i = 0; i < kRequestsEach; ++i) {
    Submission s{.prompt = shared + random_prompt(random, 1 + random() % 30),
                 .max_tokens = static_cast<std::int32_t>(1 + random() % 40),
                 .n = i % 4 == 0 ? 2 : 1,
                 .seed = random(),
                 .salt = random() % 4 == 0 ? "other" : ""};
    s.priority = static_cast<std::int32_t>(random() % 3);
    s.cache_report = random() % 3 == 0;
    if (random() % 8 == 0) s.deadline = engine::Clock::now() + std::chrono::microseconds(random() % 3000);
    ids.push_back(world.submit(s));
    ++operations;
    // An early one is likely over, the last one likely in the queue.
    const auto some = [&] { return ids[ids.size() - 1 - random() % std::min<std::size_t>(ids.size(), 6)]; };
    if (random() % 4 == 0) {
      if (random() % 2 == 0) world.inbox().wait_streaming(ids.back());
      world.engine().cancel(some());
      ++operations;
    }
    if (random() % 2 == 0) world.inbox().wait_done(some());
  }
  return operations;
}

void add(Transitions& t, const std::map<engine::RequestId, Result>& results, const engine::Snapshot& figures) {
  using sampling::Finish;
  for (const auto& [id, result] : results) {
    t["timed out before the first token"] += result.refusal == engine::Refusal::kTimeout;
    t["found in the tree"] += result.usage.cached_tokens > 0;
    t["samples forked"] += result.submission.n > 1 && !result.samples[1].tokens.empty();
    for (const auto& sample : result.samples) {
      t["cancelled before the first token"] += sample.tokens.empty() && sample.finish == Finish::kCancelled;
      t["cancelled in mid-stream"] += !sample.tokens.empty() && sample.finish == Finish::kCancelled;
    }
  }
  t["preempted"] += figures.preemptions;
  t["resumed"] += figures.resumptions;
  t["blocks evicted"] += figures.cache.evictions;
  t["blocks forked"] += figures.cache.cow_forks;
  t["admitted ahead of an earlier one"] += figures.passes;
  t["cache checked"] += figures.integrity_checks;
}

std::int64_t run_round(Groups groups, int depth, std::uint64_t seed, Transitions& met) {
  World world(groups, depth);
  std::int64_t operations = 0;
  {
    const Watcher watcher(world.engine());
    std::mt19937_64 random(seed);
    const auto shared = random_prompt(random, 60);
    std::vector<std::future<std::int64_t>> clients;
    for (std::uint64_t c = 1; c <= kClients; ++c)
      clients.push_back(
          std::async(std::launch::async, [&world, &shared, s = seed + c] { return run_client(world, shared, s); }));
    for (auto& client : clients) operations += client.get();
    for (const auto& [id, result] : world.inbox().results()) world.inbox().wait_done(id);
  }
  world.stop();
  EXPECT_EQ(world.inbox().results().size(), std::size_t{kClients * kRequestsEach});
  world.expect_all_well();
  add(met, world.inbox().results(), world.engine().snapshot());
  return operations;
}

using Threads = PerDepth;

TEST_P(Threads, ManyClients) {
  const auto seed = test_seed(3);
  const std::int64_t wanted = operations_wanted(2800) / 4;
  std::int64_t operations = 0;
  Transitions met;
  const auto least = [&] { return (operations + 999) / 1000; };
  // How the threads fall into step decides what a round meets: a machine may need more of them.
  for (std::uint64_t round = 0;
       (operations < wanted || (!all_met(met, least()) && operations < 20 * wanted)) && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    operations += run_round(groups(), depth(), seed + 1000 * round, met);
  }
  std::cout << operations << " operations\n";
  expect_met(met, least());
}

TEST_P(Threads, StopEndsOpenStreamsAndRunReturns) {
  World world(groups(), depth());
  std::mt19937_64 random(4);
  std::vector<engine::RequestId> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(world.submit({.prompt = random_prompt(random, 20)}));
  world.inbox().wait_streaming(ids[0]);
  world.stop();
  for (const auto id : ids) EXPECT_TRUE(world.inbox().results().at(id).done);
  world.expect_all_well();
}

TEST_P(Threads, AnIdleEngineWakesUp) {
  World world(groups(), depth());
  std::mt19937_64 random(5);
  for (int i = 0; i < 3; ++i) {
    const auto id = world.submit({.prompt = random_prompt(random, 20), .max_tokens = 3});
    world.inbox().wait_done(id);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  world.stop();
  EXPECT_EQ(world.engine().snapshot().requests_finished, 3);
}

INSTANTIATE_TEST_SUITE_P(Depths, Threads,
                         ::testing::Combine(::testing::Values(Groups::kFull, Groups::kFullAndSliding),
                                            ::testing::Values(0, 1)),
                         name_of_both);

TEST(EngineThreadTest, OnlyTheThreadThatStepsMayLookIn) {
  const kv::CacheConfig config = cache_config({.num_blocks = 10});
  FakeExecutor executor(config);
  engine::Engine engine(kv::Cache(config), executor, {}, [](std::vector<engine::Event>&&) {});
  engine.step();
  const auto from_another = [&](auto call) { std::thread([&] { call(); }).join(); };
  const char* const broken = "broken contract: engine_thread_\\.mine\\(\\)";
  EXPECT_DEATH(from_another([&] { engine.step(); }), broken);
  EXPECT_DEATH(from_another([&] { engine.run(); }), broken);
  EXPECT_DEATH(from_another([&] { engine.cache(); }), broken);
  engine.stop();
  engine.run();
  from_another([&] { EXPECT_EQ(engine.cache().check_integrity(), "") << "it has ended: anybody may"; });
}

}  // namespace
}  // namespace coppice::testing
