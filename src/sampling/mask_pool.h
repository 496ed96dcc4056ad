// MaskPool: threads that follow grammars and compute masks, so that the engine's step doesn't wait for them: while a
// step runs, they make what its rows are sampled with. The key that lately took the least CPU time is next, with its
// quick works first. One thread takes only works that are expected to be quick, and those of keys that lately took
// hardly any; the other takes all. So a key's work waits for one that runs, however slow other keys' grammars are, and
// how many. While several keys have requests open, slow works of a key that lately took much wait, too: steps need the
// processors.
//
// Thread safety: all may be called by any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check/mutex.h"

namespace coppice::sampling {

inline constexpr double kQuickSeconds = 0.001;  ///< of CPU time
inline constexpr double kLittleSeconds = 0.02;  ///< ... of a key lately: half of it is forgotten each second
inline constexpr double kMuchSeconds =
    0.25;  ///< ... of a key lately, too. Who has it all the time gets a sixth of a processor

/// A work of the pool's. It is done once, by whoever claims it.
class MaskWork {
 public:
  /// Must not throw.
  explicit MaskWork(std::function<void()> work) : work_(std::move(work)) {}

  bool done() const { return progress_ == kDone; }
  /// Does the work here if nobody has begun it, else waits for who has.
  void wait();
  /// It is never done, if nobody has begun it.
  void give_up();
  /// Does it if nobody has begun it.
  bool try_run();

 private:
  enum Progress : std::uint8_t { kNew, kBegun, kDone };
  bool claim();
  std::atomic<Progress> progress_ = kNew;
  std::function<void()> work_;  ///< whoever has claimed it owns it
};

class MaskPool {
 public:
  /// `done` is called by the pool's threads behind each work. `shared`: whether several keys have requests open; any
  /// thread. `little`: a key's works are all taken for quick while it lately took less.
  explicit MaskPool(
      std::function<void()> done, std::function<bool()> shared = [] { return false; }, double little = kLittleSeconds);
  ~MaskPool() { close(); }
  MaskPool(const MaskPool&) = delete;
  MaskPool& operator=(const MaskPool&) = delete;

  /// `quick`: it is expected to take less than kQuickSeconds.
  void push(const std::string& key, bool quick, std::shared_ptr<MaskWork> work);

  /// Nothing is begun any more, and `done` isn't called again: works are done by who waits for them.
  void close();

 private:
  using Works = std::list<std::shared_ptr<MaskWork>>;
  using Clock = std::chrono::steady_clock;
  struct Key {
    Works quick, slow;
    int running = 0;
    double spent = 0;  ///< seconds of CPU time, as of `at`
    Clock::time_point at{};
    std::uint64_t served = 0;  ///< when its last work was taken, in works

    double lately(Clock::time_point now) const;
  };
  using Keys = std::map<std::string, Key, std::less<>>;

  void serve(bool only_quick);
  /// Whose work is next, and of which kind; null: nobody's. held_back_: or not yet.
  std::pair<Key*, Works*> next(bool only_quick, Clock::time_point now) COPPICE_REQUIRES(mutex_);
  /// Those that have nothing to do, and have taken nothing lately.
  void forget(Clock::time_point now) COPPICE_REQUIRES(mutex_);

  std::function<void()> done_;
  std::function<bool()> shared_;
  check::Mutex mutex_;
  check::Condition changed_;
  const double little_;
  Keys keys_ COPPICE_GUARDED_BY(mutex_);
  std::uint64_t served_ COPPICE_GUARDED_BY(mutex_) = 0;
  bool held_back_ COPPICE_GUARDED_BY(mutex_) = false;
  bool closed_ COPPICE_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace coppice::sampling
