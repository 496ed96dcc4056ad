// WorkQueue: worker threads, and the work that waits for them. A work takes one turn or several, one at a time.
//
// Small work goes first, so that a few large bodies do not hold up everybody. Sizes are told apart by powers of two; among
// works of about one size keys take turns, and of one key the first to come is served first.
//
// Thread safety: push() may be called by any thread.
//
// Invariants
//   1. Of kMostPasses + 1 turns that begin in a row at least one goes to the work that has waited longest of those that are next among
//      their size. So later work delays a work by a bounded time: with one key, if it and those that were there when it came need n
//      turns, it is done after (kMostPasses + 1) * n turns at most. Of each other key with works of its size one may come before
//      it for each of its own key's.
//   2. Of works of one size at most as many are begun and not done as there are workers.
#pragma once

#include <array>
#include <boost/asio/awaitable.hpp>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "port/move_only_function.h"

namespace coppice::server {

class WorkQueue {
 public:
  static constexpr int kMostPasses = 31;

  /// One turn of a work, on a worker. Returns true when the work is done. Must not throw.
  using Step = port::MoveOnlyFunction<bool()>;

  /// `begin`: what each worker's thread does first.
  explicit WorkQueue(const std::function<void()>& begin = [] {}, int n_workers = 1);
  /// Waits until all is done.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// Calls `step` until it returns true. `bytes`: of the body that the work is about.
  /// `key`: whose it is.
  void push(const std::string& key, std::size_t bytes, Step step);

  /// push() for a coroutine of the io thread, which waits for it. Throws what `step` throws. If the coroutine is
  /// cancelled, no further turn begins, and system_error (operation_aborted) is thrown. The caller's frame stays until
  /// the last turn is over, cancelled or not, so `step` may refer to it.
  boost::asio::awaitable<void> run(const std::string& key, std::size_t bytes, std::function<bool()> step);

 private:
  struct Work {
    Step step;
    std::size_t line;      ///< its place in lines_
    std::uint64_t number;  ///< in order of arrival
    std::string key;
    std::uint64_t round;  ///< in which it has its turn
  };
  using Works = std::list<Work>;
  /// Works of one size, by round and arrival. A key has one in each round.
  struct Line {
    Works works;
    std::uint64_t round = 0;                      ///< of the last that was taken
    std::map<std::string, std::uint64_t> rounds;  ///< of keys' last works that are not done
  };

  void serve();
  Works take();
  void put_back(Works turn);
  void forget(const Work& done);

  std::mutex mutex_;  ///< guards all below but the threads
  std::condition_variable changed_;
  /// By size. A work that has its turn is in none, and comes back to its place.
  std::array<Line, std::numeric_limits<std::size_t>::digits + 1> lines_;
  std::size_t n_waiting_ = 0;
  std::uint64_t last_number_ = 0;
  int passes_ = 0;  ///< turns since the work that has waited longest had one
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace coppice::server
