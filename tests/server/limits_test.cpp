// HTTP itself: limits, keep-alive, pipelining, and clients that speak it badly.
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/api_error.h"
#include "server/fixture.h"
#include "server/http_server.h"
#include "server/prepare.h"

namespace coppice::testing {
namespace {

using nlohmann::json;

class LimitsTest : public ServerTest {};

TEST_F(LimitsTest, ConnectionIsKeptAlive) {
  start();
  auto c = client();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(c->get("/health").headers.at("connection"), "keep-alive");
  c->send("GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(c->receive().headers.at("connection"), "close");
  EXPECT_TRUE(c->closed());
}

TEST_F(LimitsTest, PipelinedRequestsAreAnsweredInOrder) {
  FakeModel& model = start();
  auto c = client();
  c->send(post_request("/v1/completions", R"({"prompt": "hi"})") + get_request("/health") + get_request("/nowhere"));
  const auto id = model.wait_submitted(0);
  model.emit({last(id, "done", sampling::Finish::kStop, {})});
  EXPECT_EQ(c->receive().json()["choices"][0]["text"], "done");
  EXPECT_EQ(c->receive().status, 200);
  EXPECT_EQ(c->receive().status, 404);
}

/// Who is not read cannot be seen to vanish.
TEST_F(LimitsTest, PipeliningWithoutEndIsCutOff) {
  FakeModel& model = start();
  auto c = client();
  c->send(post_request("/v1/completions", R"({"prompt": "hi"})"));
  const auto id = model.wait_submitted(0);
  c->send(std::string(std::size_t{80} << 10, 'a'));
  EXPECT_TRUE(model.wait_cancelled(id));
}

TEST_F(LimitsTest, HeadHasNoBody) {
  start();
  auto c = client();
  c->send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n");
  const HttpAnswer answer = c->receive(true);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-length"), "15");
  EXPECT_EQ(c->get("/health").status, 200);
}

TEST_F(LimitsTest, BodyOverTheLimitIs413) {
  auto c = config();
  c.http.max_body_bytes = 1000;
  start(words({"x"}), c);
  EXPECT_EQ(post("/v1/completions", fmt::format(R"({{"prompt": "hi", "user": "{}"}})", std::string(900, 'a'))).status,
            200);
  const HttpAnswer answer = post("/v1/completions", std::string(200000, ' '));
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.code(), "body_too_large");
  auto chunked = client();
  chunked->send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" +
                std::string(2000, ' ') + "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked->receive().status, 413);
}

TEST_F(LimitsTest, ChunkedBodyIsTaken) {
  start(words({"x"}));
  auto c = client();
  c->send(fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n0\r\n\r\n", 15,
      R"({"prompt":"hi"})"));
  EXPECT_EQ(c->receive().status, 200);
}

TEST_F(LimitsTest, HeaderOverTheLimitIs431) {
  start();
  auto c = client();
  c->send("GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + std::string(100000, 'a') + "\r\n\r\n");
  EXPECT_EQ(c->receive().status, 431);
}

TEST_F(LimitsTest, NonsenseIs400) {
  start();
  for (const std::string& nonsense :
       {std::string("hello\r\n\r\n"), std::string("GET /health HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n"),
        std::string(64, '\0') + "\r\n\r\n",
        std::string("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n"),
        std::string("GET  HTTP/9.9\r\n\r\n")}) {
    auto c = client();
    c->send(nonsense);
    const HttpAnswer answer = c->receive();
    EXPECT_EQ(answer.status, 400) << nonsense;
    EXPECT_EQ(answer.code(), "bad_http");
    EXPECT_TRUE(c->closed());
  }
  EXPECT_EQ(get("/health").status, 200);
}

/// RFC 9112, 2.2: clients of old send one behind a body.
TEST_F(LimitsTest, EmptyLinesBeforeARequestAreSkipped) {
  auto c = config();
  c.http.header_seconds = 0.3;
  start(words({"x"}), c);
  auto first = client(), bytewise = client();
  const std::string behind = post_request("/v1/completions", R"({"prompt": "hi"})") + "\r\n";
  first->send("\r\n" + behind + behind);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(first->receive().status, 200);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));  // no request has begun: it keeps its connection
  EXPECT_EQ(first->get("/health").status, 200);
  for (const char byte : "\r\n\r\n" + get_request("/health")) bytewise->send({&byte, 1});
  EXPECT_EQ(bytewise->receive().status, 200);
}

