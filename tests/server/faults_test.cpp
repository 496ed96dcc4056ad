// Want of memory: the n-th allocation of the server's threads fails, or some in a row from there on, for every n of a
// scripted exchange. That request may fail, with a 500 or 503 or a closed connection; the server lives, and the next
// request gets its answer. (Coroutine frames and handlers come from Asio's own free lists, which these failures don't reach.)
#include <fmt/format.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <new>
#include <string>

#include "server/event_hub.h"
#include "server/fixture.h"

namespace {

std::atomic<long> allocations = 0;           // of the server's threads
std::atomic<long> first_failing = LONG_MAX;  // of them
std::atomic<long> failing_in_a_row = 1;
thread_local bool exempt = false;  // the test's own thread

bool fails() {
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

  /// Fails the 1st, 2nd, ... allocation, and those that follow it, until a whole exchange has fewer.
  void fail_each(const std::string& request, long in_a_row, int healthy = 200) {
    failing_in_a_row = in_a_row;
    int failed = 0;
    for (long n = 0;; ++n) {
      auto c = client();
      allocations = 0;
      first_failing = n;
      const int status = status_of(*c, request);
      first_failing = LONG_MAX;
      if (allocations <= n) break;
      ++failed;
      ASSERT_TRUE(status == healthy || status == 500 || status == 503 || status == 0) << n << ": " << status;
      ASSERT_EQ(get("/health").status, 200) << n;
      ASSERT_EQ(complete().status, 200) << n;
      ASSERT_FALSE(HasFailure()) << n;
    }
    EXPECT_GT(failed, 20);
    std::printf("%d allocations failed\n", failed);
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
