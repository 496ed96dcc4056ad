// MaskPool: threads that follow grammars and compute masks, so that the engine's step doesn't wait for them: while a step runs, they make
// what its rows are sampled with. One thread serves only works that are expected to be quick; the other takes the slow ones, too. Among
// works of one kind keys take turns.
//
// Thread safety: all may be called by any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check/mutex.h"

namespace coppice::sampling {

inline constexpr double kQuickSeconds = 0.001;  ///< of CPU time

/// A work of the pool's. It is done once, by whoever claims it.
class MaskWork {
 public:
  /// Must not throw.
  explicit MaskWork(std::function<void()> work) : work_(std::move(work)) {}

  bool done() const { return state_ == kDone; }
  /// Does the work here if nobody has begun it, else waits for who has.
  void wait();
  /// It is never done, if nobody has begun it.
  void give_up();
  /// Does it if nobody has begun it.
  bool try_run();

 private:
  enum State : std::uint8_t { kNew, kBegun, kDone };
  bool claim();
  std::atomic<State> state_ = kNew;
  std::function<void()> work_;  ///< whoever has claimed it owns it
};

class MaskPool {
 public:
  /// `done` is called by the pool's threads behind each work. `begin`: what they do first.
  explicit MaskPool(std::function<void()> done, const std::function<void()>& begin = [] {});
  ~MaskPool() { close(); }
  MaskPool(const MaskPool&) = delete;
  MaskPool& operator=(const MaskPool&) = delete;

  /// `quick`: it is expected to take less than kQuickSeconds.
  void push(const std::string& key, bool quick, std::shared_ptr<MaskWork> work);

  /// Nothing is begun any more, and `done` isn't called again: works are done by who waits for them.
  void close();

 private:
  using Works = std::list<std::shared_ptr<MaskWork>>;
  /// Works of one kind: keys in the order of their turns.
  struct Line {
    std::list<std::string> turns;
    std::map<std::string, Works, std::less<>> works;  ///< none is empty
  };
  enum Kind : std::uint8_t { kQuick, kSlow };

  void serve(Kind last);
  std::shared_ptr<MaskWork> take(Kind last) COPPICE_REQUIRES(mutex_);

  std::function<void()> done_;
  check::Mutex mutex_;
  check::Condition changed_;
  std::array<Line, 2> lines_ COPPICE_GUARDED_BY(mutex_);
  bool closed_ COPPICE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace coppice::sampling
