// HTTP connections: keep-alive, pipelining, how large and how slow requests and answers may be.
#include <fmt/format.h>

#include <string>

#include "server/fixture.h"
#include "server/http/http_server.h"

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

TEST_F(LimitsTest, EchoesCountBeforeTheStreamBegins) {
  auto c = config();
  c.api.max_answer_bytes = 300;
  start(words({"a"}), c);
  const auto body = [](int n, int length) {
    return fmt::format(R"({{"prompt": "{}", "echo": true, "n": {}, "stream": true}})", std::string(length, 'x'), n);
  };
  const HttpAnswer answer = post("/v1/completions", body(4, 90));
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("answer_too_large"), std::string::npos) << answer.body;
  EXPECT_EQ(post("/v1/completions", body(3, 90)).status, 200);
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

/// Who doesn't read must not fill the memory; small replies always find room.
TEST_F(LimitsTest, RepliesThatNobodyReadsHaveABudget) {
  auto c = config();
  c.http.max_replies_bytes = std::size_t{2} << 20;
  c.http.send_buffer_bytes = 4096;
  start(words({"x"}), c);
  const HttpAnswer stored =
      post("/v1/responses", R"({"input": "a", "text": {"verbosity": ")" + std::string(900000, 'v') + "\"}}");
  ASSERT_EQ(stored.status, 200);
  const std::string request = get_request("/v1/responses/" + stored.json()["id"].get<std::string>());
  std::vector<std::unique_ptr<HttpClient>> lazy;
  for (int i = 0; i < 2; ++i) {
    lazy.push_back(client(4096));
    lazy.back()->send(request);
    lazy.back()->read_some(1);
  }
  const HttpAnswer third = exchange(request);
  EXPECT_EQ(third.status, 503);
  EXPECT_EQ(third.headers.at("x-content-type-options"), "nosniff");
  EXPECT_EQ(get("/health").status, 200);
  lazy.clear();
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (exchange(request).status != 200 && std::chrono::steady_clock::now() < end) {
  }
  EXPECT_EQ(exchange(request).status, 200);
}

}  // namespace
}  // namespace coppice::testing
