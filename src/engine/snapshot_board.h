// SnapshotBoard: where the engine's thread leaves its figures for others to read. Thread safe.
#pragma once

#include <mutex>

#include "engine/snapshot.h"

namespace coppice::engine {

class SnapshotBoard {
 public:
  void publish(const Snapshot& snapshot) {
    const std::lock_guard lock(mutex_);
    snapshot_ = snapshot;
  }
  Snapshot read() const {
    const std::lock_guard lock(mutex_);
    return snapshot_;
  }

 private:
  mutable std::mutex mutex_;
  Snapshot snapshot_;
};

}  // namespace coppice::engine
