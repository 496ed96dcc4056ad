// The worker doesn't begin before what a test gives it is there: the order is the queue's alone.
#include "server/jobs/work_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "port/turn.h"

namespace coppice::server {
namespace {

class WorkQueueTest : public ::testing::Test {
 protected:
  WorkQueueTest() {
    owner_ = std::make_unique<WorkQueue>([begun = begin_.get_future().share()] { begun.wait(); });
    queue_ = owner_.get();
  }

  /// `each_turn` is told how many turns are left. While the worker runs, only the worker may call this.
  void add(
      char name, std::size_t bytes, int turns = 1, const std::function<void(int)>& each_turn = [](int) {},
      const std::string& key = {}) {
    queue_->push(key, bytes, [this, name, left = turns, each_turn]() mutable {
      order_ += name;
      each_turn(--left);
      return left == 0;
    });
  }
  /// The names in the order of their turns.
  std::string run() {
    begin_.set_value();
    owner_.reset();
    return order_;
  }

  std::string order_;

 private:
  std::promise<void> begin_;
  std::unique_ptr<WorkQueue> owner_;
  WorkQueue* queue_ = nullptr;  ///< the same, also while its destructor works off what is left
};

TEST(WorkQueueRunTest, ACancelledWorkIsToldInTheMiddleOfItsTurn) {
  namespace asio = boost::asio;
  asio::io_context io;
  WorkQueue queue;  // its thread ends before what it posts to
  asio::cancellation_signal gone;
  std::latch began(1);
  std::exception_ptr failure;
  const auto step = [&] {
    EXPECT_FALSE(port::unwanted());
    began.count_down();
    while (!port::unwanted()) std::this_thread::yield();
    throw std::runtime_error("in vain");
    return true;
  };
  asio::co_spawn(io, queue.run("", 0, step),
                 asio::bind_cancellation_slot(gone.slot(), [&](const std::exception_ptr& e) { failure = e; }));
  asio::post(io, [&] {
    began.wait();
    gone.emit(asio::cancellation_type::terminal);
  });
  io.run();
  ASSERT_TRUE(failure);
  EXPECT_THROW(std::rethrow_exception(failure), boost::system::system_error);
  EXPECT_FALSE(port::unwanted());
}

TEST(WorkQueueRunTest, ACancelledWorkThatWaitsIsOverAtOnce) {
  namespace asio = boost::asio;
  asio::io_context io;
  std::promise<void> end;
  WorkQueue queue;
  asio::cancellation_signal gone;
  std::exception_ptr failure;
  bool first_is_over = false, ran = false;
  asio::co_spawn(io, queue.run("", 0, [&, ended = end.get_future().share()] { return ended.wait(), true; }),
                 [&](const std::exception_ptr&) { first_is_over = true; });
  asio::co_spawn(io, queue.run("", 0, [&] { return ran = true; }),
                 asio::bind_cancellation_slot(gone.slot(), [&](const std::exception_ptr& e) {
                   failure = e;
                   EXPECT_FALSE(first_is_over);
                   end.set_value();
                 }));
  asio::post(io, [&] { gone.emit(asio::cancellation_type::terminal); });
  io.run();
  EXPECT_TRUE(first_is_over);
  EXPECT_FALSE(ran);
  ASSERT_TRUE(failure);
  EXPECT_THROW(std::rethrow_exception(failure), boost::system::system_error);
}

TEST_F(WorkQueueTest, KeysTakeTurns) {
  const auto none = [](int) {};
  for (const char name : {'a', 'b', 'c', 'd'}) add(name, 10, 1, none, "one");
  add('X', 10, 2, none, "two");
  add('Y', 10, 1, none, "two");
  add('3', 10, 1, none, "three");
  EXPECT_EQ(run(), "aX3bXcYd");
}

TEST_F(WorkQueueTest, SmallWorkGoesFirst) {
  add('L', 1 << 20);
  add('M', 64 << 10);
  add('s', 2000);
  EXPECT_EQ(run(), "sML");
}

TEST_F(WorkQueueTest, OfAboutOneSizeTheFirstToComeGoesFirst) {
  add('a', 4000);
  add('b', 2100);
  add('c', 900);
  add('d', 10);
  EXPECT_EQ(run(), "cdab");
}

TEST_F(WorkQueueTest, SmallWorkComesBetweenTheTurnsOfLargeWork) {
  add('L', 1 << 20, 3, [this](int left) {
    if (left == 2) add('s', 10);
  });
  EXPECT_EQ(run(), "LsLL");
}

TEST_F(WorkQueueTest, OfOneSizeOneIsBegunAtATime) {
  add('a', 1 << 20, 3, [this](int left) {
    if (left == 2) add('c', 1 << 20, 2);
  });
  add('b', 1 << 20, 2);
  EXPECT_EQ(run(), "aaabbcc");
}

TEST_F(WorkQueueTest, NoWorkIsPassedForEver) {
  add('L', 1 << 20, 2);
  std::function<void(int)> one_more = [&](int) {
    if (std::ranges::count(order_, 'L') < 2 && order_.size() < 1000) add('s', 10, 1, one_more);
  };
  one_more(0);
  const std::string small(WorkQueue::kMostPasses, 's');
  EXPECT_EQ(run(), small + "L" + small + "Ls");
}

/// Works come at any moment. Each is done in time, reckoned from what was there when it came.
TEST_F(WorkQueueTest, KeepsItsPromiseToEverybody) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int to_come = 3000, late = 0;
  std::size_t needed = 0;  // turns, by those who are there
  std::function<void()> come = [&] {
    --to_come;
    const int turns = 1 + below(3) * below(3);
    needed += static_cast<std::size_t>(turns);
    const std::size_t latest = order_.size() + (WorkQueue::kMostPasses + 1) * needed;
    const auto each_turn = [&, latest](int left) {
      --needed;
      if (left == 0 && order_.size() > latest) ++late;
      for (int n = below(3); n > 0 && to_come > 0; --n) come();
    };
    add('x', std::size_t{1} << (below(20) > 0 ? below(12) : 12 + below(12)), turns, each_turn);
  };
  for (int i = 0; i < 50; ++i) come();
  run();
  EXPECT_EQ(to_come, 0);
  EXPECT_EQ(needed, 0U);
  EXPECT_EQ(late, 0);
}

/// One with long turns doesn't get as many.
TEST_F(WorkQueueTest, KeysShareTheTime) {
  const auto none = [](int) {};
  add('L', 10, 2, [](int) { std::this_thread::sleep_for(std::chrono::milliseconds(200)); }, "one");
  for (const char name : {'a', 'b', 'c'}) add(name, 10, 2, none, "two");
  EXPECT_EQ(run(), "LaabbccL");
}

/// Works in one turn until `done`, or until that takes too long: then false.
bool works_until(const std::atomic<bool>& done, WorkQueue::Clock::duration most = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (!done && std::chrono::steady_clock::now() < end) port::between_steps();
  return done;
}

TEST(WorkQueue, OthersPassBetweenTheStepsOfALongTurn) {
  for (const bool same_key : {false, true}) {
    std::atomic<bool> done = false, passed = false;
    {
      WorkQueue queue;
      queue.push("one", 1 << 20, [&] {
        passed = works_until(done);
        return true;
      });
      queue.push(same_key ? "one" : "two", 1, [&] { return done = true; });
    }
    EXPECT_TRUE(passed) << same_key;
  }
}

TEST(WorkQueue, WorksPauseAsFarAsTheyMay) {
  for (const int most_paused : {0, 1}) {
    std::atomic<bool> done = false, passed = false;
    {
      WorkQueue queue([] {}, 1, most_paused);
      queue.push("one", 1, [&] {
        passed = works_until(done, most_paused > 0 ? std::chrono::seconds(20) : 4 * WorkQueue::kTurn);
        return true;
      });
      queue.push("two", 1, [&] { return done = true; });
    }
    EXPECT_EQ(passed, most_paused > 0);
  }
}

/// Although turns of the one never pause.
TEST(WorkQueue, AKeyLeavesAWorkerToOthers) {
  std::promise<void> other;
  std::shared_future<void> done = other.get_future().share();
  std::atomic<int> in_time = 0;
  {
    WorkQueue queue([] {}, 2);
    for (int i = 0; i < 3; ++i)
      queue.push("one", 1, [&] {
        in_time += done.wait_for(std::chrono::seconds(20)) == std::future_status::ready;
        return true;
      });
    queue.push("two", 1 << 20, [&] {
      other.set_value();
      return true;
    });
  }
  EXPECT_EQ(in_time, 3);
}

TEST(WorkQueue, WorksThatPauseGoOnWhereTheyWere) {
  constexpr int kWorks = 90;  // more than may pause
  std::atomic<int> done = 0, under_way = 0, most = 0, elsewhere = 0;
  {
    WorkQueue queue([] {}, 2);
    for (int i = 0; i < kWorks; ++i)
      queue.push(std::to_string(i), 1, [&] {
        const auto self = std::this_thread::get_id();
        const auto end = std::chrono::steady_clock::now() + 2 * WorkQueue::kTurn;
        while (std::chrono::steady_clock::now() < end) {
          const int now = ++under_way;
          for (int old = most; old < now && !most.compare_exchange_weak(old, now);) {
          }
          std::this_thread::yield();
          --under_way;
          port::between_steps();
          if (std::this_thread::get_id() != self) ++elsewhere;
        }
        ++done;
        return true;
      });
  }
  EXPECT_EQ(done, kWorks);
  EXPECT_EQ(elsewhere, 0);
  EXPECT_LE(most, 2);
}

/// Each waits in its turn until all have begun.
TEST(WorkQueue, WorkersWorkAtOnce) {
  constexpr int kWorkers = 4;
  std::latch all(kWorkers);
  WorkQueue queue([] {}, kWorkers);
  for (int i = 0; i < kWorkers; ++i)
    queue.push({}, 1, [&] {
      all.arrive_and_wait();
      return true;
    });
}

TEST(WorkQueue, SeveralWorkersKeepTheTurnsOfAWorkApart) {
  constexpr int kWorkers = 4, kWorks = 400, kTurns = 5;
  std::atomic<int> done = 0, at_once = 0, begun = 0, most_begun = 0;
  {
    WorkQueue queue([] {}, kWorkers);
    for (int i = 0; i < kWorks; ++i)
      queue.push({}, 1, [&, left = kTurns, busy = std::make_shared<std::atomic<bool>>(false)]() mutable {
        if (busy->exchange(true)) ++at_once;
        if (left == kTurns) {
          const int now = ++begun;
          for (int most = most_begun; most < now && !most_begun.compare_exchange_weak(most, now);) {
          }
        }
        std::this_thread::yield();
        busy->store(false);
        if (--left > 0) return false;
        --begun, ++done;
        return true;
      });
  }
  EXPECT_EQ(done, kWorks);
  EXPECT_EQ(at_once, 0);
  EXPECT_LE(most_begun, kWorkers);
}

}  // namespace
}  // namespace coppice::server
