// Streams: framing, coalescing, clients that vanish or read slowly.
#include <fmt/format.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "server/fixture.h"

namespace coppice::testing {
namespace {

using nlohmann::json;
using sampling::Finish;

class StreamTest : public ServerTest {};

std::string joined(const std::vector<std::string>& events) {
  std::string text;
  for (const std::string& data : events)
    if (data != "[DONE]")
      for (const json& choice : json::parse(data)["choices"]) text += choice["text"].get<std::string>();
  return text;
}

TEST_F(StreamTest, IsFramedAsServerSentEvents) {
  start(words({"a", "b\nc", "d"}));
  const HttpAnswer answer = post("/v1/completions", kStreamBody);
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.headers.at("content-type").starts_with("text/event-stream"));
  EXPECT_EQ(answer.headers.at("transfer-encoding"), "chunked");
  const auto events = answer.events();
  EXPECT_EQ(joined(events), "ab\ncd");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(json::parse(events[events.size() - 2])["choices"][0]["finish_reason"], "stop");
}

TEST_F(StreamTest, UsageComesLastWhenAskedFor) {
  start(words({"a"}, 2));
  const auto events = chat(R"(, "stream": true, "stream_options": {"include_usage": true})").events();
  ASSERT_GE(events.size(), 3U);
  const json usage = json::parse(events[events.size() - 2]);
  EXPECT_EQ(usage["choices"], json::array());
  EXPECT_EQ(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
}

TEST_F(StreamTest, SamplesAreToldApart) {
  start(words({"a", "b"}));
  std::vector<std::string> texts(3);
  for (const std::string& data : complete(R"(, "stream": true, "n": 3)").events())
    if (data != "[DONE]")
      for (const json& choice : json::parse(data)["choices"]) texts.at(choice["index"]) += choice["text"];
  EXPECT_EQ(texts, (std::vector<std::string>{"ab", "ab", "ab"}));
}

TEST_F(StreamTest, EachPieceComesAtOnce) {
  FakeModel& model = start();
  auto c = client();
  const auto id = begin(*c, model);
  for (const char* word : {"second", "third"}) {
    model.emit({piece(id, word)});
    c->read_until(word);  // before the next one is made
  }
  model.emit({last(id, "end", Finish::kLength, {})});
  c->read_until("0\r\n\r\n");
}

TEST_F(StreamTest, SilenceIsFilledWithComments) {
  auto c = config();
  c.api.ping_seconds = 0.1;
  FakeModel& model = start({}, c);
  auto waiting = client(), whole = client();
  waiting->send(post_request("/v1/completions", kStreamBody));
  const auto id = model.wait_submitted(0);  // requests are prepared side by side: the second could overtake it
  whole->send(post_request("/v1/completions", R"({"prompt": "hi"})"));
  const auto other = model.wait_submitted(1);
  EXPECT_NE(waiting->read_until("keep-alive\n\r\n").find("text/event-stream"), std::string::npos);
  EXPECT_EQ(waiting->read_until("keep-alive\n\r\n"), "d\r\n: keep-alive\n\r\n") << "before the first token";
  model.emit({piece(id, "a")});
  waiting->read_until("\"a\"");
  waiting->read_until("\n\n\r\n");
  EXPECT_EQ(waiting->read_until("keep-alive\n\r\n"), "d\r\n: keep-alive\n\r\n") << "between tokens";
  model.emit({last(id, "b", Finish::kStop, {}), last(other, "c", Finish::kStop, {})});
  EXPECT_NE(waiting->read_until("0\r\n\r\n").find("[DONE]"), std::string::npos);
  EXPECT_EQ(whole->receive().json()["choices"][0]["text"], "c") << "an answer that is no stream has none";
}

TEST_F(StreamTest, CommentsSayThatTheServerWakes) {
  auto c = config();
  c.api.ping_seconds = 0.1;
  FakeModel& model = start({}, c);
  model.snapshot_.asleep = true;  // nothing has come yet
  auto waiting = client();
  waiting->send(post_request("/v1/completions", kStreamBody));
  const auto id = model.wait_submitted(0);
  waiting->read_until(": reading the weights again\n\r\n");
  model.emit({last(id, "a", Finish::kStop, {})});
  EXPECT_NE(waiting->read_until("0\r\n\r\n").find("[DONE]"), std::string::npos);
}

TEST_F(StreamTest, ErrorsAfterACommentAreEvents) {
  auto c = config();
  c.api.ping_seconds = 0.1;
  FakeModel& model = start({}, c);
  auto waiting = client();
  waiting->send(post_request("/v1/completions", kStreamBody));
  const auto id = model.wait_submitted(0);
  waiting->read_until("keep-alive");
  model.emit({refusal(id, engine::Refusal::kFailed, "broken")});
  const std::string rest = waiting->read_until("0\r\n\r\n");
  EXPECT_NE(rest.find("data: {\"error\":"), std::string::npos) << rest;
}

TEST_F(StreamTest, ErrorsInMidStreamAreEvents) {
  FakeModel& model = start();
  auto c = client();
  const auto id = begin(*c, model);
  model.emit({last(id, "", Finish::kError, {})});
  const std::string rest = c->read_until("0\r\n\r\n");
  EXPECT_NE(rest.find("data: {\"error\":"), std::string::npos) << rest;
  EXPECT_EQ(rest.find("[DONE]"), std::string::npos);
}

TEST_F(StreamTest, Http10ClientsReadToTheEnd) {
  start(words({"a", "b"}));
  auto c = client();
  c->send(
      fmt::format("POST /v1/completions HTTP/1.0\r\nContent-Length: {}\r\n\r\n{}", kStreamBody.size(), kStreamBody));
  const HttpAnswer answer = c->receive();
  EXPECT_FALSE(answer.headers.contains("transfer-encoding"));
  EXPECT_EQ(joined(answer.events()), "ab");
}

TEST_F(StreamTest, ConnectionServesAfterAStream) {
  start(words({"a"}));
  auto c = client();
  EXPECT_EQ(c->post("/v1/completions", kStreamBody).events().back(), "[DONE]");
  EXPECT_EQ(c->get("/health").status, 200);
}

TEST_F(StreamTest, VanishingBeforeTheFirstByteCancels) {
  FakeModel& model = start();
  for (const char* stream : {"true", "false"}) {
    auto c = client();
    const auto before = model.submitted();
    c->send(post_request("/v1/completions", fmt::format(R"({{"prompt": "hi", "stream": {}}})", stream)));
    const auto id = model.wait_submitted(before);
    EXPECT_FALSE(model.cancelled(id));
    c->close();
    EXPECT_TRUE(model.wait_cancelled(id));
  }
}

TEST_F(StreamTest, VanishingInMidStreamCancels) {
  FakeModel& model = start();
  auto c = client();
  const auto id = begin(*c, model);
  c->close();
  EXPECT_TRUE(model.wait_cancelled(id));
  model.emit({piece(id, "a late word")});  // the engine's last words reach nobody
  EXPECT_NE(get("/metrics").body.find("coppice_clients_gone_total 1"), std::string::npos);
}

TEST_F(StreamTest, VanishingAfterPipeliningCancels) {
  FakeModel& model = start();
  auto c = client();
  c->send(post_request("/v1/completions", kStreamBody) + get_request("/health"));
  const auto id = model.wait_submitted(0);
  c->close();
  EXPECT_TRUE(model.wait_cancelled(id));
}

TEST_F(StreamTest, FinishedRequestIsNotCancelled) {
  FakeModel& model = start(words({"a"}));
  post("/v1/completions", kStreamBody);
  EXPECT_FALSE(model.cancelled(model.wait_submitted(0)));
}

TEST_F(StreamTest, SlowReaderCostsOnlyItself) {
  auto c = config();
  c.http.send_buffer_bytes = 4096;
  c.api.max_pending_bytes = 100000;
  FakeModel& model = start({}, c);
  auto slow = client(4096);
  const auto slow_id = begin(*slow, model);
  auto quick = client();
  const auto quick_id = begin(*quick, model);
  const std::string text(10000, 'x');
  for (int i = 0; i < 50 && !model.cancelled(slow_id); ++i) {
    model.emit({piece(slow_id, text), piece(quick_id, fmt::format("<{}>", i))});
    quick->read_until(fmt::format("<{}>", i));
  }
  EXPECT_TRUE(model.wait_cancelled(slow_id));
  EXPECT_FALSE(model.cancelled(quick_id));
}

// What it left is dropped, so it need not be slow for ever to be cut.
TEST_F(StreamTest, SlowReaderThatTakesTheEndCountsAsGone) {
  auto c = config();
  c.http.send_buffer_bytes = 4096;
  c.api.max_pending_bytes = 100000;
  FakeModel& model = start({}, c);
  auto slow = client(4096);
  const auto id = begin(*slow, model);
  const std::string text(10000, 'x');
  for (int i = 0; i < 50 && !model.cancelled(id); ++i) {
    model.emit({piece(id, text)});
    get("/health");  // the events before it have been handed out
  }
  EXPECT_TRUE(model.wait_cancelled(id));
  EXPECT_NE(slow->read_until("0\r\n\r\n").find("slow_reader"), std::string::npos);
  const std::string figures = get("/metrics").body;
  EXPECT_NE(figures.find("\ncoppice_clients_gone_total 1\n"), std::string::npos) << figures;
  EXPECT_EQ(figures.find(R"(coppice_http_requests_total{path="/v1/completions")"), std::string::npos) << figures;
}

TEST_F(StreamTest, PiecesMadeDuringAWriteAreSentTogether) {
  auto c = config();
  c.http.send_buffer_bytes = 16384;
  FakeModel& model = start({}, c);
  auto slow = client(65536);
  slow->send(post_request("/v1/completions", kStreamBody));
  const auto id = model.wait_submitted(0);
  constexpr std::size_t kPieces = 5000;  // as events of their own about 1 MB: more than the buffers hold
  std::string want;
  for (std::size_t i = 0; i < kPieces; ++i) {
    const std::string word = fmt::format("<{}>", i);
    model.emit({piece(id, word)});
    want += word;
  }
  model.emit({last(id, "!", Finish::kStop, {})});
  const auto events = slow->receive().events();
  EXPECT_LT(events.size(), kPieces);
  EXPECT_EQ(joined(events), want + "!");
}

TEST_F(StreamTest, ReaderThatStopsIsDropped) {
  auto c = config();
  c.http.send_buffer_bytes = 4096;
  c.http.write_seconds = 0.3;
  c.http.slowest_reader = 1e6;
  FakeModel& model = start({}, c);
  auto slow = client(4096);
  const auto id = begin(*slow, model);
  model.emit({piece(id, std::string(500000, 'x'))});
  EXPECT_TRUE(model.wait_cancelled(id));
}

TEST_F(StreamTest, ReaderThatTakesABitNowAndThenIsDropped) {
  auto c = config();
  c.http.send_buffer_bytes = 4096;
  c.http.write_seconds = 0.5;
  c.http.slowest_reader = 1e6;
  FakeModel& model = start({}, c);
  auto slow = client(4096);
  const auto id = begin(*slow, model);
  model.emit({piece(id, std::string(900000, 'x'))});
  const auto end = std::chrono::steady_clock::now() + kLongestWait;
  while (!model.cancelled(id) && std::chrono::steady_clock::now() < end) {
    slow->read_ready(16384);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_TRUE(model.wait_cancelled(id));
}

TEST_F(StreamTest, ManyStreamsAtOnce) {
  constexpr std::size_t kStreams = 300;
  FakeModel& model = start();
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (std::size_t i = 0; i < kStreams; ++i) {
    clients.push_back(client());
    clients.back()->send(post_request("/v1/completions", kStreamBody));
  }
  std::vector<engine::RequestId> ids;
  for (std::size_t i = 0; i < kStreams; ++i) ids.push_back(model.wait_submitted(i));
  for (int step = 0; step < 5; ++step) {
    std::vector<engine::Event> events;
    for (const auto id : ids) events.push_back(piece(id, fmt::format("<{} {}>", id, step)));
    model.emit(std::move(events));
  }
  std::vector<engine::Event> events;
  for (const auto id : ids) events.push_back(last(id, "", Finish::kStop, {}));
  model.emit(std::move(events));
  std::set<std::string> texts;
  for (auto& c : clients) texts.insert(joined(c->receive().events()));
  EXPECT_EQ(texts.size(), kStreams);
  for (const auto id : ids) EXPECT_EQ(texts.count(fmt::format("<{0} 0><{0} 1><{0} 2><{0} 3><{0} 4>", id)), 1U);
}

}  // namespace
}  // namespace coppice::testing
