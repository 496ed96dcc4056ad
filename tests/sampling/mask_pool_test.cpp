#include "sampling/mask_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/work.h"
#include "sampling/grammar_state.h"
#include "support/longest_wait.h"
#include "text/fixtures.h"

namespace coppice::sampling {
namespace {

using ::testing::ElementsAre;

class Pool : public ::testing::Test {
 protected:
  void push(const std::string& key, bool quick, const std::string& name) {
    works.push_back(std::make_shared<MaskWork>([this, name] {
      const std::scoped_lock lock(mutex);
      order.push_back(name);
    }));
    pool.push(key, quick, works.back());
  }
  /// The thread that takes all works stands still until the gate is opened.
  void block() {
    auto work = std::make_shared<MaskWork>([this] {
      begun.release();
      gate.acquire();
    });
    pool.push("blocker", false, work);
    begun.acquire();
  }
  void finish() {
    for (const auto& work : works)
      while (!work->done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  std::mutex mutex;
  std::vector<std::string> order;
  std::vector<std::shared_ptr<MaskWork>> works;
  std::counting_semaphore<> gate{0}, begun{0};
  std::atomic<int> n_done = 0;
  MaskPool pool{[this] { ++n_done; }, [] { return false; }, 0};
};

TEST_F(Pool, QuickWorksDontWaitForSlowOnes) {
  block();
  push("a", false, "slow");
  push("a", true, "quick");
  while (!works[1]->done()) std::this_thread::yield();
  EXPECT_FALSE(works[0]->done());
  gate.release();
  finish();
  EXPECT_THAT(order, ElementsAre("quick", "slow"));
}

TEST_F(Pool, KeysTakeTurns) {
  block();
  for (const char* name : {"a1", "a2", "a3"}) push("a", false, name);
  push("b", false, "b1");
  gate.release();
  finish();
  EXPECT_THAT(order, ElementsAre("a1", "b1", "a2", "a3"));
}

/// It waits for the two that run, at most.
TEST(MaskPool, AKeyThatTookLittleIsNextHoweverManySlowOnesThereAre) {
  std::counting_semaphore<> ends(12);
  std::vector<std::shared_ptr<MaskWork>> works;
  MaskPool pool([] {});
  const auto push = [&](const std::string& key, double seconds, const std::function<void()>& end) {
    works.push_back(std::make_shared<MaskWork>([seconds, end] {
      for (const double start = grammar::cpu_seconds(); grammar::cpu_seconds() < start + seconds;) {
      }
      end();
    }));
    pool.push(key, false, works.back());
  };
  const auto n_done = [&] { return std::ranges::count_if(works, [](const auto& work) { return work->done(); }); };
  for (int i = 0; i < 30; ++i) push("hostile " + std::to_string(i % 10), 0.03, [&] { ends.acquire(); });
  while (n_done() < 12) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const auto latest = std::chrono::steady_clock::now() + testing::kLongestWait;
  for (int i = 0; i < 3; ++i) {
    push("chats", 0.0001, [] {});
    ends.release(2);
    while (!works.back()->done() && std::chrono::steady_clock::now() < latest)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(works.back()->done()) << "more of the others' are before it";
  }
  ends.release(30);
  pool.close();
}

/// Then the rest waits, until it is less, or nobody else is there.
TEST(MaskPool, BesideOthersAKeyTakesSoMuch) {
  std::atomic<bool> shared = true;
  std::vector<std::shared_ptr<MaskWork>> works;
  MaskPool pool([] {}, [&] { return shared.load(); });
  const auto count_done = [&] { return std::ranges::count_if(works, [](const auto& work) { return work->done(); }); };
  const auto spend = [](double seconds) {
    for (const double start = grammar::cpu_seconds(); grammar::cpu_seconds() < start + seconds;) {
    }
  };
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 100; ++i) {
    works.push_back(std::make_shared<MaskWork>([&] { spend(0.02); }));
    pool.push("hostile", false, works.back());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  const auto n_done = static_cast<double>(count_done());
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
  // Two works that run, and what is forgotten meanwhile.
  EXPECT_LE(0.02 * n_done, kMuchSeconds * (1 + passed.count()) + 0.05);
  const auto quick = std::make_shared<MaskWork>([] {});
  pool.push("hostile", true, quick);
  while (!quick->done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_LT(count_done(), 100);
  shared = false;
  while (count_done() < 100) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  pool.close();
}

TEST_F(Pool, WhoWaitsDoesAWorkThatNobodyHasBegun) {
  block();
  push("a", false, "here");
  works[0]->wait();
  EXPECT_THAT(order, ElementsAre("here"));
  push("a", false, "never");
  works[1]->give_up();
  gate.release();
  pool.close();
  push("a", true, "after the end");
  works[2]->wait();
  EXPECT_THAT(order, ElementsAre("here", "after the end"));
}

TEST(GrammarStateOnThreads, SaysTheSameAsAlone) {
  const auto vocabulary = test::vocabulary();
  grammar::Words words;
  for (kv::Token token = 0; token < vocabulary->size(); ++token) words.pieces.push_back(vocabulary->piece(token));
  words.ends.assign(vocabulary->end_tokens().begin(), vocabulary->end_tokens().end());
  const grammar::Compiler compiler(words);
  GrammarParams params;
  params.grammar = compiler.compile({.kind = grammar::Kind::kRegex, .text = "([a-c]{0,9}-){0,9}[0-9]{50}"});
  std::atomic<int> n_done = 0;
  auto pool = std::make_shared<MaskPool>([&] { ++n_done; });
  GrammarState alone(params, nullptr);
  std::vector<std::unique_ptr<GrammarState>> threaded;
  for (int i = 0; i < 8; ++i) threaded.push_back(std::make_unique<GrammarState>(params, pool));
  for (int step = 0; step < 40; ++step) {
    const auto expected = alone.mask();
    const std::vector<std::int32_t> mask(expected.begin(), expected.end());
    kv::Token token = 0;
    for (; token < vocabulary->size(); ++token)
      if ((static_cast<std::uint32_t>(mask[static_cast<std::size_t>(token) / 32]) >> (token % 32) & 1U) != 0) break;
    ASSERT_LT(token, vocabulary->size());
    for (const auto& state : threaded) state->prepare();
    for (const auto& state : threaded) {
      if (step % 2 == 0)
        while (!state->ready()) std::this_thread::yield();
      EXPECT_TRUE(std::ranges::equal(state->mask(), mask)) << step;
      EXPECT_TRUE(state->accept(token, *vocabulary));
    }
    EXPECT_TRUE(alone.accept(token, *vocabulary));
  }
  threaded.clear();  // works may be under way
  pool->close();
  EXPECT_GT(n_done, 0);
}

TEST(GrammarStateOnThreads, TellsOfAGrammarThatTakesTooLong) {
  grammar::Words words{.ends = {0}};
  for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
  const grammar::Compiler compiler(words);
  GrammarParams params;
  params.grammar = compiler.compile({.text = "root ::= root root | \"a\""});
  GrammarState state(params, std::make_shared<MaskPool>([] {}));
  const auto follow = [&] {
    for (int i = 0; i < 20000; ++i) {
      state.mask();
      state.accept('a', *test::vocabulary());
    }
  };
  EXPECT_THROW(follow(), grammar::GrammarError);
}

}  // namespace
}  // namespace coppice::sampling
