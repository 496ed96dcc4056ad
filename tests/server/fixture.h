// ServerTest: a real Server on a free port of 127.0.0.1, with a FakeModel behind it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "server/fake_model.h"
#include "server/http_client.h"
#include "server/server.h"
#include "support/longest_wait.h"

namespace coppice::testing {

inline const std::string kStreamBody = R"({"prompt": "hi", "stream": true})";

class ServerTest : public ::testing::Test {
 protected:
  static server::ServerConfig config() {
    server::ServerConfig c;
    c.port = 0;
    c.api.hosts = "x";
    c.api.names = {"the-model", "the-alias"};
    c.drain_seconds = 0.2;
    c.api.ping_seconds = 0;
    return c;
  }

  void start_loading(const server::ServerConfig& c) {
    server_ = std::make_unique<server::Server>(c);
    server_->start();
  }
  /// Returns when the server serves the model.
  FakeModel& start(
      FakeModel::Script script = {}, const server::ServerConfig& c = config(), std::function<void()> on_text = [] {}) {
    start_loading(c);
    model_ = std::make_shared<FakeModel>(server_->sink(), std::move(script));
    model_->on_text_ = std::move(on_text);
    server_->ready(model_);
    while (client()->get("/health").status != 200) {
    }
    return *model_;
  }

  std::unique_ptr<HttpClient> client(int receive_buffer = 0) {
    return std::make_unique<HttpClient>(server_->port(), receive_buffer);
  }
  /// A stream that has begun: its request's id, and a client that has read the first word.
  static engine::RequestId begin(HttpClient& c, FakeModel& model) {
    const auto before = model.submitted();
    c.send(post_request("/v1/completions", kStreamBody));
    const auto id = model.wait_submitted(before);
    model.emit({piece(id, "first")});
    c.read_until("first");
    return id;
  }
  /// Whatever else is open: sends `bytes` on a connection of its own.
  HttpAnswer exchange(const std::string& bytes) {
    auto c = client();
    c->send(bytes);
    return c->receive();
  }
  HttpAnswer get(const std::string& path) { return client()->get(path); }
  HttpAnswer post(const std::string& path, const std::string& body) { return client()->post(path, body); }
  HttpAnswer chat(const std::string& more = "") {
    return post("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}])" + more + "}");
  }
  HttpAnswer complete(const std::string& more = "") {
    return post("/v1/completions", R"({"prompt": "hi")" + more + "}");
  }

  /// Until /metrics has this line, for a minute at most.
  void wait_for_figure(const std::string& line) {
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    std::string metrics;
    do {
      metrics = get("/metrics").body;
      if (metrics.find("\n" + line + "\n") != std::string::npos) return;
    } while (std::chrono::steady_clock::now() < end);
    FAIL() << "no '" << line << "' in " << metrics;
  }

  /// Only the asking connection is left, and no body; within a minute.
  void expect_deserted() {
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    std::string metrics;
    do {
      metrics = get("/metrics").body;
    } while (!deserted(metrics) && std::chrono::steady_clock::now() < end);
    EXPECT_TRUE(deserted(metrics)) << metrics;
  }

  /// Sends next() every 20 ms, until the server closes, as it must.
  template <class Next>
  static void expect_cut_off(HttpClient& slow, Next&& next) {
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    try {
      while (std::chrono::steady_clock::now() < end) {
        slow.send(next());
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      ADD_FAILURE() << "nobody closed";
    } catch (const std::runtime_error&) {
    }
  }

  std::unique_ptr<server::Server> server_;
  std::shared_ptr<FakeModel> model_;

  static bool deserted(const std::string& metrics) {
    return metrics.find("\ncoppice_connections 1\n") != std::string::npos &&
           metrics.find("\ncoppice_http_body_bytes 0\n") != std::string::npos;
  }
};

}  // namespace coppice::testing
