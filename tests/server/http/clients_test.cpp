// Clients that are slow, broken or hostile: each gets its answer or is closed, and nobody else notices.
#include <fmt/format.h>
#include <sys/socket.h>

#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

using nlohmann::json;

const std::string kChunkedHead = "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

class ClientsTest : public ServerTest {};

TEST_F(ClientsTest, ChunksHeadWithoutEndIsCutOff) {
  start();
  for (const std::string& begin : {kChunkedHead + "5;", kChunkedHead + "0\r\nA: "}) {
    auto c = client();
    c->send(begin);
    std::string reply;
    try {
      const std::string junk(std::size_t{64} << 10, 'a');
      for (int i = 0; i < 64; ++i) c->send(junk);
    } catch (const std::runtime_error&) {
      continue;  // closed already
    }
    EXPECT_EQ(c->receive().status, 400);
  }
  expect_deserted();
}

TEST_F(ClientsTest, BodyThatNeverEndsIsCutOff) {
  auto c = config();
  c.http.body_seconds = 0.5;
  start({}, c);
  auto slow = client();
  slow->send(kChunkedHead);
  expect_cut_off(*slow, [] { return "1\r\n \r\n"; });  // always something new, and always within the time
  expect_deserted();
}

TEST_F(ClientsTest, HeaderInDropsIs408) {
  auto c = config();
  c.http.header_seconds = 0.5;
  start({}, c);
  auto slow = client();
  slow->send("GET /health HTTP/1.1\r\nHost: x\r\n");
  expect_cut_off(*slow, [i = 0]() mutable { return fmt::format("X-{}: y\r\n", ++i % 50); });
  expect_deserted();
}

/// Clients who send so fast that whenever a deadline passes their next byte is there already.
class FloodTest : public ClientsTest {
 protected:
  static constexpr int kClients = 8;

  static server::ServerConfig impatient() {
    auto c = config();
    c.http.header_seconds = c.http.body_seconds = c.http.write_seconds = 0.3;
    c.http.linger_seconds = 60;  // a client that is slow to stop still gets its answer
    c.http.max_header_bytes = std::size_t{16} << 20;
    return c;
  }
  std::vector<std::unique_ptr<HttpClient>> begin(const std::string& bytes) {
    std::vector<std::unique_ptr<HttpClient>> all;
    for (int i = 0; i < kClients; ++i) {
      all.push_back(client());
      all.back()->send(bytes);
    }
    return all;
  }
  /// Sends pieces of `bytes`, over and over, from before the deadline until it was looked at.
  static void flood(std::vector<std::unique_ptr<HttpClient>>& all, const std::string& bytes, std::size_t piece = 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
    for (std::size_t at = 0; std::chrono::steady_clock::now() < end; at = (at + piece) % bytes.size()) {
      for (auto& one : all) {
        try {
          one->send(std::string_view(bytes).substr(at, piece));
        } catch (const std::runtime_error&) {  // closed already
        }
      }
    }
  }
};

TEST_F(FloodTest, HeadsEndInTheir408) {
  start({}, impatient());
  auto all = begin("GET /health HTTP/1.1\r\n");
  flood(all, "A: b\r\n");
  for (auto& one : all) EXPECT_EQ(one->receive().status, 408);
  all.clear();
  expect_deserted();
}

TEST_F(FloodTest, BodiesEndInTheir408) {
  start({}, impatient());
  for (const std::string& head :
       {kChunkedHead, std::string("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n")}) {
    auto all = begin(head);
    flood(all, "1\r\n \r\n");
    for (auto& one : all) EXPECT_EQ(one->receive().status, 408);
  }
  expect_deserted();
}

TEST_F(FloodTest, RefusedClientsAreClosed) {
  auto c = impatient();
  c.http.linger_seconds = 0.3;
  start({}, c);
  auto all = begin("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n");
  flood(all, std::string(32768, ' '), 32768);
  expect_deserted();
}

