// TierBox: what the store's threads bring to Tiers (tiers.h). Any thread may put something in; the engine's thread
// takes it out. The store's callbacks hold it, so it outlives Tiers, which closes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <utility>
#include <vector>

#include "check/mutex.h"
#include "engine/request.h"
#include "tier/buffers.h"

namespace coppice::engine {

class TierBox {
 public:
  struct Item {
    std::uint64_t ticket = 0;
    bool answer = false;  ///< to a question
    std::vector<bool> held;
    std::size_t index = 0;  ///< else a piece
    tier::Buffer buffer;    ///< none: it didn't come
    bool unsound = false;
    Clock::time_point when{};
  };

  /// wake: the engine's thread has something to do. It is called with the box locked.
  explicit TierBox(std::function<void()> wake) : wake_(std::move(wake)) {}

  void put(Item item) noexcept {
    const check::Lock lock(mutex_);
    if (!wake_) return;  // nobody is there any more
    try {
      items_.push_back(std::move(item));
    } catch (const std::exception&) {  // it is given up when its time is over
    }
    wake_();
  }
  std::vector<Item> take() {
    const check::Lock lock(mutex_);
    return std::exchange(items_, {});
  }
  /// From now on nothing is taken, and nobody is woken.
  void close() {
    const check::Lock lock(mutex_);
    wake_ = nullptr;
    items_.clear();
  }

 private:
  check::Mutex mutex_;
  std::vector<Item> items_ COPPICE_GUARDED_BY(mutex_);
  std::function<void()> wake_ COPPICE_GUARDED_BY(mutex_);
};

}  // namespace coppice::engine
