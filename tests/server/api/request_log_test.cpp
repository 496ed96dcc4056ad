// Names of requests, and the line of JSON that each of them gets.
#include "server/api/request_log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "server/fixture.h"
#include "support/longest_wait.h"

namespace coppice::testing {
namespace {

using nlohmann::json;
using sampling::Finish;

const std::string kMessage = R"({"max_tokens": 9, "messages": [{"role": "user", "content": "secret words"}])";

class RequestLogTest : public ServerTest {
 protected:
  ~RequestLogTest() override { std::filesystem::remove(path_); }

  server::ServerConfig logging() const {
    server::ServerConfig c = config();
    c.api.request_log = path_;
    return c;
  }
  /// The log's first n lines.
  std::vector<json> lines(std::size_t n) const {
    const auto end = std::chrono::steady_clock::now() + kLongestWait;
    while (std::chrono::steady_clock::now() < end) {
      std::vector<json> found;
      std::ifstream in(path_);
      for (std::string line; std::getline(in, line);) found.push_back(json::parse(line));
      if (found.size() >= n) return found;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "fewer than " << n << " lines";
    return std::vector<json>(n, json::object());
  }

  std::string path_ = fmt::format("/tmp/request-log-{}", getpid());
};

TEST_F(RequestLogTest, EveryAnswerAndErrorHasAnId) {
  server::ServerConfig c = config();
  c.api.api_keys = {"key"};
  start(words({"x"}), c);
  const std::string key = "Authorization: Bearer key\r\n";
  std::vector<std::string> ids;
  for (const std::string& request :
       {get_request("/health"), get_request("/v1/models", key), get_request("/v1/models"), get_request("/none", key),
        post_request("/v1/completions", kStreamBody, key), post_request("/v1/completions", "{", key),
        get_request("/health", "Content-Encoding: gzip\r\n"), std::string("nonsense\r\n\r\n")}) {
    const HttpAnswer answer = exchange(request);
    ids.push_back(answer.headers.at("x-request-id"));
    EXPECT_TRUE(ids.back().starts_with("req_")) << request;
    EXPECT_EQ(answer.headers.at("request-id"), ids.back()) << "Anthropic's name";
  }
  std::ranges::sort(ids);
  EXPECT_EQ(std::ranges::adjacent_find(ids), ids.end()) << "each its own";
}

TEST_F(RequestLogTest, AClientsOwnIdIsKeptIfItIsSane) {
  start();
  const auto id = [&](const std::string& asked) {
    return exchange(get_request("/health", "X-Request-Id: " + asked + "\r\n")).headers.at("x-request-id");
  };
  EXPECT_EQ(id("trace-1/a:b"), "trace-1/a:b");
  EXPECT_EQ(id(std::string(128, 'a')), std::string(128, 'a'));
  for (const std::string& other : {std::string(129, 'a'), std::string("a b"), std::string("\xc3\xa9"), std::string()})
    EXPECT_TRUE(id(other).starts_with("req_")) << other;
}

TEST_F(RequestLogTest, AnthropicsErrorsNameIt) {
  FakeModel& model = start();
  const HttpAnswer answer = exchange(post_request("/v1/messages", "{}", "X-Request-Id: mine\r\n"));
  EXPECT_EQ(answer.json()["request_id"], "mine");
  auto c = client();
  c->send(post_request("/v1/messages", kMessage + R"(, "stream": true})", "X-Request-Id: mine\r\n"));
  const auto id = model.wait_submitted(0);
  model.emit({piece(id, "x")});
  c->read_until("x");
  model.emit({refusal(id, engine::Refusal::kFailed, "broken")});
  EXPECT_NE(c->read_until("0\r\n\r\n").find(R"("request_id":"mine")"), std::string::npos);
}

/// Whatever is wrong, and wherever it is found: also in HTTP alone.
TEST_F(RequestLogTest, AllErrorsOfMessagesAreInAnthropicsForm) {
  server::ServerConfig c = config();
  c.http.max_body_bytes = 1000;
  c.http.max_header_bytes = 4096;
  start({}, c);
  const std::string id = "X-Request-Id: mine\r\n";
  for (const std::string path :
       {"/v1/messages", "/v1/messages/count_tokens", "/v1/messages?beta=true", "/v1/messages/"}) {
    SCOPED_TRACE(path);
    const auto expect = [&](const std::string& request, int status, const char* type, bool named = true) {
      const HttpAnswer answer = exchange(request);
      EXPECT_EQ(answer.status, status);
      const json body = json::parse(answer.body);
      EXPECT_EQ(body["type"], "error") << body;
      EXPECT_EQ(body["error"]["type"], type);
      EXPECT_EQ(body["request_id"], answer.headers.at("request-id"));
      if (named) EXPECT_EQ(body["request_id"], "mine");
    };
    expect(post_request(path, "{", id), 400, "invalid_request_error");
    expect(post_request(path, "{}", id + "Content-Encoding: gzip\r\n"), 415, "invalid_request_error");
    expect(post_request(path, std::string(2000, ' '), id), 413, "request_too_large");
    expect(get_request(path, id), 405, "invalid_request_error");
    expect(post_request(path, "{}", id + "Transfer-Encoding: gzip\r\n"), 400, "invalid_request_error");
    expect(post_request(path, "{}", id + "X-Long: " + std::string(5000, 'x') + "\r\n"), 431, "invalid_request_error",
           false);
  }
  const HttpAnswer none = exchange(post_request("/v1/messages/batches", "{}", id));
  EXPECT_EQ(none.status, 404);
  EXPECT_EQ(none.json()["error"]["type"], "not_found_error");
  EXPECT_EQ(none.json()["request_id"], "mine");
  const HttpAnswer other = exchange(post_request("/v1/completions", "{}", "Content-Encoding: gzip\r\n"));
  EXPECT_EQ(other.json()["error"]["code"], "unsupported_encoding") << "OpenAI's form";
}

TEST_F(RequestLogTest, EachRequestHasALine) {
  server::ServerConfig c = logging();
  c.api.api_keys_file = path_ + ".keys";
  std::ofstream(c.api.api_keys_file) << "alice sk-hidden\n";
  start(words({"Hel", "lo"}, 3), c);
  const std::string key = "Authorization: Bearer sk-hidden\r\n";
  const std::string id = exchange(post_request("/v1/messages", kMessage + "}", key)).headers.at("x-request-id");
  exchange(post_request("/v1/messages/count_tokens", kMessage + "}", key));
  exchange(post_request("/v1/chat/completions", "{", key));
  exchange(post_request("/v1/completions", kStreamBody, "Authorization: Bearer wrong\r\n"));
  exchange(get_request("/v1/nothing", key));
  exchange(get_request("/health"));
  exchange(get_request("/metrics", key));
  exchange(get_request("/v1/models", key));
  const std::vector<json> all = lines(6);
  ASSERT_EQ(all.size(), 6U) << "successes of /health and /metrics have none";
  const json& first = all[0];
  EXPECT_EQ(first["id"], id);
  EXPECT_EQ(first["method"], "POST");
  EXPECT_EQ(first["route"], "/v1/messages");
  EXPECT_EQ(first["status"], 200);
  EXPECT_EQ(first["model"], "the-model");
  EXPECT_EQ(first["key"], "alice");
  EXPECT_EQ(first["cached_tokens"], 3);
  EXPECT_EQ(first["completion_tokens"], 2);
  EXPECT_EQ(first["end"], "stop");
  EXPECT_GT(first["prompt_tokens"], 10);
  for (const char* time : {"queue_seconds", "first_token_seconds", "total_seconds"}) EXPECT_GE(first[time], 0) << time;
  EXPECT_GE(first["total_seconds"], first["first_token_seconds"]);
  EXPECT_EQ(all[1]["end"], nullptr) << "nothing was generated";
  EXPECT_EQ(all[2]["status"], 400);
  EXPECT_EQ(all[2]["end"], "invalid_json");
  EXPECT_EQ(all[2]["prompt_tokens"], nullptr);
  EXPECT_EQ(all[3]["status"], 401);
  EXPECT_EQ(all[3]["method"], "POST") << "its body was not taken, but its head was read";
  EXPECT_EQ(all[3]["route"], "/v1/completions");
  EXPECT_EQ(all[4]["route"], "other");
  EXPECT_EQ(all[5]["route"], "/v1/models");
  std::ifstream in(path_);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  for (const char* hidden : {"sk-hidden", "wrong", "secret words"})
    EXPECT_EQ(text.find(hidden), std::string::npos) << hidden;
  std::filesystem::remove(c.api.api_keys_file);
}

/// So that the log tells their requests from those of strangers, and from each other's.
TEST_F(RequestLogTest, KeysThatTheOperatorDidntNameHaveOne) {
  server::ServerConfig c = logging();
  c.api.api_keys = {"sk-first", "sk-second"};
  start({}, c);
  for (const char* key : {"sk-first", "sk-second", "sk-wrong"})
    exchange(get_request("/v1/models", fmt::format("Authorization: Bearer {}\r\n", key)));
  const std::vector<json> all = lines(3);
  EXPECT_EQ(all[0]["key"], "api-key-1");
  EXPECT_EQ(all[1]["key"], "api-key-2");
  EXPECT_EQ(all[2]["key"], nullptr);
}

TEST_F(RequestLogTest, AClientThatLeavesHasALine) {
  FakeModel& model = start({}, logging());
  {
    auto c = client();
    begin(*c, model);
  }
  const json line = lines(1)[0];
  EXPECT_EQ(line["status"], 499);
  EXPECT_EQ(line["end"], "client_gone");
  EXPECT_GT(line["prompt_tokens"], 0);
}

TEST(RequestRecord, IsOneLine) {
  const server::RequestRecord record{
      .id = "a\n\"b", .method = "GET", .route = "/x", .status = 200, .first_token_seconds = 0.12345678};
  const std::string line =
      server::record_json(record, std::chrono::system_clock::time_point(std::chrono::milliseconds(1000000000045)));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const json read = json::parse(line);
  EXPECT_EQ(read["id"], "a\n\"b");
  EXPECT_EQ(read["time"], "2001-09-09T01:46:40.045Z");
  EXPECT_EQ(read["first_token_seconds"], 0.123457);
}

TEST(RequestLog, AFileThatCannotBeWrittenIsSaidAtOnce) {
  EXPECT_THROW(server::RequestLog("/nowhere/at/all"), std::runtime_error);
}

}  // namespace
}  // namespace coppice::testing
