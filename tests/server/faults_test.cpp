// Want of memory: the n-th allocation of the server's threads, or of the engine's, fails, or some in a row from there on,
// for every n of a scripted exchange. Requests may fail then, with a 500 or 503, or an error event in mid-stream; the server
// lives, the next request gets its answer, and no block is lost. (Coroutine frames and handlers come from Asio's own free lists,
// which these failures don't reach.)
#include <fmt/format.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <iostream>
#include <map>
#include <new>
#include <numeric>
#include <string>
#include <tuple>

#include "server/engine_fixture.h"
#include "server/event_hub.h"
#include "server/fixture.h"

namespace {

enum class Whose { kServers, kEngines };

std::atomic<long> allocations = 0;  // of these threads:
std::atomic<Whose> failing = Whose::kServers;
std::atomic<long> first_failing = LONG_MAX;  // of them
std::atomic<long> failing_in_a_row = 1;
thread_local bool exempt = false;  // the test's own thread
thread_local Whose own = Whose::kServers;

bool fails() {
  if (own != failing) return false;
  const long n = allocations.fetch_add(1);
  const long first = first_failing;
  return n >= first && n - first < failing_in_a_row;
}

}  // namespace

void* operator new(std::size_t size) {
  if (!exempt && fails()) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace coppice::testing {
namespace {

class FaultsTest : public ServerTest {
 protected:
  FaultsTest() { exempt = true; }
  ~FaultsTest() override { first_failing = LONG_MAX; }

  /// The status line's number; 0: the connection was closed before one.
  static int status_of(HttpClient& c, const std::string& request) {
    std::string reply;
    try {
      c.send(request);
      for (std::string more = c.read_some(); !more.empty(); more = c.read_some()) reply += more;
    } catch (const std::runtime_error& e) {
      ADD_FAILURE() << e.what() << " after: " << reply;
    }
    EXPECT_TRUE(reply.empty() || reply.starts_with("HTTP/1.1 ")) << reply;
    return reply.size() < 12 ? 0 : std::atoi(reply.substr(9, 3).c_str());
  }

  /// Fails the 1st, 2nd, ... allocation, and those that follow it, until a whole exchange has fewer. A new connection may
  /// be closed: where there is no memory for it, nobody is there to answer. One that has been used gets an answer, unless
  /// memory for that is missing, too.
  void fail_each(const std::string& request, long in_a_row, int healthy = 200) {
    failing_in_a_row = in_a_row;
    for (const bool settled : {false, true}) {
      int failed = 0, closed = 0;
      for (long n = 0;; ++n) {
        auto c = settled ? settled_client() : client();
        allocations = 0;
        first_failing = n;
        const int status = status_of(*c, request);
        first_failing = LONG_MAX;
        if (allocations <= n) break;
        ++failed;
        closed += status == 0;
        ASSERT_TRUE(status == healthy || status == 500 || status == 503 || status == 0) << n << ": " << status;
        ASSERT_EQ(get("/health").status, 200) << n;
        ASSERT_EQ(complete().status, 200) << n;
        ASSERT_FALSE(HasFailure()) << n;
      }
      EXPECT_GT(failed, 20);
      if (settled) EXPECT_LE(closed, in_a_row - 1);
      std::printf("%s connections: %d allocations failed, %d closed\n", settled ? "used" : "new", failed, closed);
    }
  }
};

const std::string kClose = "Connection: close\r\n";

/// How many allocations fail, one after the other.
class ShortageTest : public FaultsTest, public ::testing::WithParamInterface<long> {};
INSTANTIATE_TEST_SUITE_P(InARow, ShortageTest, ::testing::Values(1, 2));

TEST_P(ShortageTest, WholeAnswer) {
  start(words({"one", "two"}));
  fail_each(
      post_request("/v1/chat/completions", R"({"messages": [{"role": "user", "content": "hi"}], "n": 2})", kClose),
      GetParam());
}

TEST_P(ShortageTest, Stream) {
  start(words({"one", "two", "three"}));
  fail_each(post_request("/v1/completions", R"({"prompt": ["hi", "ho"], "stream": true, "logprobs": 1})", kClose),
            GetParam());
}

TEST_P(ShortageTest, Refusal) {
  start(words({"x"}));
  fail_each(post_request("/v1/completions", R"({"prompt": [1, 2, "three"], "stop": [")", kClose), GetParam(), 400);
}

TEST_P(ShortageTest, Figures) {
  start(words({"x"}));
  fail_each(get_request("/metrics", kClose), GetParam());
}

/// The server with the real engine, in a pool for one of the script's requests at a time. Whose allocations fail, and how
/// many, one after the other.
class EngineShortageTest : public EngineServerTest, public ::testing::WithParamInterface<std::tuple<Whose, long>> {
 protected:
  EngineShortageTest() {
    exempt = true;
    std::tie(whose_, in_a_row_) = GetParam();
  }
  ~EngineShortageTest() override {
    first_failing = LONG_MAX;
    failing = Whose::kServers;
  }

  struct Ask {
    Prompt prompt;
    int max_tokens = 0, n = 1;
    bool stream = false;
    std::string request() const {
      return post_request("/v1/completions", nlohmann::json({{"prompt", prompt},
                                                             {"max_tokens", max_tokens},
                                                             {"n", n},
                                                             {"stream", stream},
                                                             {"seed", 7},
                                                             {"cache_report", true}})
                                                 .dump());
    }
  };
  static Prompt numbers(int from, int n) {
    Prompt tokens(static_cast<std::size_t>(n));
    std::iota(tokens.begin(), tokens.end(), from);
    return tokens;
  }
  const Ask stream_{.prompt = numbers(0, 30), .max_tokens = 20, .n = 2, .stream = true};
  const Ask whole_{.prompt = numbers(0, 20) + numbers(100, 10), .max_tokens = 40};
  const Ask left_{.prompt = numbers(200, 20), .max_tokens = 80, .stream = true};

  void start_server() {
    start_engine({.num_blocks = 15, .max_batch = 4, .step_tokens = 32, .max_extend = 16, .context_length = 200},
                 [](FakeExecutor& executor) { executor.during_forward([] { own = Whose::kEngines; }); });
  }

  void check_text(const Ask& ask, int sample, const std::string& text, bool all) const {
    const std::string right = model_->expected_text(ask.prompt, 7 + static_cast<std::uint64_t>(sample), ask.max_tokens);
    EXPECT_EQ(text, all ? right : right.substr(0, text.size()));
  }

  /// The answer's status, 500 for a stream that ends with an error; 0: the connection was closed before the end.
  int outcome(HttpClient& c, const Ask& ask) const {
    HttpAnswer answer;
    try {
      answer = c.receive();
    } catch (const std::runtime_error& e) {
      EXPECT_TRUE(std::string_view(e.what()).starts_with("the server closed")) << e.what();
      return 0;
    }
    if (answer.status != 200) return answer.status;
    if (!ask.stream) {
      const auto parsed = answer.json();
      for (int i = 0; i < ask.n; ++i) check_text(ask, i, parsed["choices"][static_cast<std::size_t>(i)]["text"], true);
      return 200;
    }
    std::vector<std::string> texts(static_cast<std::size_t>(ask.n));
    const auto events = answer.events();
    for (const std::string& data : events) {
      if (data == "[DONE]") continue;
      const auto event = nlohmann::json::parse(data);
      if (event.contains("error")) break;
      for (const auto& choice : event["choices"]) texts.at(choice["index"]) += choice["text"].get<std::string>();
    }
    const bool whole = !events.empty() && events.back() == "[DONE]";
    EXPECT_TRUE(whole || (!events.empty() && events.back().starts_with(R"({"error")"))) << answer.body;
    for (int i = 0; i < ask.n; ++i) check_text(ask, i, texts[static_cast<std::size_t>(i)], whole);
    return whole ? 200 : 500;
  }

  /// A stream, a whole answer, and a client that leaves, all at a time. Did an allocation fail?
  bool exchange() {
    const auto stream = settled_client(), whole = settled_client(), left = settled_client();
    allocations = 0;
    first_failing = next_;
    left->send(left_.request());
    stream->send(stream_.request());
    whole->send(whole_.request());
    left->read_some();
    left->close();
    for (const int status : {outcome(*stream, stream_), outcome(*whole, whole_)}) {
      ++outcomes_[status];
      EXPECT_TRUE(status == 200 || status == 500 || status == 503 || status == 0) << status;
    }
    wait_for([this] { return open() == 0; });
    first_failing = LONG_MAX;
    return allocations > next_;
  }

  std::int64_t open() const {
    const auto f = model_->snapshot();
    return f.requests_submitted - f.requests_finished - f.requests_cancelled - f.requests_timed_out -
           f.requests_refused - f.requests_failed;
  }

  void expect_it_lives() {
    const auto c = client();
    c->send(whole_.request());
    EXPECT_EQ(outcome(*c, whole_), 200);
    wait_for([this] { return open() == 0; });
    const auto figures = model_->snapshot();
    EXPECT_EQ(open(), 0);
    EXPECT_EQ(figures.cache.in_use, 0);
    EXPECT_EQ(figures.cache.reserved, 0);
  }

  Whose whose_ = Whose::kServers;
  long in_a_row_ = 1;
  long next_ = LONG_MAX;  ///< fails
  std::map<int, int> outcomes_;
};
INSTANTIATE_TEST_SUITE_P(InARow, EngineShortageTest,
                         ::testing::Combine(::testing::Values(Whose::kServers, Whose::kEngines),
                                            ::testing::Values(1, 3)));

TEST_P(EngineShortageTest, NoBlockIsLost) {
  start_server();
  exchange();  // everybody has what they keep
  failing = whose_;
  failing_in_a_row = in_a_row_;
  outcomes_.clear();
  next_ = -1;
  for (bool failed = true; failed;) {
    SCOPED_TRACE("allocation " + std::to_string(++next_));
    failed = exchange();
    expect_it_lives();
    if (HasFailure()) return;
  }
  const auto figures = model_->snapshot();
  std::cout << next_ << " allocations failed; " << figures.preemptions << " preemptions, " << figures.cache.evictions
            << " evictions, " << figures.requests_cancelled << " cancelled, " << figures.requests_failed << " failed";
  for (const auto& [status, times] : outcomes_) std::cout << "; " << status << ": " << times;
  std::cout << "\n";
  EXPECT_GT(next_, 100);
  EXPECT_GT(figures.preemptions, 0);
  EXPECT_GT(figures.cache.evictions, 0);
  EXPECT_GT(figures.requests_cancelled, 0);
  EXPECT_LE(outcomes_[0], 3) << "the health check's connection may just be getting the buffer for what comes next";
}

TEST_F(FaultsTest, WantOfMemoryIsA503) {
  FakeModel& model = start(words({"x"}), config(), [] { throw std::bad_alloc(); });
  const HttpAnswer answer = complete();
  EXPECT_EQ(answer.status, 503);
  EXPECT_TRUE(answer.headers.contains("retry-after"));
  EXPECT_EQ(model.submitted(), 0U);
}

TEST_F(FaultsTest, LostEventEndsItsRequestOnly) {
  struct Listener final : server::EventListener {
    void on_event(engine::Event&&) override {
      ++events;
      if (broken) throw std::bad_alloc();
    }
    void on_lost() noexcept override { ++lost; }
    void on_shutdown() override {}
    bool broken = false;
    int events = 0, lost = 0;
  };
  boost::asio::io_context io;
  server::EventHub hub(io);
  Listener good, bad;
  bad.broken = true;
  hub.add(1, bad);
  hub.add(2, good);
  hub.sink()({piece(1, "a"), piece(2, "b")});
  io.run();
  EXPECT_EQ(bad.lost, 1);
  EXPECT_EQ(good.events, 1);
  EXPECT_EQ(good.lost, 0);
}

}  // namespace
}  // namespace coppice::testing
