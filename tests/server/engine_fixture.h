// EngineServerTest: a real Server, the real engine in its thread, the fake executor. When the test is over, the cache
// is whole and the executor has seen no fault.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <source_location>
#include <thread>
#include <utility>

#include "server/engine_on_fakes.h"
#include "server/fixture.h"
#include "support/longest_wait.h"

namespace coppice::testing {

/// For a minute at most: then it is a failure of the caller's line.
inline void wait_for(const std::function<bool()>& condition,
                     const std::source_location& caller = std::source_location::current()) {
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= end) {
      ADD_FAILURE_AT(caller.file_name(), static_cast<int>(caller.line())) << "it has not happened for a minute";
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

class EngineServerTest : public ServerTest {
 protected:
  /// `prepare` may tell the executor what to do, before the engine runs.
  void start_engine(const HarnessConfig& harness, const std::function<void(FakeExecutor&)>& prepare,
                    const server::ServerConfig& server = config()) {
    start_loading(server);
    model_ = std::make_shared<EngineOnFakes>(server_->sink(), harness);
    prepare(model_->executor());
    server_->ready(model_);
    while (client()->get("/health").status != 200) {
    }
    run([this] { model_->engine().run(); });
  }
  /// The engine's thread.
  void run(std::function<void()> engine) { loop_ = std::thread(std::move(engine)); }
  /// The server and the engine end.
  void stop() {
    server_->drain();
    server_->join();
    loop_.join();
    EXPECT_EQ(model_->engine().cache().check_integrity(), "");
    EXPECT_TRUE(model_->executor().faults().empty());
  }
  ~EngineServerTest() override {
    if (loop_.joinable()) stop();
  }

  std::shared_ptr<EngineOnFakes> model_;

 private:
  std::thread loop_;
};

}  // namespace coppice::testing
