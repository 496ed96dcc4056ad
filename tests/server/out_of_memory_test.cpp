// Memory runs out now and then, on every thread of the server: that costs the requests or connections that it was for.
// Nobody waits for ever, and when there is memory again, all are served. What the engine's own thread does is tried in
// tests/engine/out_of_memory_test.cpp.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/engine_fixture.h"
#include "support/dice.h"
#include "support/failing_new.h"

namespace coppice::testing {
namespace {

using test::Dice;

std::uint64_t seed() {
  if (const char* given = std::getenv("COPPICE_SEED")) return std::strtoull(given, nullptr, 10);
  return std::random_device{}();
}

class OutOfMemoryTest : public EngineServerTest {
 protected:
  OutOfMemoryTest() {
    server::ServerConfig with = config();
    with.preparing_threads = 2;
    start_loading(with);
    model_ = std::make_shared<EngineOnFakes>(
        [sink = server_->sink()](std::vector<engine::Event>&& events) {
          spared_.reset();
          sink(std::move(events));
          spared_.emplace();
        },
        HarnessConfig{.max_batch = 8, .context_length = 4000});
    server_->ready(model_);
    while (client()->get("/health").status != 200) {
    }
    run([this] {
      spared_.emplace();
      model_->engine().run();
      spared_.reset();
    });
  }

  static std::string request(Dice& dice) {
    const std::string prompt = std::to_string(dice.below(900)) + std::string(dice.below(3000), 'x');
    const std::string more = R"(, "max_tokens": )" + std::to_string(dice.between(1, 60)) +
                             (dice.chance(50) ? R"(, "stream": true)" : "") + (dice.chance(30) ? R"(, "n": 3)" : "") +
                             "}";
    switch (dice.below(6)) {
      case 0:
        return get_request(dice.chance(50) ? "/v1/cache/tree" : "/metrics");
      case 1:
        return post_request("/v1/cache/prefixes", R"({"prompt": ")" + prompt + "\"}");
      case 2:
        return post_request("/v1/responses", R"({"input": ")" + prompt + R"(", "max_output_tokens": 9})");
      case 3:
        return post_request("/v1/chat/completions",
                            R"({"messages": [{"role": "user", "content": ")" + prompt + "\"}]" + more);
      default:
        return post_request("/v1/completions", R"({"prompt": ")" + prompt + "\"" + more);
    }
  }

  /// Requests one after the other: each gets an answer, or its connection's end.
  void drive(std::uint64_t seed, int n) {
    const Spared spared;
    Dice dice(seed);
    std::unique_ptr<HttpClient> c;
    for (int i = 0; i < n; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      try {
        if (!c || dice.chance(20)) c = client();
        c->send(request(dice));
        if (dice.chance(10)) {
          c.reset();
        } else {
          c->receive();
        }
      } catch (const std::runtime_error&) {  // the connection's end
        c.reset();
      }
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      if (took.count() > 3)
        std::cout << "request " << i << " of client " << seed << " took " << took.count() << " s" << std::endl;
      EXPECT_LT(took, kLongestWait) << "request " << i << " of client " << seed << " was left waiting";
    }
  }

 private:
  static inline thread_local std::optional<Spared> spared_;
};

TEST_F(OutOfMemoryTest, NobodyIsLeftWaiting) {
  const Spared spared;
  const std::uint64_t first = seed();
  std::cout << "seed " << first << std::endl;
  for (const std::uint32_t one_in : {2000, 300, 60, 15}) {
    fail_some_allocations(one_in, first);
    std::vector<std::thread> clients;
    for (std::uint64_t i = 0; i < 4; ++i) clients.emplace_back([this, i, first] { drive(first + i, 60); });
    for (std::thread& each : clients) each.join();
    fail_some_allocations(0);
    ASSERT_EQ(post("/v1/completions", R"({"prompt": "hi", "max_tokens": 3})").status, 200) << "one in " << one_in;
    expect_deserted();
  }
  std::cout << failed_allocations() << " allocations failed" << std::endl;
  EXPECT_GT(failed_allocations(), 100U);
}

}  // namespace
}  // namespace coppice::testing
