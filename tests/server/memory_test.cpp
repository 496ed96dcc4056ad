// Memory: what clients can make the server hold has a limit, and a failed allocation costs one connection. Other limits
// are in bodies_test (bodies), connections_test, stream_test and reply_test (deltas that nobody takes), limits_test
// (answers, requests ahead of their turn), prepare_test (prompts, values), http_head_test (headers).
#include <gtest/gtest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "server/engine_fixture.h"
#include "server/http/http_server.h"

namespace coppice::testing {
namespace {

class MemoryTest : public ServerTest {};

TEST_F(MemoryTest, WantOfMemoryOnTheWorkerIsA503) {
  FakeModel& model = start(words({"x"}), config(), [first = true]() mutable {
    if (std::exchange(first, false)) throw std::bad_alloc();
  });
  auto c = client();
  const HttpAnswer answer = c->post("/v1/completions", R"({"prompt": "hi"})");
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(answer.headers.contains("retry-after"));
  EXPECT_EQ(model.submitted(), 0U);
  EXPECT_EQ(c->post("/v1/completions", R"({"prompt": "hi"})").status, 200);
}

/// Has no memory for the first request that comes.
struct ShortAtFirst final : server::HttpHandler {
  void admit(server::HttpRequest&) override {
    if (std::exchange(first, false)) throw std::bad_alloc();
  }
  boost::asio::awaitable<void> handle(server::HttpRequest&, server::ReplyWriter& out) override { return out.send({}); }
  server::Reply refuse(const server::RequestError& error, std::string_view, std::string_view) override {
    return {.status = error.status()};
  }
  bool first = true;
};

TEST_F(MemoryTest, WantOfMemoryOnAConnectionClosesThatOne) {
  boost::asio::io_context io;
  ShortAtFirst handler;
  server::HttpServer http(io, {}, handler);
  http.listen("127.0.0.1", 0);
  boost::asio::post(io, [&] { http.start(); });
  std::thread thread([&] { io.run(); });
  HttpClient other(http.port()), first(http.port());
  first.send(get_request("/"));
  EXPECT_TRUE(first.closed());
  EXPECT_EQ(other.get("/").status, 200);
  EXPECT_EQ(HttpClient(http.port()).get("/").status, 200);
  boost::asio::post(io, [&] { http.close(); });
  thread.join();
}

class QueueTest : public EngineServerTest {
 protected:
  static std::string body(int prompt, int max_tokens = 1) {
    return nlohmann::json({{"prompt", Prompt{prompt}}, {"max_tokens", max_tokens}}).dump();
  }
  std::unique_ptr<HttpClient> sent(const std::string& body) {
    auto c = client();
    c->send(post_request("/v1/completions", body));
    return c;
  }
  void wait_for_waiting(std::int64_t n) {
    wait_for([&] { return model_->snapshot().waiting_requests == n; });
    ASSERT_EQ(model_->snapshot().waiting_requests, n);
  }
};

TEST_F(QueueTest, BeyondItIsA429) {
  start_engine({.max_batch = 1, .context_length = 31'000, .max_waiting = 3}, [](FakeExecutor& executor) {
    executor.during_forward([] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  });
  auto running = sent(body(1, 30'000));
  wait_for([&] { return model_->snapshot().running_requests == 1; });
  auto second = sent(body(2)), third = sent(body(3));
  wait_for_waiting(2);
  // Of two prompts one would find room: neither stays.
  EXPECT_EQ(post("/v1/completions", R"({"prompt": [[7], [8]], "max_tokens": 1})").status, 429);
  wait_for_waiting(2);
  auto fourth = sent(body(4));
  wait_for_waiting(3);
  for (int i = 0; i < 20; ++i) {
    const HttpAnswer answer = post("/v1/completions", body(10 + i));
    EXPECT_EQ(answer.status, 429);
    EXPECT_EQ(answer.code(), "queue_full");
    EXPECT_TRUE(answer.headers.contains("retry-after"));
  }
  EXPECT_EQ(model_->snapshot().waiting_requests, 3);
  running->close();
  for (auto* waited : {second.get(), third.get(), fourth.get()}) EXPECT_EQ(waited->receive().status, 200);
  EXPECT_EQ(post("/v1/completions", body(30)).status, 200);
}

}  // namespace
}  // namespace coppice::testing
