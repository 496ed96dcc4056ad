// The phases in which ggml's threads share a graph (cmake/llama/phases.h), with threads of the test's own, so that
// ThreadSanitizer sees them.
#include "phases.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "support/longest_wait.h"

namespace coppice {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// A node: cell i of it is the sum of all cells of the node before, + 1. A pair meets in the middle: its second half
/// reads the first's.
struct Node {
  int n_parts;
  bool pair = false;
  std::vector<std::int64_t> cells, seconds;
  std::vector<int> runs;  ///< of each part: not atomic, so that a part that two threads have is a race
};

using Stall = std::function<void(int thread)>;

/// What graph_phases.h does with ggml's nodes.
class Pool {
 public:
  Pool(int n_threads, std::uint32_t spins, Stall stall) : phases_(new coppice_phases), stall_(std::move(stall)) {
    coppice_begin(phases_.get(), spins);
    for (int i = 1; i < n_threads; ++i) threads_.emplace_back([this, i] { work(i); });
  }
  ~Pool() {
    coppice_stop(phases_.get());
    for (std::thread& t : threads_) t.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  void run(std::vector<Node>& graph, int n_threads) {
    graph_ = &graph;
    const bool others = coppice_take(phases_.get(), n_threads);
    go_on(0);
    if (others) coppice_rouse(phases_.get());
    work(0);
  }

 private:
  void go_on(int i) {
    for (; i < static_cast<int>(graph_->size()); ++i) {
      const int n = (*graph_)[static_cast<std::size_t>(i)].n_parts;
      if (n > 1) return coppice_open(phases_.get(), i, n);
      __atomic_store_n(&phases_->n_parts, 1, __ATOMIC_RELAXED);
      compute(i, 0);
    }
    coppice_open(phases_.get(), i, 0);
  }

  void work(int thread) {
    coppice_place place{};
    while (true) {
      stall_(thread);
      const int part = coppice_claim(phases_.get(), thread, &place);
      if (part < 0) return;
      const int node = phases_->node;
      stall_(thread);
      compute(node, part);
      stall_(thread);
      if (coppice_finish(phases_.get())) go_on(node + 1);
      coppice_rest(phases_.get(), &place);
    }
  }

  void compute(int i, int part) {
    Node& node = (*graph_)[static_cast<std::size_t>(i)];
    std::int64_t sum = 1;
    if (i > 0) {
      const Node& before = (*graph_)[static_cast<std::size_t>(i - 1)];
      for (const std::int64_t cell : before.cells) sum += cell;
      for (const std::int64_t cell : before.seconds) sum += cell;
    }
    ++node.runs[static_cast<std::size_t>(part)];
    node.cells[static_cast<std::size_t>(part)] = sum % 1'000'003;
    if (!node.pair) return;
    coppice_meet(phases_.get());
    std::int64_t all = 0;
    for (const std::int64_t cell : node.cells) all += cell;
    coppice_meet(phases_.get());
    node.seconds[static_cast<std::size_t>(part)] = all % 1'000'003;
  }

  std::unique_ptr<coppice_phases> phases_;
  Stall stall_;
  std::vector<Node>* graph_ = nullptr;
  std::vector<std::thread> threads_;
};

/// For n_threads: every third node for one of them.
std::vector<Node> random_graph(std::mt19937& random, int n_nodes, int n_threads) {
  std::vector<Node> graph;
  for (int i = 0; i < n_nodes; ++i) {
    const int n = random() % 3 == 0 ? 1 : n_threads;
    const auto size = static_cast<std::size_t>(n);
    const bool pair = random() % 3 == 0;
    graph.push_back({.n_parts = n,
                     .pair = pair,
                     .cells = std::vector<std::int64_t>(size),
                     .seconds = {},
                     .runs = std::vector<int>(size)});
    if (pair) graph.back().seconds.resize(size);
  }
  return graph;
}

void expect_each_once(const std::vector<Node>& graph) {
  std::int64_t before = 0;
  for (const Node& node : graph) {
    std::int64_t sum = 0, cells = 0;
    for (std::size_t i = 0; i < node.runs.size(); ++i) {
      ASSERT_EQ(node.runs[i], 1);
      ASSERT_EQ(node.cells[i], (before + 1) % 1'000'003);
      cells += node.cells[i];
    }
    sum = cells;
    for (const std::int64_t second : node.seconds) {
      ASSERT_EQ(second, cells % 1'000'003);
      sum += second;
    }
    before = sum;
  }
}

/// Graphs for any number of the pool's threads, stalls of all lengths around every step, spins that end soon or late.
TEST(Phases, EachPartRunsOnceBetweenRandomStalls) {
  const char* given = std::getenv("COPPICE_SEED");
  const auto seed = given ? static_cast<std::uint32_t>(std::stoul(given)) : std::random_device{}();
  SCOPED_TRACE("COPPICE_SEED=" + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 12; ++round) {
    const int n_threads = 1 + static_cast<int>(random() % 6);
    const auto spins = static_cast<std::uint32_t>(1 + random() % 3 * 200);
    std::atomic<std::uint32_t> stalls = static_cast<std::uint32_t>(random());
    Pool pool(n_threads, spins, [&](int) {
      // A generator that threads may share: what each draws is up to their order.
      const std::uint32_t drawn = stalls.fetch_add(0x9E3779B9U, std::memory_order_relaxed) * 0x85EBCA6BU >> 16;
      if (drawn % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn % 1500));
      if (drawn % 8 == 0) std::this_thread::yield();
    });
    for (int i = 0; i < 8; ++i) {
      const int n = 1 + static_cast<int>(random() % static_cast<unsigned>(n_threads));
      auto graph = random_graph(random, 20, n);
      pool.run(graph, n);
      ASSERT_NO_FATAL_FAILURE(expect_each_once(graph));
      if (random() % 4 == 0) std::this_thread::sleep_for(1ms);  // all fall asleep
    }
  }
}

/// Three of four threads never come, as if the system didn't run them: the graph ends without them. They join the next
/// one.
TEST(Phases, NoGraphWaitsForAThreadThatHasNoPart) {
  std::counting_semaphore<> gate(0);
  std::atomic<bool> shut = true;
  std::atomic<int> joined = 0;
  Pool pool(4, 100, [&](int thread) {
    if (thread == 0) return;
    if (shut) gate.acquire();
    ++joined;
  });
  std::mt19937 random(1);
  auto graph = random_graph(random, 50, 4);
  for (Node& node : graph) node.pair = false, node.seconds.clear();
  pool.run(graph, 4);
  expect_each_once(graph);
  EXPECT_EQ(joined, 0);
  shut = false;
  gate.release(3);
  auto next = random_graph(random, 50, 4);  // with pairs, which need all four
  pool.run(next, 4);
  expect_each_once(next);
  EXPECT_GE(joined, 3);
}

/// A thread that is late for a phase finds the one that is open: the others don't wait for its stall more than once.
TEST(Phases, ALateThreadJoinsThePhaseThatIsOpen) {
  std::atomic<int> calls = 0, others_calls = 0;
  std::atomic<bool> done = false, waited_for = false;
  Pool pool(3, 100, [&](int thread) {
    if (thread != 2) {
      ++others_calls;
      return;
    }
    if (calls.fetch_add(1) % 3 != 0) return;  // before a claim, so that it has no part meanwhile
    const int enough = others_calls + 100;
    const auto latest = Clock::now() + testing::kLongestWait;
    while (others_calls < enough && !done && !waited_for) {
      if (Clock::now() > latest) waited_for = true;
      std::this_thread::sleep_for(1ms);
    }
  });
  std::mt19937 random(2);
  auto graph = random_graph(random, 500, 3);
  for (Node& node : graph) node.pair = false, node.seconds.clear();
  pool.run(graph, 3);
  done = true;
  EXPECT_FALSE(waited_for) << "the others came to no other phase for a minute";
  expect_each_once(graph);
}

/// What a thread wrote at one node it reads at the next, so it takes the same part again.
TEST(Phases, AThreadTakesItsOwnPartFirst) {
  coppice_phases phases;
  coppice_begin(&phases, 100);
  coppice_take(&phases, 4);
  coppice_open(&phases, 0, 4);
  coppice_place places[4] = {};
  const auto claim = [&](int thread) { return coppice_claim(&phases, thread, &places[thread]); };
  EXPECT_EQ(claim(2), 2);
  EXPECT_EQ(claim(3), 3);
  EXPECT_EQ(claim(3), 0) << "its own is taken";
  EXPECT_EQ(claim(0), 1) << "thread 3 has its own";
  for (int i = 0; i < 4; ++i) EXPECT_EQ(coppice_finish(&phases), i == 3);
  coppice_open(&phases, 1, 0);
  EXPECT_EQ(claim(0), -1) << "the graph is done";
}

/// Their bits lie in several words.
TEST(Phases, HundredsOfPartsAreTakenOnceEach) {
  for (const int n : {63, 64, 65, 128, 130, static_cast<int>(COPPICE_MOST_PARTS)}) {
    coppice_phases phases;
    coppice_begin(&phases, 100);
    coppice_take(&phases, n);
    coppice_open(&phases, 0, n);
    std::vector<int> taken(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) {
      const int part = coppice_pick(&phases, i % 3 == 0 ? n - 1 : i);
      ASSERT_GE(part, 0);
      ASSERT_LT(part, n);
      ++taken[static_cast<std::size_t>(part)];
    }
    EXPECT_EQ(coppice_pick(&phases, 0), -1);
    EXPECT_EQ(std::ranges::count(taken, 1), n);
  }
}

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(Phases, ThreadsThatWaitUseNoProcessor) {
  std::atomic<bool> slow = false;
  Pool pool(4, 1000, [&](int thread) {
    if (slow && thread == 0) std::this_thread::sleep_for(300ms);
  });
  std::mt19937 random(3);
  auto graph = random_graph(random, 20, 4);
  pool.run(graph, 4);
  std::this_thread::sleep_for(50ms);
  double before = cpu_seconds();
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(cpu_seconds() - before, 0.03) << "between graphs";
  slow = true;
  before = cpu_seconds();
  std::vector<Node> long_part = {
      {.n_parts = 4, .pair = true, .cells = {0, 0, 0, 0}, .seconds = {0, 0, 0, 0}, .runs = {0, 0, 0, 0}}};
  pool.run(long_part, 4);
  EXPECT_LT(cpu_seconds() - before, 0.03) << "at a barrier for a slow part";
}

constexpr std::uint64_t kMs = 1'000'000;

/// Eight threads: what they lose together is counted, and forgotten after a tenth of a second.
TEST(Phases, RestsBeginWhereAnEighthOfTheTimeIsLost) {
  coppice_phases phases;
  coppice_begin(&phases, 100);
  coppice_take(&phases, 8);
  std::uint64_t now = 1000 * kMs;
  for (int i = 0; i < 100; ++i, now += 11 * kMs) coppice_lost(&phases, now, 9 * kMs);  // of 88
  EXPECT_EQ(phases.rests_end, 0U);
  now += 200 * kMs;
  for (int i = 0; i < 25; ++i, now += 2 * kMs) coppice_lost(&phases, now, 4 * kMs);  // 100 ms of 800 are an eighth
  EXPECT_EQ(phases.rests_end, 0U);
  coppice_lost(&phases, now, 4 * kMs);
  EXPECT_EQ(phases.rests_end, now + 2000 * kMs);
}

/// A program that wakes often and runs for moments takes processors away a hundred times in a second, and leaves nearly
/// all of their time.
TEST(Phases, TwoThreadsDontRestBesideManyMoments) {
  coppice_phases phases;
  coppice_begin(&phases, 100);
  coppice_take(&phases, 2);
  std::uint64_t now = 1000 * kMs;
  for (int i = 0; i < 10'000; ++i, now += kMs) coppice_lost(&phases, now, kMs / 5);
  EXPECT_EQ(phases.rests_end, 0U);
}

/// Sleeping looks like waiting for a processor to the clocks.
TEST(Phases, AThreadThatHasSleptHasLostNothing) {
  coppice_place place{};
  coppice_look(&place, coppice_now());
  std::this_thread::sleep_for(std::chrono::milliseconds(3));
  EXPECT_EQ(coppice_look(&place, coppice_now()), 0U);
}

TEST(Phases, AThreadRestsBetweenPartsWhileOthersWantItsProcessor) {
  coppice_phases phases;
  coppice_begin(&phases, 100);
  coppice_place place{};
  coppice_rest(&phases, &place);  // the first look
  const auto look = [&](std::uint64_t run, std::uint64_t rests_end) {
    // Tries again where the system took the processor away meanwhile.
    for (int i = 0; i < 100; ++i) {
      const std::uint64_t now = coppice_now();
      coppice_look(&place, now);
      place.since = now - run;
      phases.rests_end = now + rests_end;
      const std::int64_t lost = place.lost;
      coppice_rest(&phases, &place);
      const std::uint64_t took = coppice_now() - now;
      coppice_look(&place, coppice_now());
      if (place.lost == lost) return took;
    }
    return std::uint64_t{0};
  };
  EXPECT_GE(look(2 * kMs, 1000 * kMs), std::uint64_t{COPPICE_REST_NS});
  std::uint64_t least = 1000 * kMs, least_soon = 1000 * kMs;
  for (int i = 0; i < 20; ++i) {
    least = std::min(least, look(2 * kMs, 0));               // nobody wants it
    least_soon = std::min(least_soon, look(0, 1000 * kMs));  // it has just begun
  }
  EXPECT_LT(least, std::uint64_t{COPPICE_REST_NS});
  EXPECT_LT(least_soon, std::uint64_t{COPPICE_REST_NS});
}

}  // namespace
}  // namespace coppice
