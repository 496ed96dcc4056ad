// How many connections there may be, and how long idle ones stay.
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

class ConnectionsTest : public ServerTest {};

TEST_F(ConnectionsTest, IdleConnectionsAreClosed) {
  auto c = config();
  c.http.idle_seconds = 1;
  start({}, c);
  EXPECT_TRUE(client()->closed());
  auto used = client();
  used->get("/health");
  EXPECT_TRUE(used->closed());
}

// Beast throws from inside the operation that reads it: neither its coroutine nor the server's can catch that.
TEST_F(ConnectionsTest, ATrailerThatCannotBeHeldClosesItsConnectionOnly) {
  start();
  auto bystander = client();
  EXPECT_EQ(bystander->get("/health").status, 200);
  auto bad = client();
  bad->send("GET /health HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
  bad->read_until("100 Continue\r\n\r\n");  // the head is read, the trailer comes by itself
  bad->send("0\r\nX:" + std::string(65534, 'a') + "\r\n\r\n");
  EXPECT_TRUE(bad->closed());
  EXPECT_EQ(bystander->get("/health").status, 200);
  EXPECT_EQ(client()->get("/health").status, 200);
}

TEST_F(ConnectionsTest, WaitingForAnAnswerIsNotIdle) {
  auto c = config();
  c.http.idle_seconds = c.http.header_seconds = c.http.body_seconds = c.http.write_seconds = 1;
  FakeModel& model = start({}, c);
  auto patient = client();
  patient->send(post_request("/v1/completions", R"({"prompt": "hi"})"));
  const auto id = model.wait_submitted(0);
  EXPECT_TRUE(client()->closed());  // idle, and so a clock that shows 1 s has passed
  EXPECT_FALSE(model.cancelled(id));
  model.emit({last(id, "done", sampling::Finish::kStop, {})});
  EXPECT_EQ(patient->receive().status, 200);
}

TEST_F(ConnectionsTest, OneConnectionTooManyIsTold) {
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

TEST_F(ConnectionsTest, IdleConnectionsGiveWay) {
  auto c = config();
  c.http.max_connections = 8;
  c.http.crowded_idle_seconds = 1.5;
  FakeModel& model = start({}, c);
  expect_deserted();
  auto busy = client();
  busy->send(post_request("/v1/completions", R"({"prompt": "hi"})"));
  const auto id = model.wait_submitted(0);
  std::vector<std::unique_ptr<HttpClient>> idle;
  for (int i = 0; i < 7; ++i) {
    idle.push_back(client());
    ASSERT_EQ(idle.back()->get("/health").status, 200);
  }
  const auto full = client()->receive();
  EXPECT_EQ(full.status, 503);
  EXPECT_EQ(full.headers.at("retry-after"), "1");
  for (auto& one : idle) EXPECT_TRUE(one->closed());
  EXPECT_EQ(get("/health").status, 200);
  model.emit({last(id, "done", sampling::Finish::kStop, {})});
  EXPECT_EQ(busy->receive().status, 200);
}

/// Of one client, which has no key.
TEST_F(ConnectionsTest, HalfHeadsGiveWay) {
  auto c = config();
  c.http.max_connections = 8;
  c.http.idle_seconds = c.http.header_seconds = c.http.crowded_idle_seconds = 60;
  FakeModel& model = start({}, c);
  expect_deserted();
  auto busy = client();
  const auto id = begin(*busy, model);
  std::vector<std::unique_ptr<HttpClient>> half;
  for (int i = 0; i < 7; ++i) {
    half.push_back(client());
    if (i > 0) half.back()->send("GET /health HTTP/1.1\r\nX");
  }
  // A head may take a quarter of a second, from when the server sees its connection.
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  for (int i = 0; i < 3; ++i)
    while (get("/health").status != 200) ASSERT_LT(std::chrono::steady_clock::now(), end) << "nobody gave way";
  EXPECT_TRUE(half[0]->closed()) << "the first one, which says nothing at all";
  half.back()->send(": y\r\nHost: x\r\n\r\n");
  EXPECT_EQ(half.back()->receive().status, 200) << "the last one is let be";
  model.emit({last(id, "done", sampling::Finish::kStop, {})});
  busy->read_until("[DONE]");
}

/// Whatever they wait for: their first request, the next, or the rest of a body.
TEST_F(ConnectionsTest, OneAddressHasALimit) {
  auto c = config();
  c.http.max_connections = 200;
  c.http.idle_seconds = c.http.header_seconds = c.http.crowded_idle_seconds = 60;
  start({}, c);
  expect_deserted();
  std::vector<std::unique_ptr<HttpClient>> waiting;
  for (int i = 0; i < 100; ++i) {
    waiting.push_back(client());
    if (i % 4 == 1) waiting.back()->send("GET /hea");
    if (i % 4 == 2) waiting.back()->send("POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n");
    if (i % 4 == 3) EXPECT_EQ(waiting.back()->get("/health").status, 200);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  for (int i = 0; i < 4; ++i) waiting.push_back(client());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(waiting[static_cast<std::size_t>(i)]->closed()) << i;
  EXPECT_EQ(waiting[99]->get("/health").status, 200);
}

/// Closing with unread bytes makes the kernel send a reset, which destroys the answer on its way.
TEST_F(ConnectionsTest, OneConnectionTooManyHearsSoThoughItTalks) {
  auto c = config();
  c.http.max_connections = 1;
  c.http.crowded_idle_seconds = 60;
  start({}, c);
  expect_deserted();
  auto first = client();
  EXPECT_EQ(first->get("/health").status, 200);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(post("/tokenize", std::string(100000, ' ')).status, 503);
  EXPECT_EQ(first->get("/health").status, 200);
}

TEST_F(ConnectionsTest, FloodOfConnectionsLeavesTheFirstOnes) {
  auto c = config();
  c.http.max_connections = 10;
  c.http.crowded_idle_seconds = 60;
  start({}, c);
  expect_deserted();
  std::vector<std::unique_ptr<HttpClient>> served, flood;
  for (int i = 0; i < 10; ++i) {
    served.push_back(client());
    ASSERT_EQ(served.back()->get("/health").status, 200);
  }
  // As many as may wait of one address: the first ones stay, though they have been idle for long enough to make room.
  const auto most = std::chrono::milliseconds(250);
  std::this_thread::sleep_for(most);
  while (served.size() + flood.size() < c.http.most_waiting_of_address()) flood.push_back(client());
  const auto begun = std::chrono::steady_clock::now();
  for (auto& one : served) EXPECT_EQ(one->get("/health").status, 200);
  for (int i = 0; i < 500; ++i) flood.push_back(client());
  for (auto& one : served) {
    int status = 0;
    try {
      status = one->get("/health").status;
    } catch (const std::runtime_error&) {  // it is closed
    }
    if (status != 200) EXPECT_GE(std::chrono::steady_clock::now() - begun, most) << "of idleness, which make room";
  }
  flood.clear();
  served.clear();
  expect_deserted();
}

}  // namespace
}  // namespace coppice::testing
