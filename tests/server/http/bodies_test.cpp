// The room that bodies take while they arrive, and how fast they must.
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

class BodiesTest : public ServerTest {
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
  /// The same where a key is wanted.
  void wait_for_metrics(int bytes, const std::string& key) {
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    std::string metrics;
    do {
      metrics = exchange(get_request("/metrics", fmt::format("Authorization: Bearer {}\r\n", key))).body;
    } while (metrics.find(fmt::format("\ncoppice_http_body_bytes {}\n", bytes)) == std::string::npos &&
             std::chrono::steady_clock::now() < end);
    EXPECT_NE(metrics.find(fmt::format("\ncoppice_http_body_bytes {}\n", bytes)), std::string::npos) << metrics;
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
    slow.back()->send(request.substr(0, request.size() - (i < 3 ? 100 : 5100)));
  }
  constexpr int kHeld = 4 * kBody - 5400;
  wait_for_bytes(kHeld);
  // Their first kSmall bytes don't count. An eighth is left to other addresses.
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
  wait_for_bytes(kHeld);
  auto last = client();
  const std::string rest = post_request("/v1/completions", padded(901));
  last->send(rest.substr(0, rest.size() - 1));
  wait_for_bytes(kHeld + 900);
  EXPECT_EQ(post("/v1/completions", padded(kSmall)).status, 200) << "small ones find room beside any";
  EXPECT_EQ(post("/v1/completions", padded(kSmall + 1)).status, 503);
  last.reset();
  wait_for_bytes(kHeld);
  slow[0]->send(request.substr(request.size() - 100));
  EXPECT_EQ(slow[0]->receive().status, 200);
  slow[1]->close();
  wait_for_bytes(kHeld - 2 * kBody + 200);
  EXPECT_EQ(post("/v1/completions", padded(kBody)).status, 200);
}

/// Whoever takes all that it can leaves something to others.
TEST_F(BodiesTest, LargeOnesLeaveRoomToOtherKeys) {
  auto c = small();
  c.api.api_keys = {"sk-one", "sk-two"};
  start(words({"x"}), c);
  const auto request = [](const std::string& key, int bytes) {
    return post_request("/v1/completions", padded(bytes), fmt::format("Authorization: Bearer {}\r\n", key));
  };
  std::vector<std::unique_ptr<HttpClient>> slow;
  for (const int bytes : {kBody, kBody, kBody, kBody / 2}) {
    slow.push_back(client());
    const std::string whole = request("sk-one", bytes);
    slow.back()->send(whole.substr(0, whole.size() - 1));
  }
  wait_for_metrics(3 * kBody + kBody / 2 - 4, "sk-two");
  EXPECT_EQ(exchange(request("sk-one", kBody / 5)).status, 503);
  EXPECT_EQ(exchange(request("sk-two", kBody / 5)).status, 200);
}

/// Many connections with a little each: together they have a limit, and who sends them leaves half of it to others.
TEST_F(BodiesTest, SmallOnesAndWhatIsPipelinedHaveALimitByKey) {
  auto c = small();
  c.http.max_small_bytes = 800;
  c.api.api_keys = {"sk-one", "sk-two"};
  FakeModel& model = start({}, c);
  const auto request = [](const std::string& key) {
    return post_request("/v1/completions",
                        R"({"prompt": "hi", "stream": true, "user": ")" + std::string(50, 'a') + "\"}",
                        fmt::format("Authorization: Bearer {}\r\n", key));
  };
  const std::string whole = request("sk-one");
  const auto bytes = static_cast<int>(whole.size() - whole.find("\r\n\r\n") - 4);
  ASSERT_LE(bytes, kSmall);
  auto running = client();
  running->send(whole);
  const auto id = model.wait_submitted(0);
  running->send(std::string(200, 'x'));  // ahead of its turn
  wait_for_metrics(200, "sk-two");
  std::vector<std::unique_ptr<HttpClient>> slow;
  for (int i = 1; i <= 3; ++i) {
    slow.push_back(client());
    slow.back()->send(whole.substr(0, whole.size() - 1));
    wait_for_metrics(200 + i * (bytes - 1), "sk-two");
  }
  EXPECT_EQ(exchange(whole).status, 503) << "one has had its half";
  auto other = client();
  other->send(request("sk-two"));
  const auto others = model.wait_submitted(1);
  model.emit({last(others, "x", sampling::Finish::kStop, {})});
  other->read_until("data: [DONE]");
  model.emit({last(id, "x", sampling::Finish::kStop, {})});
  running->read_until("data: [DONE]");
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

}  // namespace
}  // namespace coppice::testing