TEST_F(LimitsTest, EmptyLinesDoNotKeepAConnection) {
  auto c = config();
  c.http.idle_seconds = 0.3;
  start({}, c);
  auto idle = client();
  const auto drip = [&] {
    for (int i = 0; i < 100; ++i) {
      idle->send("\r\n");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  };
  EXPECT_THROW(drip(), std::runtime_error);
}

TEST_F(LimitsTest, OneHostIsWanted) {
  start();
  for (const char* head : {"GET /health HTTP/1.1\r\n\r\n", "GET /health HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
                           "POST /tokenize HTTP/1.1\r\nContent-Length: 1000\r\nExpect: 100-continue\r\n\r\n",
                           "GET /health HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n"}) {
    auto c = client();
    c->send(head);
    const HttpAnswer answer = c->receive();
    EXPECT_EQ(answer.status, 400) << head;
    EXPECT_EQ(answer.code(), "bad_http");
    EXPECT_TRUE(c->closed());
  }
  auto old = client();
  old->send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old->receive().status, 200);
  auto empty = client();  // what a target without an authority has
  empty->send("GET /health HTTP/1.1\r\nHost:\r\n\r\n");
  EXPECT_EQ(empty->receive().status, 200);
}

TEST_F(LimitsTest, NonsenseAfterHeadIsAnsweredWithABody) {
  start();
  auto c = client();
  c->send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(c->receive(true).status, 200);
  c->send("hello\r\n\r\n");
  const HttpAnswer answer = c->receive();
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.code(), "bad_http");
}

TEST_F(LimitsTest, RefusedHeadHasNoBody) {
  start();
  auto c = client();
  c->send("HEAD /health HTTP/1.1\r\n\r\n");
  EXPECT_EQ(c->receive(true).status, 400);
  EXPECT_TRUE(c->closed());
}

class BodiesTest : public LimitsTest {
 protected:
  static constexpr int kBody = 10000, kBudget = 4 * kBody, kSmall = 100;

  static server::ServerConfig small() {
    auto c = config();
    c.http.max_body_bytes = kBody;
    c.http.max_bodies_bytes = kBudget;
    c.http.small_body_bytes = kSmall;
    c.http.body_piece_seconds = 60;
    return c;
  }
  static std::string padded(int bytes) {
    const std::string body = R"({"prompt": "hi", "user": ""})";
    return std::string(body).insert(body.size() - 2, static_cast<std::size_t>(bytes) - body.size(), 'a');
  }
  void wait_for_bytes(int bytes) {
    ASSERT_NO_FATAL_FAILURE(wait_for_figure(fmt::format("coppice_http_body_bytes {}", bytes)));
  }
};

TEST_F(BodiesTest, TogetherTheyHaveALimit) {
  start(words({"x"}), small());
  std::vector<std::unique_ptr<HttpClient>> slow;
  const std::string request = post_request("/v1/completions", padded(kBody));
  for (int i = 0; i < 4; ++i) {
    slow.push_back(client());
    slow.back()->send(request.substr(0, request.size() - 100));
  }
  wait_for_bytes(kBudget - 400);
  // Their first kSmall bytes don't count.
  EXPECT_EQ(post("/v1/completions", padded(900)).status, 200) << "what is left may be used";
  for (const bool chunked : {false, true}) {
    auto late = client();
    late->send(chunked ? "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n" +
                             std::string(0x1000, ' ')
                       : post_request("/v1/completions", padded(901)));
    const HttpAnswer answer = late->receive();
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.code(), "unavailable");
    EXPECT_TRUE(answer.headers.contains("retry-after"));
    EXPECT_EQ(answer.headers.at("connection"), "close");
  }
  wait_for_bytes(kBudget - 400);
  auto last = client();
  const std::string rest = post_request("/v1/completions", padded(901));
  last->send(rest.substr(0, rest.size() - 1));
  wait_for_bytes(kBudget - 400 + 900);
  EXPECT_EQ(post("/v1/completions", padded(kSmall)).status, 200) << "small ones find room beside any";
  EXPECT_EQ(post("/v1/completions", padded(kSmall + 1)).status, 503);
  last.reset();
  wait_for_bytes(kBudget - 400);
  slow[0]->send(request.substr(request.size() - 100));
  EXPECT_EQ(slow[0]->receive().status, 200);
  slow[1]->close();
  wait_for_bytes(kBudget - 2 * kBody - 200);
  EXPECT_EQ(post("/v1/completions", padded(kBody)).status, 200);
}

