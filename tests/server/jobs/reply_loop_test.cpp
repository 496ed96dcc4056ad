// The reply to a generation, with a writer that lets news come at the worst moments: during its writes.
#include "server/jobs/reply_loop.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "server/api/api.h"
#include "server/api/openai/openai_dialect.h"
#include "server/collecting_writer.h"
#include "server/fake_model.h"

namespace coppice::testing {
namespace {

namespace asio = boost::asio;
using sampling::Finish;

class ReplyTest : public ::testing::Test {
 protected:
  ReplyTest() : hub_(io_), model_(hub_.sink()), job_(hub_, model_, io_.get_executor(), 1000, "prompt") {
    engine::Request request;
    request.id = kId;
    request.samples.resize(1);
    job_.submit(std::move(request));
  }
  void run(engine::Clock::time_point start = engine::Clock::now()) {
    const auto answer = server::OpenAiDialect(server::Endpoint::kCompletions).begin({.stream = true}, {}, {});
    asio::co_spawn(io_, server::reply_with(job_, *answer, {.stream = true, .start = start}, metrics_, writer_),
                   asio::detached);
    io_.run();
  }
  bool wrote(const std::string& text) const { return writer_.text.find(text) != std::string::npos; }

  static constexpr engine::RequestId kId = 7;
  asio::io_context io_;
  server::EventHub hub_;
  FakeModel model_;
  server::Job job_;
  server::Metrics metrics_;
  CollectingWriter writer_;
};

/// Found by ManyStreamsAtOnce under the thread sanitizer: the end was looked for after the write of the head.
TEST_F(ReplyTest, NewsDuringTheWriteOfTheHeadIsNotLost) {
  writer_.during = [this](const std::string& where) {
    if (where == "begin") job_.on_event(last(kId, "second", Finish::kStop, {}));
  };
  job_.on_event(piece(kId, "first"));
  run();
  EXPECT_TRUE(wrote("first") && wrote("second") && wrote("[DONE]") && writer_.ended) << writer_.text;
}

TEST_F(ReplyTest, NewsDuringTheWriteOfAnEventIsNotLost) {
  int writes = 0;
  writer_.during = [&](const std::string& where) {
    if (where == "write" && writes++ == 0) job_.on_event(last(kId, "second", Finish::kLength, {}));
  };
  job_.on_event(piece(kId, "first"));
  run();
  EXPECT_TRUE(wrote("first") && wrote("second") && wrote("[DONE]") && writer_.ended) << writer_.text;
}

TEST_F(ReplyTest, FailureDuringAWriteIsTold) {
  int writes = 0;
  writer_.during = [&](const std::string& where) {
    if (where == "write" && writes++ == 0) job_.on_event(last(kId, "", Finish::kError, {}));
  };
  job_.on_event(piece(kId, "first"));
  run();
  EXPECT_TRUE(wrote("first") && wrote("\"error\"") && writer_.ended) << writer_.text;
  EXPECT_FALSE(wrote("[DONE]"));
}

TEST_F(ReplyTest, FailureDuringTheWriteOfTheHeadIsTold) {
  writer_.during = [this](const std::string& where) {
    if (where == "begin") job_.on_event(last(kId, "", Finish::kError, {}));
  };
  job_.on_event(piece(kId, "first"));
  run();
  EXPECT_TRUE(wrote("first") && wrote("\"error\"") && writer_.ended) << writer_.text;
}

TEST_F(ReplyTest, PendingTextIsBounded) {
  for (int i = 0; i < 11; ++i) job_.on_event(piece(kId, std::string(100, 'x')));
  EXPECT_TRUE(model_.cancelled(kId));
  ASSERT_TRUE(job_.error());
  EXPECT_EQ(job_.error()->code(), "slow_reader");
}

TEST_F(ReplyTest, PendingLogprobsCountToo) {
  engine::Event event = piece(kId, "x");
  piece_of(event).logprobs.resize(1);
  piece_of(event).logprobs[0].top.resize(20);
  for (int i = 0; i < 3 && !job_.done(); ++i) job_.on_event(engine::Event(event));
  ASSERT_TRUE(job_.error());
  EXPECT_EQ(job_.error()->code(), "slow_reader");
}

/// A slow reader gets the text of several steps in one event, but no two tokens' log-probabilities.
TEST_F(ReplyTest, StepsWithLogprobsDoNotShareAnEvent) {
  for (const char* text : {"a", "b", "c"}) {
    engine::Event event = piece(kId, text);
    piece_of(event).logprobs.resize(1);
    job_.on_event(std::move(event));
  }
  job_.on_event(piece(kId, "d"));
  job_.on_event(last(kId, "e", Finish::kStop, {}));
  run();
  EXPECT_TRUE(wrote("\"a\"") && wrote("\"b\"") && wrote("\"cde\"")) << writer_.text;
}

/// Text may be held back: half a character, or what may be a stop string's beginning.
TEST_F(ReplyTest, TheFirstTokenCountsWhetherItShowsOrNot) {
  job_.on_event(piece(kId, ""));
  ASSERT_TRUE(job_.first_token());
  const auto first = *job_.first_token();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  job_.on_event(last(kId, "text", Finish::kStop, {1, 0, 2}));
  EXPECT_EQ(*job_.first_token(), first);
  const auto start = first - std::chrono::milliseconds(20);
  run(start);
  const std::string figures = metrics_.scrape(nullptr, {}, {});
  EXPECT_NE(figures.find("coppice_time_to_first_token_seconds_sum 0.02\n"), std::string::npos) << figures;
}

TEST_F(ReplyTest, TheEngineEndsWhatHadNoToken) {
  auto end = last(kId, "", Finish::kLength, {1, 0, 0});
  piece_of(end).token = -1;
  job_.on_event(std::move(end));
  run();
  EXPECT_FALSE(job_.first_token());
}

/// A client that takes its answer slowly must not hold the room of all bodies meanwhile.
TEST(Api, WhileItAnswersItHoldsNoBody) {
  for (const auto& [method, path] : {std::pair{"POST", "/nowhere"},
                                     {"GET", "/tokenize"},
                                     {"POST", "/tokenize"},
                                     {"POST", "/v1/completions"},
                                     {"GET", "/health"},
                                     {"GET", "/v1/models"}}) {
    asio::io_context io;
    server::WorkQueue worker, compiling, viewing;
    server::EventHub hub(io);
    server::Api api({.names = {"the-model", ""}}, hub, worker, {compiling, compiling}, viewing);
    server::BodyBudget bodies(1000, 0);
    server::HttpRequest request;
    request.method = method;
    request.path = path;
    request.body.assign(100, 'x');
    request.body_charge = server::BodyBudget::Charge(bodies, "");
    ASSERT_TRUE(request.body_charge.raise(100));
    CollectingWriter writer;
    std::size_t held = 1;
    writer.during = [&](const std::string&) { held = request.body.size() + bodies.used(); };
    asio::co_spawn(io, api.handle(request, writer), asio::detached);
    io.run();
    EXPECT_EQ(held, 0U) << method << " " << path;
  }
}

}  // namespace
}  // namespace coppice::testing