/// Their writes never rest: a byte is taken at any time.
TEST_F(FloodTest, SlowReadersAreClosed) {
  auto c = impatient();
  c.http.send_buffer_bytes = 4096;
  c.http.slowest_reader = 1e12;
  FakeModel& model = start({}, c);
  std::vector<std::unique_ptr<HttpClient>> all;
  for (std::size_t i = 0; i < kClients; ++i) {
    all.push_back(client(4096));
    all.back()->send(post_request("/v1/completions", R"({"prompt": "hi"})"));
    model.emit({last(model.wait_submitted(i), std::string(2'000'000, 'x'), sampling::Finish::kStop, {})});
  }
  std::size_t taken = 0;
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (!deserted(get("/metrics").body) && std::chrono::steady_clock::now() < end) {
    for (int i = 0; i < 1000; ++i)
      for (auto& one : all) taken += one->read_ready(1).size();
  }
  expect_deserted();
  EXPECT_LT(taken, 2'000'000U) << "of all together";
}

TEST_F(ClientsTest, RequestsMayComeByteByByte) {
  start(words({"x"}));
  auto c = client();
  for (int i = 0; i < 2; ++i) {
    for (const char byte : post_request("/v1/completions", R"({"prompt": "hi"})")) c->send({&byte, 1});
    EXPECT_EQ(c->receive().status, 200);
  }
}