TEST_F(BodiesTest, LargeOnesMustKeepComing) {
  auto c = small();
  c.http.body_piece_seconds = 0.3;
  start(words({"x"}), c);
  const std::string little = post_request("/v1/completions", padded(kSmall));
  auto patient = client();
  patient->send(little.substr(0, little.size() - 1));
  const std::string large = post_request("/v1/completions", padded(kBody));
  for (const int missing : {kBody - 2 * kSmall, 1}) {
    auto slow = client();
    slow->send(large.substr(0, large.size() - static_cast<std::size_t>(missing)));
    const HttpAnswer answer = slow->receive();
    EXPECT_EQ(answer.status, 408) << missing;
    EXPECT_EQ(answer.code(), "request_timeout");
  }
  patient->send(little.substr(little.size() - 1));
  EXPECT_EQ(patient->receive().status, 200) << "it is in nobody's way";
}

TEST_F(BodiesTest, WhatIsOnlyAnnouncedTakesNoRoom) {
  start(words({"x"}), small());
  std::vector<std::unique_ptr<HttpClient>> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(client());
    silent.back()->send(fmt::format("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", kBody));
  }
  EXPECT_EQ(post("/v1/completions", padded(kBody)).status, 200);
}

TEST_F(BodiesTest, RunningRequestsHoldNone) {
  FakeModel& model = start({}, small());
  std::vector<std::unique_ptr<HttpClient>> running;
  for (std::size_t i = 0; i < 10; ++i) {
    running.push_back(client());
    running.back()->send(post_request("/v1/completions", padded(kBody)));
    ASSERT_NE(model.wait_submitted(i), 0u);
  }
  wait_for_bytes(0);
}

TEST_F(LimitsTest, WhatErrorsQuoteIsCut) {
  start(words({"x"}));
  for (const char* character : {"m", "\u00fc", "\u20ac", "\U0001f600"}) {
    for (int n = 20000; n < 20004; ++n) {
      std::string name(static_cast<std::size_t>(n % 4), 'm');
      while (std::ssize(name) < n) name += character;
      const HttpAnswer model = post("/v1/completions", json{{"prompt", "hi"}, {"model", name}}.dump());
      EXPECT_EQ(model.status, 404);
      EXPECT_LT(model.body.size(), 600U);
      EXPECT_NE(model.body.find("does not exist; this server has 'the-model'."), std::string::npos) << model.body;
      EXPECT_EQ(model.body.find("\ufffd"), std::string::npos) << model.body;
      const std::string role = json{{"messages", {{{"role", name}, {"content", "hi"}}}}}.dump();
      EXPECT_LT(post("/v1/chat/completions", role).body.size(), 600U);
    }
  }
  EXPECT_LT(get("/" + std::string(20000, 'a')).body.size(), 600U);
  EXPECT_LT(get("/v1/models/" + std::string(20000, 'a')).body.size(), 600U);
}

