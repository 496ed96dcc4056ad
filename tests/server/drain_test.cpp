// The end of the server: what still runs, what is half there, who was refused, what cannot be interrupted.
#include <fmt/format.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdlib>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/base/request_error.h"
#include "server/fixture.h"
#include "server/http/http_server.h"

namespace coppice::testing {
namespace {

using nlohmann::json;
using sampling::Finish;

class DrainTest : public ServerTest {};

TEST_F(DrainTest, DrainLetsStreamsEnd) {
  auto c = config();
  c.drain_seconds = 100;
  FakeModel& model = start({}, c);
  auto reader = client(), idle = client(), early = client(), fresh = client();
  EXPECT_EQ(idle->get("/health").status, 200);
  const auto id = begin(*reader, model);
  const std::string request = post_request("/v1/completions", kStreamBody);
  early->send(request.substr(0, request.size() - 5));
  wait_for_figure(fmt::format("coppice_http_body_bytes {}", kStreamBody.size() - 5));
  server_->drain();
  EXPECT_TRUE(idle->closed());
  EXPECT_FALSE(model.cancelled(id));
  EXPECT_EQ(fresh->get("/health").status, 503) << "connected before, asked after: that is no reason to get no answer";

  // Who comes now is told where to go, until the last stream has ended.
  const HttpAnswer health = get("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.json(), json::parse(R"({"status": "draining"})"));
  EXPECT_EQ(health.headers.at("connection"), "close");
  EXPECT_EQ(get("/readyz").status, 503);
  EXPECT_EQ(get("/livez").status, 200) << "who kills it for this breaks the streams that end";
  early->send(request.substr(request.size() - 5));
  for (const HttpAnswer& answer :
       {early->receive(), post("/v1/completions", kStreamBody), chat(), post("/tokenize", "{}")}) {
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.code(), "unavailable");
    EXPECT_EQ(answer.headers.at("retry-after"), "1");
    EXPECT_EQ(answer.headers.at("connection"), "close");
  }
  EXPECT_EQ(get("/metrics").status, 200);
  auto late = client();  // a connection that asks for nothing is not waited for
  model.emit({last(id, "end", Finish::kStop, {})});
  EXPECT_NE(reader->read_until("0\r\n\r\n").find("[DONE]"), std::string::npos);
  EXPECT_TRUE(reader->closed());
  EXPECT_TRUE(late->closed());
  EXPECT_TRUE(model.wait_stopped());
  server_->join();
  EXPECT_EQ(model.submitted(), 1U);
}

TEST_F(DrainTest, DrainCancelsWhatTakesTooLong) {
  FakeModel& model = start();
  auto reader = client(), waiting = client();
  const auto id = begin(*reader, model);
  waiting->send(post_request("/v1/completions", R"({"prompt": "hi"})"));
  const auto other = model.wait_submitted(1);
  server_->drain();
  EXPECT_NE(reader->read_until("0\r\n\r\n").find("shutting down"), std::string::npos);
  EXPECT_EQ(waiting->receive().status, 503);
  EXPECT_TRUE(model.wait_cancelled(id));
  EXPECT_TRUE(model.wait_cancelled(other));
  server_->join();
  EXPECT_TRUE(model.wait_stopped());
}

/// Who has sent half a request gets a moment for the rest: a silent client must not hold the end.
TEST_F(DrainTest, DrainDoesNotWaitForHalfARequest) {
  auto c = config();
  c.drain_seconds = 300;
  FakeModel& model = start({}, c);
  auto half = client(), slow = client();
  half->send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{");
  const std::string whole = post_request("/v1/completions", R"({"prompt": "hi"})");
  slow->send(whole.substr(0, whole.size() - 3));
  wait_for_figure("coppice_http_body_bytes 14");
  const auto begin = std::chrono::steady_clock::now();
  server_->drain();
  slow->send(whole.substr(whole.size() - 3));
  EXPECT_EQ(slow->receive().status, 503);
  EXPECT_EQ(half->receive().status, 503);
  server_->join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(100));
  EXPECT_EQ(model.submitted(), 0U);
}

/// While others are waited for, too, and wherever it stopped.
TEST_F(DrainTest, HalfARequestHasOneMomentForAllOfItsRest) {
  auto c = config();
  c.drain_seconds = 300;
  c.http.last_request_seconds = 2;
  FakeModel& model = start({}, c);
  auto reader = client();
  const auto id = begin(*reader, model);
  const std::string listing = "GET /v1/models HTTP/1.1\r\nHost: x\r\n", health = "POST /health HTTP/1.1\r\nHost: x\r\n";
  const std::string body = "Content-Length: 100\r\n\r\n{", asking = "Expect: 100-continue\r\n";
  struct Half {
    std::string before, after;  ///< the drain begins
    std::unique_ptr<HttpClient> client;
  };
  std::vector<Half> halves;
  for (const auto& [before, after] : {std::pair{std::string("POST /v1/comp"), std::string()},
                                      {"", "POST /v1/comp"},
                                      {listing, body},
                                      {"", listing + body},
                                      {health, body},
                                      {"", health + body},
                                      {health, asking + body}})
    halves.push_back({before, after, client()});
  for (Half& half : halves) half.client->send(half.before);
  get("/health");  // the server has them
  server_->drain();
  while (get("/health").status == 200) {
  }
  halves.push_back({"", "POST /v1/comp", client()});
  halves.push_back({"", health + body, client()});
  const auto begin = std::chrono::steady_clock::now();
  for (Half& half : halves) half.client->send(half.after);
  for (Half& half : halves) {
    SCOPED_TRACE(half.before + "|" + half.after);
    if (half.after.starts_with(asking)) half.client->read_until("100 Continue\r\n\r\n");
    EXPECT_EQ(half.client->receive().status, 503);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(100));
  model.emit({last(id, "end", Finish::kStop, {})});
  EXPECT_NE(reader->read_until("0\r\n\r\n").find("[DONE]"), std::string::npos);
}

TEST_F(DrainTest, HalfARequestIsAnsweredThoughThereIsNoTimeForRunningOnes) {
  auto c = config();
  c.drain_seconds = 0;
  start({}, c);
  auto half = client();
  half->send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{");
  wait_for_figure("coppice_http_body_bytes 1");
  server_->drain();
  EXPECT_EQ(half->receive().status, 503);
}

/// Goes on sending for a while. The server's reset, which may destroy an answer on its way, would be seen. It may come
/// from `end` on.
void send_on(HttpClient& c, std::chrono::steady_clock::time_point end = std::chrono::steady_clock::time_point::max()) {
  try {
    for (int i = 0; i < 20; ++i) {
      c.send("more");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  } catch (const std::runtime_error& e) {
    EXPECT_GE(std::chrono::steady_clock::now(), end) << e.what();
  }
}

TEST_F(DrainTest, WhoWasRefusedMaySendOnForAMoment) {
  for (const bool before : {true, false}) {
    SCOPED_TRACE(before ? "refused before" : "refused by the drain");
    auto c = config();
    c.drain_seconds = 30;
    c.http.linger_seconds = 60;
    constexpr std::chrono::milliseconds kMoment{500};
    c.http.last_request_seconds = std::chrono::duration<double>(kMoment).count();
    start({}, c);
    auto upload = client();
    upload->send(fmt::format("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{{",
                             before ? c.http.max_body_bytes + 1 : c.http.max_body_bytes));
    if (before) {
      EXPECT_EQ(upload->receive().status, 413);
      EXPECT_TRUE(upload->closed()) << "to us: it still reads";
    } else {
      wait_for_figure("coppice_http_body_bytes 1");
    }
    // Each waits for a moment: the server for what is missing of the upload, and then for what is still sent.
    const auto end = std::chrono::steady_clock::now() + (before ? 1 : 2) * kMoment;
    server_->drain();
    if (!before) EXPECT_EQ(upload->receive().status, 503);
    send_on(*upload, end);
    upload->close();
    server_->join();
  }
}

struct Refusing final : server::HttpHandler {
  void admit(server::HttpRequest&) override { throw server::RequestError::unavailable("No."); }
  boost::asio::awaitable<void> handle(server::HttpRequest&, server::ReplyWriter&) override { co_return; }
  server::Reply refuse(const server::RequestError& error, std::string_view, std::string_view) override {
    return {.status = error.status()};
  }
};

/// Nothing is read any more: the limit for the rest of a request is not for what follows.
TEST(HttpServerTest, FinishIsNoMatterForWhoWasRefused) {
  boost::asio::io_context io;
  Refusing handler;
  server::HttpServer http(io, {.last_request_seconds = 0.05, .linger_seconds = 60}, handler);
  http.listen("127.0.0.1", 0);
  boost::asio::post(io, [&] { http.start(); });
  std::thread thread([&] { io.run(); });
  HttpClient client(http.port());
  EXPECT_EQ(client.get("/").status, 503);
  EXPECT_TRUE(client.closed()) << "to us: it still reads";
  boost::asio::post(io, [&] { http.finish(); });
  send_on(client);
  boost::asio::post(io, [&] { http.close(); });
  thread.join();
}

/// A model file that fails at once ends the server before its thread has begun: a wait for signals started then
/// would never end.
TEST_F(DrainTest, DrainMayComeBeforeTheFirstMoment) {
  auto c = config();
  c.owns_process = true;
  server_ = std::make_unique<server::Server>(c);
  server_->drain();
  server_->start();
  server_->join();
  EXPECT_TRUE(server_->ending());
}

/// The worker cannot be interrupted: the process ends without it.
TEST_F(DrainTest, DrainEndsTheProcessThoughATokenizerHangs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [this] {
    auto c = config();
    c.owns_process = true;
    std::promise<void> begun;
    start({}, c, [&] {
      begun.set_value();
      std::this_thread::sleep_for(std::chrono::seconds(20));
      std::_Exit(3);
    });
    auto waiting = client();
    waiting->send(post_request("/tokenize", R"({"content": "hi"})"));
    begun.get_future().wait();
    server_->drain();
    server_->join();
    std::_Exit(4);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

/// Neither can a step.
TEST_F(DrainTest, DrainEndsTheProcessThoughAStepTakesLong) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [this] {
    auto c = config();
    c.owns_process = true;
    start({}, c).never_ends_ = true;
    server_->drain();
    server_->join();
    std::_Exit(4);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

/// An exception on the model's thread: it is to be reported, so that the process must not end before.
TEST_F(DrainTest, ModelWhoseThreadHasLeftItIsNotWaitedFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [this] {
    auto c = config();
    c.owns_process = true;
    start({}, c).never_ends_ = true;
    server_->model_ended();
    server_->drain();
    server_->join();
    std::_Exit(4);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(4), "");
}

/// Nor are those who wait for its answers: nothing more will come.
TEST_F(DrainTest, ModelWhoseThreadHasLeftItEndsItsStreamsAtOnce) {
  auto c = config();
  c.drain_seconds = 300;
  FakeModel& model = start({}, c);
  auto reader = client(), waiting = client();
  begin(*reader, model);
  waiting->send(post_request("/v1/completions", R"({"prompt": "hi"})"));
  model.wait_submitted(1);
  const auto begin = std::chrono::steady_clock::now();
  server_->model_ended();
  server_->drain();
  EXPECT_NE(reader->read_until("0\r\n\r\n").find("shutting down"), std::string::npos);
  EXPECT_EQ(waiting->receive().status, 503);
  server_->join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(100));
}

TEST_F(DrainTest, ModelThatComesTooLateIsStopped) {
  start_loading(config());
  server_->drain();
  server_->join();
  auto model = std::make_shared<FakeModel>(server_->sink());
  server_->ready(model);
  EXPECT_TRUE(model->wait_stopped());
}

}  // namespace
}  // namespace coppice::testing
