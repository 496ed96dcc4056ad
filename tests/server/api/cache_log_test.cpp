// The debug log: a cache report for each request that was admitted, whatever became of it; through the real engine and
// the real server.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "server/engine_fixture.h"

namespace coppice::testing {
namespace {

class Lines final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::vector<std::string> with(std::string_view text) {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> found;
    for (const std::string& line : lines_)
      if (line.find(text) != std::string::npos) found.push_back(line);
    return found;
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    lines_.emplace_back(message.payload.data(), message.payload.size());
  }
  void flush_() override {}

  std::vector<std::string> lines_;  ///< guarded by the base's mutex_
};

/// Takes the log while it lives. A base, so that it outlives the server's threads.
class WithLog {
 protected:
  WithLog() : before_(spdlog::default_logger()) {
    auto logger = std::make_shared<spdlog::logger>("test", lines_);
    logger->set_level(spdlog::level::debug);
    spdlog::set_default_logger(std::move(logger));
  }
  ~WithLog() { spdlog::set_default_logger(before_); }
  std::vector<std::string> reports() { return lines_->with("matched_tokens"); }

  std::shared_ptr<Lines> lines_ = std::make_shared<Lines>();

 private:
  std::shared_ptr<spdlog::logger> before_;
};

class CacheLog : public WithLog, public EngineServerTest {
 protected:
  static constexpr int kStepTokens = 16;

  void start(int failing_step, std::function<void()> in_step = {}) {
    start_engine(
        {.num_blocks = 100, .max_batch = 8, .step_tokens = kStepTokens, .max_extend = 32, .context_length = 200},
        [&](FakeExecutor& executor) {
          if (failing_step >= 0) executor.fail_at(failing_step);
          if (in_step) executor.during_forward(std::move(in_step));
        });
  }
  static nlohmann::json body(bool stream, int steps = 1) {
    Prompt prompt(static_cast<std::size_t>(steps * kStepTokens));
    std::iota(prompt.begin(), prompt.end(), 100);
    return {{"prompt", prompt}, {"max_tokens", 100}, {"stream", stream}};
  }
  /// When the engine is idle and its last events have come.
  void expect_reports(std::size_t n) {
    wait_for([&] { return reports().size() >= n; });
    post("/v1/completions", nlohmann::json({{"prompt", Prompt{1, 2, 3}}, {"max_tokens", 1}}).dump());
    wait_for([&] { return reports().size() > n; });
    ASSERT_EQ(reports().size(), n + 1) << "one for each, that of the request just now included";
    EXPECT_NE(reports().front().find(R"("ended":"namespace")"), std::string::npos) << reports().front();
  }
  static constexpr int kNever = -1;
};

TEST_F(CacheLog, OfWhoeverGetsAnAnswer) {
  start(kNever);
  EXPECT_EQ(post("/v1/completions", body(false).dump()).status, 200);
  expect_reports(1);
}

TEST_F(CacheLog, NamesTheResponse) {
  start(kNever);
  const std::string id = post("/v1/completions", body(false).dump()).json()["id"];
  EXPECT_EQ(lines_->with(id), std::vector<std::string>{id + ": requests 1"});
  EXPECT_TRUE(reports().front().starts_with("request 1: {")) << reports().front();
}

TEST_F(CacheLog, OfAClientThatLeavesInMidStream) {
  std::promise<void> left;
  start(kNever, [&, step = 0]() mutable {
    if (step++ == 5) left.get_future().wait();
  });
  auto c = client();
  c->send(post_request("/v1/completions", body(true).dump()));
  c->read_until("data: ");
  c->close();
  wait_for_figure("coppice_clients_gone_total 1");
  left.set_value();
  wait_for([&] { return model_->snapshot().requests_cancelled == 1; });
  EXPECT_EQ(model_->snapshot().requests_cancelled, 1);
  expect_reports(1);
}

// The step of its admission goes on when it is gone: nobody listens to the request any more.
TEST_F(CacheLog, OfAClientThatLeavesBeforeItsFirstToken) {
  std::promise<void> in_step, left;
  start(kNever, [&, first = true]() mutable {
    if (!std::exchange(first, false)) return;
    in_step.set_value();
    left.get_future().wait();
  });
  auto c = client();
  c->send(post_request("/v1/completions", body(true, 3).dump()));
  in_step.get_future().wait();
  c->close();
  const auto gone = [&] { return get("/metrics").body.find("coppice_clients_gone_total 1") != std::string::npos; };
  wait_for(gone);
  EXPECT_TRUE(gone());
  left.set_value();
  expect_reports(1);
}

TEST_F(CacheLog, OfAStepThatFailsInMidStream) {
  start(3);
  EXPECT_NE(post("/v1/completions", body(true).dump()).body.find("model_failed"), std::string::npos);
  expect_reports(1);
}

TEST_F(CacheLog, OfAStepThatFailsBeforeTheFirstToken) {
  start(1);
  EXPECT_EQ(post("/v1/completions", body(false, 3).dump()).status, 500);
  expect_reports(1);
}

TEST_F(CacheLog, OfWhoeverRunsOutOfTime) {
  std::atomic<double> timeout = 0.1;
  std::atomic<bool> admitted = false;
  start(kNever, [&] {
    admitted = true;
    std::this_thread::sleep_for(std::chrono::duration<double>(timeout));
  });
  auto late = body(false, 8);
  for (; !admitted; timeout = 2 * timeout) {  // on a machine that is busy its time may be over before
    late["timeout"] = timeout.load();
    ASSERT_EQ(post("/v1/completions", late.dump()).status, 504);
  }
  expect_reports(1);
}

}  // namespace
}  // namespace coppice::testing
