// The executor throws in mid-step: what clients get, through the real engine and the real server.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

#include "server/engine_fixture.h"

namespace coppice::testing {
namespace {

constexpr int kStepTokens = 16;
constexpr int kAnswer = 10;
constexpr int kNever = -1;

/// So many whole steps and another, which yields the first token.
Prompt prompt(int steps = 2) {
  Prompt tokens(static_cast<std::size_t>(steps * kStepTokens + 4));
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

std::string body(bool stream, const Prompt& tokens = prompt()) {
  return nlohmann::json({{"prompt", tokens}, {"max_tokens", kAnswer}, {"stream", stream}}).dump();
}

class StepFailure : public EngineServerTest {
 protected:
  /// The engine's step `failing`, from 0, fails. `in_step` is called in every step.
  void start_failing_at(int failing, std::function<void()> in_step = {}) {
    start_engine(
        {.num_blocks = 100, .max_batch = 8, .step_tokens = kStepTokens, .max_extend = 32, .context_length = 200},
        [&](FakeExecutor& executor) {
          executor.fail_at(failing);
          executor.during_forward(std::move(in_step));
        });
  }

  std::string right_text() const { return model_->expected_text(prompt(), 0, kAnswer); }

  void expect_it_serves_on() {
    const HttpAnswer answer = post("/v1/completions", body(false));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.json()["choices"][0]["text"], right_text());
    const auto figures = model_->snapshot();
    EXPECT_EQ(figures.cache.in_use, 0);
    EXPECT_EQ(figures.requests_failed, 1);
    EXPECT_EQ(figures.requests_submitted, figures.requests_failed + figures.requests_finished);
  }
};

class BeforeTheFirstToken : public StepFailure, public ::testing::WithParamInterface<std::tuple<int, bool>> {};

TEST_P(BeforeTheFirstToken, ItIsA500) {
  const auto [step, stream] = GetParam();
  start_failing_at(step);
  const HttpAnswer answer = post("/v1/completions", body(stream));
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(answer.code(), "model_failed");
  expect_it_serves_on();
}

INSTANTIATE_TEST_SUITE_P(Steps, BeforeTheFirstToken, ::testing::Combine(::testing::Values(0, 1, 2), ::testing::Bool()));

TEST_F(StepFailure, AfterTheFirstTokenAStreamEndsWithAnError) {
  std::atomic<bool> read = false;
  start_failing_at(5, [&, step = 0]() mutable {
    if (step++ == 5) wait_for([&] { return read.load(); });
  });
  const auto reader = client();
  reader->send(post_request("/v1/completions", body(true)));
  const std::string begin = reader->read_until("\n\n\r\n");
  EXPECT_NE(begin.find(right_text().substr(0, 4)), std::string::npos) << begin;
  read = true;
  const std::string rest = reader->read_until("0\r\n\r\n");
  EXPECT_NE(rest.find("data: {\"error\":"), std::string::npos) << rest;
  EXPECT_NE(rest.find("model_failed"), std::string::npos) << rest;
  EXPECT_EQ(rest.find("[DONE]"), std::string::npos) << rest;
  expect_it_serves_on();
}

TEST_F(StepFailure, AfterTheFirstTokenAWholeAnswerIsA500) {
  start_failing_at(5);
  EXPECT_EQ(post("/v1/completions", body(false)).status, 500);
  expect_it_serves_on();
}

TEST_F(StepFailure, WhoWaitedForTheFailedPrefillIsAnswered) {
  const Prompt shared = prompt(10);
  std::atomic<bool> begun = false, failed = false;
  start_failing_at(kNever, [&] {
    if (!begun.exchange(true)) wait_for([this] { return model_->snapshot().requests_submitted == 2; });
    if (failed || model_->snapshot().following_requests == 0) return;
    failed = true;
    model_->executor().fail_at(static_cast<int>(model_->executor().steps().size()));
  });
  const auto leader = client(), follower = client();
  leader->send(post_request("/v1/completions", body(false, shared)));
  wait_for([&] { return begun.load(); });
  follower->send(post_request("/v1/completions", body(false, shared)));
  EXPECT_EQ(leader->receive().status, 500);
  const HttpAnswer answer = follower->receive();
  EXPECT_TRUE(failed) << "nobody followed";
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.json()["choices"][0]["text"], model_->expected_text(shared, 0, kAnswer));
  EXPECT_GE(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"], kStepTokens);
  expect_it_serves_on();
}

}  // namespace
}  // namespace coppice::testing