/// It lives until the reply's end, beside those of all that wait in the queue.
TEST(Prepared, HoldsNoTexts) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  const auto held = [&](server::Endpoint endpoint, const std::string& input) {
    return server::prepare(model, {"m", ""}, endpoint,
                           "{" + input + R"(, "n": 3, "stop": "end", "logit_bias": {"5": 1}, "stream": true})");
  };
  const auto chat = held(server::Endpoint::kChat, R"("messages": [{"role": "user", "content": "hi"}])");
  EXPECT_TRUE(chat.parsed.messages.empty() && chat.parsed.sampling.stop.empty());
  EXPECT_TRUE(chat.parsed.sampling.logit_bias.empty() && chat.parsed.stream);
  const auto text = held(server::Endpoint::kCompletions, R"("prompt": ["hi", "ho"], "echo": true)");
  EXPECT_TRUE(text.parsed.prompts.empty());
  EXPECT_EQ(text.echoes, (std::vector<std::string>{"hi", "ho"})) << "not one for each of the 6 choices";
}

/// More prompts can never all be let in, so that asking again is of no use.
TEST(Prepared, TakesAsManyPromptsAsHaveRoom) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  model.facts_.max_batch = 2;
  model.facts_.max_waiting = 1;
  const auto prepare = [&](const char* prompts) {
    return server::prepare(model, {"m", ""}, server::Endpoint::kCompletions, prompts).requests.size();
  };
  EXPECT_EQ(prepare(R"({"prompt": ["a", "b", "c"]})"), 3U);
  try {
    prepare(R"({"prompt": ["a", "b", "c", "d"]})");
    FAIL();
  } catch (const server::ApiError& e) {
    EXPECT_EQ(e.status(), 400);
    EXPECT_STREQ(e.what(), "'prompt': at most 3 prompts");
  }
  model.facts_.max_waiting = SIZE_MAX;
  EXPECT_EQ(prepare(R"({"prompt": ["a", "b", "c", "d"]})"), 4U) << "as --max-queue 18446744073709551615 has it";
}

/// The context bounds what a body's values may take in memory and time, and refuses nothing that fits into it.
TEST(Prepared, TakesWhatFitsTheContextOnly) {
  FakeModel model([](std::vector<engine::Event>&&) {});
  model.facts_.context_length = 2000;
  const auto list = [](std::size_t n, const std::string& what) {
    std::string all = what;
    for (std::size_t i = 1; i < n; ++i) all += "," + what;
    return "[" + all + "]";
  };
  const auto code = [&](server::Endpoint endpoint, const std::string& input) -> std::string {
    try {
      server::prepare(model, {"m", ""}, endpoint, "{" + input + "}");
    } catch (const server::ApiError& e) {
      return e.code();
    }
    return "";
  };
  constexpr auto kChat = server::Endpoint::kChat, kCompletions = server::Endpoint::kCompletions;
  const std::string full = list(1999, "7");
  EXPECT_EQ(code(kCompletions, R"("prompt": )" + list(server::kMaxPrompts, full)), "");
  EXPECT_EQ(code(kCompletions, R"("prompt": )" + list(2001, "7")), "context_length_exceeded");
  const std::string message = R"({"name": "n", "role": "u", "content": [{"type": "text", "text": ""}]})";
  EXPECT_EQ(code(kChat, R"("messages": )" + list(2001, message)), "context_length_exceeded") << "and not for its form";
  for (const auto& [endpoint, good] : {std::pair(kChat, R"("messages": [{"role": "user", "content": "hi"}])"),
                                       std::pair(kCompletions, R"("prompt": "hi")")}) {
    EXPECT_EQ(code(endpoint, good), "");
    EXPECT_EQ(code(endpoint, std::string(good) + R"(, "x": )" + list(30000, "{}")), "too_many_values");
    EXPECT_EQ(code(endpoint, std::string(good) + R"(, "x": )" + list(300000, "0")), "too_many_values");
  }
  EXPECT_THROW(server::tokenize_reply(model, R"({"content": "hi", "x": )" + list(30000, "{}") + "}"), server::ApiError);
  EXPECT_THROW(server::detokenize_reply(model, R"({"tokens": [1], "x": )" + list(30000, "{}") + "}"), server::ApiError);
}

