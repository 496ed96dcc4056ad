// Heads of requests: targets, fields, and where the body ends. What is in doubt is refused.
#include <fmt/format.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

class HttpHeadTest : public ServerTest {};

TEST_F(HttpHeadTest, HeadHasNoBody) {
  start();
  auto c = client();
  c->send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n");
  const HttpAnswer answer = c->receive(true);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.at("content-length"), "15");
  EXPECT_EQ(c->get("/health").status, 200);
}

TEST_F(HttpHeadTest, HeaderOverTheLimitIs431) {
  start();
  auto c = client();
  c->send("GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + std::string(100000, 'a') + "\r\n\r\n");
  EXPECT_EQ(c->receive().status, 431);
}

TEST_F(HttpHeadTest, NonsenseIs400) {
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
TEST_F(HttpHeadTest, EmptyLinesBeforeARequestAreSkipped) {
  auto c = config();
  c.http.header_seconds = 0.3;
  start(words({"x"}), c);
  auto first = client();
  const std::string behind = post_request("/v1/completions", R"({"prompt": "hi"})") + "\r\n";
  first->send("\r\n" + behind + behind);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(first->receive().status, 200);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));  // no request has begun: it keeps its connection
  EXPECT_EQ(first->get("/health").status, 200);
}

TEST_F(HttpHeadTest, EmptyLinesMayComeByteByByte) {
  start();
  auto bytewise = client();
  for (const char byte : "\r\n\r\n" + get_request("/health")) bytewise->send({&byte, 1});
  EXPECT_EQ(bytewise->receive().status, 200);
}

TEST_F(HttpHeadTest, EmptyLinesDoNotKeepAConnection) {
  auto c = config();
  c.http.idle_seconds = 0.3;
  start({}, c);
  auto idle = client();
  expect_cut_off(*idle, [] { return "\r\n"; });
}

TEST_F(HttpHeadTest, OneHostIsWanted) {
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

TEST_F(HttpHeadTest, NonsenseAfterHeadIsAnsweredWithABody) {
  start();
  auto c = client();
  c->send("HEAD /health HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(c->receive(true).status, 200);
  c->send("hello\r\n\r\n");
  const HttpAnswer answer = c->receive();
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.code(), "bad_http");
}

TEST_F(HttpHeadTest, RefusedHeadHasNoBody) {
  start();
  auto c = client();
  c->send("HEAD /health HTTP/1.1\r\n\r\n");
  EXPECT_EQ(c->receive(true).status, 400);
  EXPECT_TRUE(c->closed());
}

TEST_F(HttpHeadTest, TargetsMayBeAbsolute) {
  start(words({"x"}));
  for (const char* target : {"http://example.com/health", "HTTP://example.com:80/health?x=1", "https://[::1]/health",
                             "http://example.com", "http://example.com?/health"})  // without a path: the page
    EXPECT_EQ(exchange(get_request(target)).status, 200) << target;
  for (const char* target :
       {"http:///health//", "ftp://x/health", "http:/health", "//example.com/health", "*", "example.com:80"})
    EXPECT_EQ(exchange(get_request(target)).status, 404) << target;
  EXPECT_EQ(exchange(post_request("http://x/v1/completions", R"({"prompt": "hi"})")).status, 200);
}

TEST_F(HttpHeadTest, CompressedBodiesAre415) {
  start();
  for (const char* encoding : {"gzip", "br", "identity, gzip"}) {
    const HttpAnswer answer =
        exchange(post_request("/tokenize", "\x1f\x8b", fmt::format("Content-Encoding: {}\r\n", encoding)));
    EXPECT_EQ(answer.status, 415) << encoding;
    EXPECT_EQ(answer.code(), "unsupported_encoding");
    EXPECT_EQ(answer.headers.at("accept-encoding"), "identity");
  }
  EXPECT_EQ(exchange(post_request("/tokenize", R"({"content": "a"})", "Content-Encoding: Identity\r\n")).status, 200);
}

TEST_F(HttpHeadTest, TooManyHeaderFieldsAre431) {
  start();
  const auto fields = [](int n) {
    std::string text;
    for (int i = 0; i < n; ++i) text += fmt::format("X-{}: y\r\n", i);
    return text;
  };
  EXPECT_EQ(exchange(get_request("/health", fields(99))).status, 200);  // and Host
  const HttpAnswer answer = exchange(get_request("/health", fields(100)));
  EXPECT_EQ(answer.status, 431);
  EXPECT_EQ(answer.code(), "header_too_large");
}

/// What two readers of one stream could understand differently.
TEST_F(HttpHeadTest, AmbiguousBodiesAre400) {
  FakeModel& model = start(words({"x"}));
  for (const char* fields :
       {"Content-Length: 15\r\nContent-Length: 16\r\n", "Content-Length: 15, 16\r\n", "Content-Length: +15\r\n",
        "Content-Length: 15\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 15\r\n",
        "Transfer-Encoding: xchunked\r\n", "Transfer-Encoding: identity\r\n", "Transfer-Encoding:\r\n",
        "Transfer-Encoding: chunked, identity\r\n", "Transfer-Encoding: gzip, chunked\r\n",
        "Transfer-Encoding: \"chunked\"\r\n", "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: xchunked\r\nContent-Length: 15\r\n", "Content-Length : 15\r\n", "Content-Length: 0x0f\r\n",
        "Content-Length: 99999999999999999999\r\n"}) {
    auto c = client();
    c->send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\n{}\r\n", fields) + R"({"prompt":"hi"})");
    EXPECT_EQ(c->receive().status, 400) << fields;
    EXPECT_TRUE(c->closed());
  }
  EXPECT_EQ(model.submitted(), 0U);
}

TEST_F(HttpHeadTest, ChunksAreNotForHttp10) {
  start();
  auto c = client();
  c->send("POST /tokenize HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  EXPECT_EQ(c->receive().status, 400);
  EXPECT_TRUE(c->closed());
}

}  // namespace
}  // namespace coppice::testing