TEST_F(ClientsTest, RequestsCutAtEveryByteLeaveNothing) {
  FakeModel& model = start(words({"x"}));
  const std::string plain = post_request("/v1/completions", R"({"prompt": "hi"})");
  const std::string chunked =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{\"pr\r\n"
      "b;x=\"y\"\r\nompt\":\"hi\"}\r\n0\r\nTrailer: z\r\n\r\n";
  for (const std::string& request : {plain, chunked}) {
    EXPECT_EQ(exchange(request).status, 200) << request;
    const std::size_t before = model.submitted();
    for (std::size_t cut = 0; cut < request.size(); ++cut) {
      auto gone = client(), half = client();
      for (auto* c : {gone.get(), half.get()}) c->send(request.substr(0, cut));
      gone->close();
      half->shut_down_sending();
      EXPECT_TRUE(half->closed()) << cut;
    }
    EXPECT_EQ(model.submitted(), before);
  }
  expect_deserted();
}

/// Leaving takes back what the worker has yet to do for them, at any moment: in its queue, in its hands, or just done.
TEST_F(ClientsTest, ClientsMayLeaveTheWorkersQueue) {
  start();
  const std::string request =
      post_request("/tokenize", json{{"content", "hi"}, {"user", std::string(200'000, 'x')}}.dump());
  for (int round = 0; round < 100; ++round) {
    std::vector<std::unique_ptr<HttpClient>> leaving;
    for (int i = 0; i < 8; ++i) {
      leaving.push_back(client());
      leaving.back()->send(request);
      if (i % 2 == 1) leaving[static_cast<std::size_t>(i / 2)]->close();
    }
    leaving.clear();
    const HttpAnswer answer = exchange(request);
    ASSERT_EQ(answer.status, 200) << "round " << round << ": " << answer.body;
  }
  expect_deserted();
}

TEST_F(ClientsTest, HalfClosingCountsAsGone) {
  FakeModel& model = start();
  auto c = client();
  c->send(post_request("/v1/completions", R"({"prompt": "hi"})"));
  const auto id = model.wait_submitted(0);
  c->shut_down_sending();
  EXPECT_TRUE(model.wait_cancelled(id));
}

TEST_F(ClientsTest, InvalidUtf8IsNamed) {
  FakeModel& model = start(words({"x"}));
  for (const char* bad : {"\xff", "\xc3", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xc0\xaf"}) {
    for (const std::string& body : {fmt::format(R"({{"prompt": "{}"}})", bad), fmt::format(R"({{"{}": 1}})", bad),
                                    std::string(bad), fmt::format(R"({{"prompt": "hi"}}{})", bad)}) {
      const HttpAnswer answer = post("/v1/completions", body);
      EXPECT_EQ(answer.status, 400);
      EXPECT_EQ(answer.code(), "invalid_json");
    }
    const HttpAnswer lost = get(fmt::format("/{}", bad));
    EXPECT_TRUE(lost.status == 404 || lost.status == 400);
    EXPECT_NO_THROW(lost.json());
  }
  EXPECT_EQ(post("/v1/completions", R"({"prompt": "\ud800"})").status, 400) << "half a surrogate pair";
  EXPECT_EQ(model.submitted(), 0U);
}

TEST_F(ClientsTest, DeepJsonIsRefused) {
  start(words({"x"}));
  for (const char* deep : {"[", "{\"a\":", "[{\"a\":"}) {
    for (const auto& [depth, code] : {std::pair{100, "invalid_json"}, {1000000, "too_many_values"}}) {
      std::string body = R"({"prompt": "hi", "x": )";
      for (int i = 0; i < depth; ++i) body += deep;
      const HttpAnswer answer = post("/v1/completions", body);
      EXPECT_EQ(answer.status, 400);
      EXPECT_EQ(answer.code(), code);
    }
  }
}

TEST_F(ClientsTest, LongPipelineIsAnsweredInOrder) {
  start();
  auto c = client();
  constexpr int kRequests = 1000;
  std::string all;
  for (int i = 0; i < kRequests; ++i) all += get_request(fmt::format("/nothing-{}", i));
  std::thread sender([&] { c->send(all); });
  for (int i = 0; i < kRequests; ++i)
    ASSERT_NE(c->receive().body.find(fmt::format("/nothing-{}.", i)), std::string::npos) << i;
  sender.join();
}

/// The kernel's table shows a timer for each connection: 2 stands for keep-alive probes.
TEST_F(ClientsTest, SilentPeersAreAskedWhetherTheyLive) {
  start();
  auto c = client();
  c->get("/health");
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::vector<std::string> timers;
  while (std::getline(table, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer;
    words >> number >> local >> remote >> state >> queues >> timer;
    if (local.ends_with(fmt::format(":{:04X}", server_->port())) && remote.ends_with(fmt::format(":{:04X}", c->port())))
      timers.push_back(timer.substr(0, 2));
  }
  EXPECT_EQ(timers, std::vector<std::string>{"02"});
}

/// Each step reaches the good one beside them. How fast is not for a test to say.
TEST_F(ClientsTest, EverybodyElseIsServedBesideThem) {
  auto c = config();
  c.http.send_buffer_bytes = 4096;
  FakeModel& model = start({}, c);
  std::vector<std::unique_ptr<HttpClient>> bad;
  const std::string request = post_request("/v1/completions", kStreamBody);
  for (int i = 0; i < 100; ++i) {
    bad.push_back(client());
    bad.back()->send("GET /hea");  // half a head
    bad.push_back(client());
    bad.back()->send(request.substr(0, request.size() - 3));  // half a body
    bad.push_back(client());                                  // silence
  }
  std::vector<engine::RequestId> slow;
  for (std::size_t i = 0; i < 20; ++i) {
    bad.push_back(client(4096));
    bad.back()->send(request);
    slow.push_back(model.wait_submitted(i));
  }
  auto good = client();
  good->send(request);
  const auto id = model.wait_submitted(20);
  const std::string text(5000, 'x');
  for (int i = 0; i < 50; ++i) {
    std::vector<engine::Event> step{piece(id, fmt::format("<{}>", i))};
    for (const auto other : slow) step.push_back(piece(other, text));
    model.emit(std::move(step));
    good->read_until(fmt::format("<{}>", i));
    EXPECT_EQ(get("/health").status, 200);
  }
  bad.clear();
  model.emit({last(id, "", sampling::Finish::kStop, {})});
  good->read_until("[DONE]");
  good.reset();
  expect_deserted();
}

/// The worker does not work for those who no longer wait.
TEST_F(ClientsTest, WhoLeavesBeforeItsTurnIsNotTokenized) {
  std::promise<void> begun, go_on;
  server::ServerConfig one_thread = config();
  one_thread.preparing_threads = 1;
  FakeModel& model = start(words({"x"}), one_thread, [&, first = true]() mutable {
    if (!std::exchange(first, false)) return;
    begun.set_value();
    go_on.get_future().wait();
  });
  auto busy = client(), gone = client(), patient = client();
  busy->send(post_request("/v1/completions", R"({"prompt": "a"})"));
  begun.get_future().wait();
  gone->send(post_request("/v1/completions", R"({"prompt": "b"})"));
  patient->send(post_request("/v1/completions", R"({"prompt": "c"})"));
  while (get("/metrics").body.find("\ncoppice_http_body_bytes 45\n") == std::string::npos) {
  }
  gone->close();
  for (int i = 0; i < 10; ++i) get("/health");  // by now the server has seen it
  go_on.set_value();
  EXPECT_EQ(busy->receive().status, 200);
  EXPECT_EQ(patient->receive().status, 200);
  EXPECT_EQ(model.tokenized_salts().size(), 2U);
  EXPECT_NE(get("/metrics").body.find("\ncoppice_clients_gone_total 1\n"), std::string::npos);
}

}  // namespace
}  // namespace coppice::testing
