#include "port/run_delays.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#ifdef __linux__
#include <sched.h>
#endif

namespace coppice::port {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

TEST(ThreadIds, HaveThisOne) {
  const std::vector<int> ids = thread_ids();
  EXPECT_NE(std::ranges::find(ids, this_thread_id()), ids.end());
}

#ifdef __linux__
/// Two threads that want the same processor: each waits for the other half of the time.
TEST(RunDelays, GrowWhereThreadsShareAProcessor) {
  cpu_set_t before{};
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int one = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(one), &before)) ++one;
  std::promise<int> id;
  std::atomic<bool> done = false;
  std::jthread busy([&] {
    cpu_set_t only{};
    CPU_SET(static_cast<std::size_t>(one), &only);
    sched_setaffinity(0, sizeof only, &only);
    id.set_value(this_thread_id());
    while (!done) {
    }
  });
  const std::vector<int> ids = {id.get_future().get()};
  const RunDelays delays(ids);
  if (!delays.known()) GTEST_SKIP() << "this system doesn't tell";
  std::jthread rival([&] {
    cpu_set_t only{};
    CPU_SET(static_cast<std::size_t>(one), &only);
    sched_setaffinity(0, sizeof only, &only);
    while (!done) {
    }
  });
  const auto start = delays.sum();
  const auto end = Clock::now() + 5s;
  while (delays.sum() - start < 50ms && Clock::now() < end) std::this_thread::sleep_for(10ms);
  EXPECT_GE(delays.sum() - start, 50ms);
  done = true;
}
#endif

TEST(RunDelays, OfNoThreadIsUnknown) {
  const std::vector<int> none;
  EXPECT_FALSE(RunDelays(none).known());
  EXPECT_EQ(RunDelays(none).sum(), 0ns);
}

}  // namespace
}  // namespace coppice::port
