// WorkQueue: worker threads, and the work that waits for them.
//
// Keys take turns: the next turn is that of the key whose works have taken least time since it began to wait. Among
// works of one key small ones go first, so that a few large bodies do not hold up the others; sizes are told apart by
// powers of two, and of about one size the first to come is served first.
//
// A work takes one turn or several, one at a time. Where a turn is long, the work calls port::between_steps(): after
// kTurn it then pauses there, on its thread, and goes on when its turn comes again. Another thread works meanwhile.
//
// Thread safety: push() may be called by any thread.
//
// Invariants
//   1. As many turns are under way as there are workers, at most. Beside their threads there are those of works that
//      pause, most_paused at most: beyond that works go on.
//   2. Of kMostPasses + 1 turns of a key that begin in a row at least one goes to the work that has waited longest of
//      those that are next among their size. So later works of its own key delay a work by a bounded time: if it and
//      those that were there when it came need n turns, it is done after (kMostPasses + 1) * n turns of that key at
//      most.
//   3. Where there are several workers, one is left to other keys. Not where there are no keys: theirs is "".
//   4. Of works of one key and size at most as many are begun and not done as there are workers.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <list>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check/mutex.h"
#include "port/move_only_function.h"

namespace coppice::server {

class WorkQueue {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr int kMostPasses = 31;
  static constexpr int kMostPaused = 64;
  static constexpr std::chrono::milliseconds kTurn{25};
  /// What a turn counts at least.
  static constexpr std::chrono::milliseconds kLeast{1};

  /// One turn of a work, on a worker. Returns true when the work is done. Must not throw.
  using Step = port::MoveOnlyFunction<bool()>;

  /// `begin`: what each worker's thread does first. `most_paused`: works in the middle of a turn that have no worker.
  explicit WorkQueue(std::function<void()> begin = [] {}, int n_workers = 1, int most_paused = kMostPaused);
  /// Waits until all is done.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// Calls `step` until it returns true. `bytes`: of the body that the work is about.
  /// `key`: whose it is.
  /// `unwanted`: becomes true when nobody waits for it any more, which port::unwanted() tells the step; null: never. It
  /// outlives the work.
  void push(const std::string& key, std::size_t bytes, Step step, const std::atomic<bool>* unwanted = nullptr);

  /// push() for a coroutine of the io thread, which waits for it. Throws what `step` throws. If the coroutine is
  /// cancelled, no further turn begins, port::unwanted() is true in one that is under way, and system_error
  /// (operation_aborted) is thrown: at once if no turn is under way. The caller's frame stays until the last turn is
  /// over, cancelled or not, so `step` may refer to it.
  /// The key is the coroutine's own: it begins when the caller's expression may be over.
  boost::asio::awaitable<void> run(std::string key, std::size_t bytes, std::function<bool()> step);

 private:
  class OnThread;
  struct Work {
    Step step;
    std::size_t size = 0;           ///< its line
    std::uint64_t number = 0;       ///< in order of arrival
    OnThread* paused_on = nullptr;  ///< where it stands in the middle of a turn; null: nowhere
    const std::atomic<bool>* unwanted = nullptr;
  };
  using Works = std::list<Work>;
  struct Key {
    /// Works that wait, by size.
    std::array<Works, std::numeric_limits<std::size_t>::digits + 1> lines;
    std::size_t n_waiting = 0;
    std::size_t n_open = 0;   ///< works that are not done
    int busy = 0;             ///< turns under way
    Clock::duration used{};   ///< by turns; it begins with what the key had that was next when it came
    std::uint64_t since = 0;  ///< of equals who waits for longer goes first
    int passes = 0;           ///< turns since the work that has waited longest had one
    auto place() const { return std::pair(used, since); }
  };
  using Keys = std::map<std::string, Key>;
  /// A work that has its turn is in no line, and comes back to its place.
  struct TurnOf {
    Keys::iterator key;
    Works work;  ///< one
    Clock::time_point begin;
  };
  void start();
  std::vector<std::thread> finish();
  void serve();
  void add_thread() COPPICE_REQUIRES(mutex_);
  bool may_begin() COPPICE_REQUIRES(mutex_) {
    return n_waiting_ > 0 && busy_ < n_workers_ && next_key() != keys_.end();
  }
  Keys::iterator next_key() COPPICE_REQUIRES(mutex_);
  void count_busy(const TurnOf& turn, int more) COPPICE_REQUIRES(mutex_);
  TurnOf take() COPPICE_REQUIRES(mutex_);
  void put_back(TurnOf&& turn) COPPICE_REQUIRES(mutex_);
  void charge(TurnOf& turn) COPPICE_REQUIRES(mutex_);
  void end(Keys::iterator key) COPPICE_REQUIRES(mutex_);
  void pause(OnThread& thread, TurnOf& turn);
  Works withdraw(const std::string& key, const std::atomic<bool>* unwanted);

  const std::function<void()> begin_;
  const int n_workers_, most_paused_;
  check::Mutex mutex_;
  check::Condition changed_;  ///< may_begin()
  check::Condition done_;
  Keys keys_ COPPICE_GUARDED_BY(mutex_);                  ///< that have works
  Clock::duration reached_ COPPICE_GUARDED_BY(mutex_){};  ///< what the key had used that was next
  std::uint64_t last_number_ COPPICE_GUARDED_BY(mutex_) = 0;
  std::size_t n_waiting_ COPPICE_GUARDED_BY(mutex_) = 0;
  std::size_t n_open_ COPPICE_GUARDED_BY(mutex_) = 0;  ///< works that are not done
  int busy_ COPPICE_GUARDED_BY(mutex_) = 0;            ///< turns under way
  int paused_ COPPICE_GUARDED_BY(mutex_) = 0;
  bool ending_ COPPICE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ COPPICE_GUARDED_BY(mutex_);
};

}  // namespace coppice::server
