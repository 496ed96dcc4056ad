// WorkQueue: the worker, which is a thread of its own, and what waits for it: work that takes one turn or several.
//
// Small work goes first, so that a few large bodies don't hold up everybody. Sizes are told apart by powers of two: among
// works of about one size the first to come is the first to be done.
//
// Thread safety: push() may be called by any thread.
//
// Invariants
//   1. Of kMostPasses + 1 turns in a row at least one goes to the work that has waited the longest. So what comes later can
//      delay a work only by so much: if it and those that are there when it comes need n turns, it is done after at most
//      (kMostPasses + 1) * n turns.
//   2. Of works of one size at most one is begun and not done.
//   3. The queue takes no memory: its links lie in the works.
#pragma once

#include <array>
#include <boost/intrusive/slist.hpp>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

namespace coppice::server {

class WorkQueue {
 public:
  static constexpr int kMostPasses = 31;

  /// Lives, and stays where it is, until its last step.
  class Work : public boost::intrusive::slist_base_hook<> {
   public:
    /// `step`: one turn. Runs on the worker until it returns true. Throws nothing; the last may end this object's life by
    /// what it does last. `bytes`: of the body that it is about.
    Work(std::size_t bytes, std::function<bool()> step);
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    friend class WorkQueue;
    const std::function<bool()> step_;
    const std::size_t size_;    ///< index of its line
    std::uint64_t number_ = 0;  ///< in order of arrival
  };

  /// `begin`: what the worker's thread does first.
  explicit WorkQueue(std::function<void()> begin = [] {});
  /// Waits until all is done.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// REQUIRES: `work` wasn't pushed before.
  void push(Work& work) noexcept;

 private:
  using Line =
      boost::intrusive::slist<Work, boost::intrusive::cache_last<true>, boost::intrusive::constant_time_size<false>>;

  void serve();
  Work& take();

  std::mutex mutex_;  ///< guards all below but the thread
  std::condition_variable changed_;
  /// By size, each in order of arrival. Who is on the worker is in none, and comes back as the first of its line.
  std::array<Line, std::numeric_limits<std::size_t>::digits + 1> lines_;
  std::size_t n_waiting_ = 0;
  std::uint64_t last_number_ = 0;
  int passes_ = 0;  ///< turns since the work that has waited the longest had one
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace coppice::server