TEST_F(LimitsTest, WholeAnswersHaveALimit) {
  auto c = config();
  c.api.max_answer_bytes = 1000;
  FakeModel& model = start({}, c);
  const auto send_pieces = [&](std::size_t nth, int n) {
    const auto id = model.wait_submitted(nth);
    for (int i = 0; i < n; ++i) model.emit({piece(id, std::string(100, 'x'))});
    return id;
  };
  auto whole = client();
  whole->send(post_request("/v1/completions", R"({"prompt": "hi"})"));
  const auto id = send_pieces(0, 11);
  EXPECT_TRUE(model.wait_cancelled(id));
  if (!model.cancelled(id)) return;  // nobody would answer
  const HttpAnswer answer = whole->receive();
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.code(), "answer_too_large");
  whole->send(post_request("/v1/completions", R"({"prompt": "hi"})"));
  model.emit({last(send_pieces(1, 10), "", sampling::Finish::kStop, {})});
  EXPECT_EQ(whole->receive().status, 200);
  whole->send(post_request("/v1/completions", kStreamBody));
  model.emit({last(send_pieces(2, 20), "", sampling::Finish::kStop, {})});
  EXPECT_EQ(whole->receive().status, 200) << "a stream may be of any length";
}

/// A prompt's echo counts for each of its choices.
TEST_F(LimitsTest, EchoesCountToo) {
  auto c = config();
  c.api.max_answer_bytes = 199;
  start(words({"x"}), c);
  const auto echoed = [&](int n) {
    return post("/v1/completions",
                fmt::format(R"({{"prompt": "{}", "echo": true, "n": {}}})", std::string(50, 'a'), n));
  };
  EXPECT_EQ(echoed(3).status, 200);
  EXPECT_EQ(echoed(4).code(), "answer_too_large");
}

TEST_F(LimitsTest, ExpectContinueIsAnswered) {
  start(words({"x"}));
  auto c = client();
  c->send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 15\r\n\r\n");
  EXPECT_EQ(c->read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  c->send(R"({"prompt":"hi"})");
  EXPECT_EQ(c->receive().status, 200);
}

TEST_F(LimitsTest, HalfARequestTimesOut) {
  auto c = config();
  c.http.header_seconds = 0.3;
  c.http.body_seconds = 0.3;
  start({}, c);
  for (const char* half : {"GET /hea", "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{"}) {
    auto slow = client();
    slow->send(half);
    EXPECT_EQ(slow->receive().status, 408);
  }
}

TEST_F(LimitsTest, IdleConnectionsAreClosed) {
  auto c = config();
  c.http.idle_seconds = 0.3;
  start({}, c);
  EXPECT_TRUE(client()->closed());
  auto used = client();
  used->get("/health");
  EXPECT_TRUE(used->closed());
}

TEST_F(LimitsTest, WaitingForAnAnswerIsNotIdle) {
  auto c = config();
  c.http.idle_seconds = c.http.header_seconds = c.http.body_seconds = c.http.write_seconds = 0.3;
  FakeModel& model = start({}, c);
  auto patient = client();
  patient->send(post_request("/v1/completions", R"({"prompt": "hi"})"));
  const auto id = model.wait_submitted(0);
  EXPECT_TRUE(client()->closed());  // idle, and so a clock that shows 0.3 s have passed
  EXPECT_FALSE(model.cancelled(id));
  model.emit({last(id, "done", sampling::Finish::kStop, {})});
  EXPECT_EQ(patient->receive().status, 200);
}

TEST_F(LimitsTest, OneConnectionTooManyIsTold) {
  auto c = config();
  c.http.max_connections = 3;
  start({}, c);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(client());
    while (clients.back()->get("/health").status != 200) clients.back() = client();  // start()'s client may linger
  }
  EXPECT_EQ(client()->receive().status, 503);
  EXPECT_EQ(clients[0]->get("/health").status, 200);
}

TEST_F(LimitsTest, PortInUseIsOneSentence) {
  start();
  auto c = config();
  c.port = server_->port();
  try {
    const server::Server second(c);
    FAIL();
  } catch (const server::ListenError& e) {
    EXPECT_NE(std::string(e.what()).find("already in use"), std::string::npos);
  }
  c.host = "no such host";
  EXPECT_THROW(server::Server{c}, server::ListenError);
}

}  // namespace
}  // namespace coppice::testing
