// The engine in its thread, clients in theirs: submit, cancel, snapshot and stop at any time. Fit for TSan.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
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
  void wait_streaming(engine::RequestId id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !results_.at(id).samples[0].tokens.empty(); });
  }
  const std::map<engine::RequestId, Result>& results() const { return results_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<engine::RequestId, Result> results_;
};

constexpr int kRequestsEach = 150;

class Threads : public ::testing::Test {
 protected:
  Threads() : executor_(config()) {
    engine_.emplace(kv::Cache(config()), executor_, engine::EngineConfig{.max_batch = 8, .step_tokens = 64},
                    [this](std::vector<engine::Event>&& events) { inbox_.take(events); });
    loop_ = std::thread([this] { engine_->run(); });
  }
  ~Threads() override {
    if (loop_.joinable()) stop();
  }
  void stop() {
    engine_->stop();
    loop_.join();
  }
  static kv::CacheConfig config() {
    return {.block_size = 8,
            .num_blocks = 70,
            .bytes_per_block = 128,
            .groups = make_groups(Groups::kFullAndSliding),
            .max_extend = 64};
  }
  engine::RequestId submit(const Submission& submission) {
    const auto id = engine_->next_id();
    inbox_.expect(id, submission);
    engine_->submit(make_request(id, submission));
    return id;
  }

  FakeExecutor executor_;
  Inbox inbox_;
  std::optional<engine::Engine> engine_;
  std::thread loop_;
};

TEST_F(Threads, ManyClients) {
  const auto seed = test_seed(3);
  std::atomic<bool> watching = true;
  std::thread watcher([&] {
    std::int64_t steps = 0;
    while (watching) {
      const auto figures = engine_->snapshot();
      EXPECT_GE(figures.steps, steps);
      EXPECT_EQ(figures.cache.total, figures.cache.free + figures.cache.cached + figures.cache.in_use);
      steps = figures.steps;
      std::this_thread::yield();
    }
  });
  std::mt19937_64 random(seed);
  const auto shared = random_prompt(random, 60);
  std::vector<std::thread> clients;
  for (std::uint64_t c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937_64 mine(seed + c);
      std::vector<engine::RequestId> ids;
      for (int i = 0; i < kRequestsEach; ++i) {
        Submission s{.prompt = shared + random_prompt(mine, 1 + mine() % 30),
                     .max_tokens = static_cast<std::int32_t>(1 + mine() % 20),
                     .n = i % 4 == 0 ? 2 : 1,
                     .seed = mine(),
                     .salt = mine() % 4 == 0 ? "other" : ""};
        s.priority = static_cast<std::int32_t>(mine() % 3);
        s.cache_report = mine() % 3 == 0;
        if (mine() % 8 == 0) s.deadline = engine::Clock::now() + std::chrono::microseconds(mine() % 3000);
        ids.push_back(submit(s));
        if (mine() % 5 == 0) engine_->cancel(ids[mine() % ids.size()]);
        if (mine() % 2 == 0) inbox_.wait_done(ids[mine() % ids.size()]);
      }
    });
  }
  for (auto& client : clients) client.join();
  for (const auto& [id, result] : inbox_.results()) inbox_.wait_done(id);
  watching = false;
  watcher.join();
  stop();
  EXPECT_EQ(inbox_.results().size(), std::size_t{4 * kRequestsEach});
  const auto figures = engine_->snapshot();
  std::cout << figures.preemptions << " preemptions, " << figures.passes << " passes, " << figures.requests_timed_out
            << " timed out, " << figures.requests_cancelled << " cancelled, " << figures.cache.evictions
            << " evictions\n";
  EXPECT_EQ(figures.requests_submitted, figures.requests_finished + figures.requests_cancelled +
                                            figures.requests_timed_out + figures.requests_refused +
                                            figures.requests_failed);
  for (const auto& [id, result] : inbox_.results()) {
    EXPECT_EQ(error_in(result, config().groups), "") << "request " << id;
  }
  EXPECT_TRUE(executor_.faults().empty());
  EXPECT_EQ(engine_->cache().check_integrity(), "");
  EXPECT_EQ(engine_->snapshot().cache.in_use, 0);
}

TEST_F(Threads, StopEndsOpenStreamsAndRunReturns) {
  std::mt19937_64 random(4);
  std::vector<engine::RequestId> ids;
  for (int i = 0; i < 12; ++i) ids.push_back(submit({.prompt = random_prompt(random, 20)}));
  inbox_.wait_streaming(ids[0]);
  stop();
  for (const auto id : ids) EXPECT_TRUE(inbox_.results().at(id).done);
  EXPECT_EQ(engine_->snapshot().cache.in_use, 0);
}

TEST_F(Threads, AnIdleEngineWakesUp) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 3; ++i) {
    const auto id = submit({.prompt = random_prompt(random, 20), .max_tokens = 3});
    inbox_.wait_done(id);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  stop();
  EXPECT_EQ(engine_->snapshot().requests_finished, 3);
}

}  // namespace
}  // namespace coppice::testing
