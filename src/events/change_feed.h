// ChangeFeed: between the engine's thread, which changes the tree, the stores', which change the tiers, and the one
// that tells routers. It has a limit: if the taker falls behind, what waits is thrown away, and the cache tells all
// anew when that was taken.
//
// Threads: kv::TreeObserver's functions belong to the engine's; any may call the others.
//
// Invariants
//  1. What take() has given so far, and gives next, is what the tree has after some change; or Changes::anew comes
//     before it is.
//  2. No more than `most` changes of the pool wait that were not told by begin_all().
#pragma once

#include <cstddef>
#include <functional>

#include "check/mutex.h"
#include "events/changes.h"
#include "events/stored_blocks.h"
#include "kv/tree_observer.h"

namespace coppice::events {

class ChangeFeed final : public kv::TreeObserver {
 public:
  static constexpr std::size_t kMost = std::size_t{1} << 16;

  /// The first changes that it gives are anew.
  explicit ChangeFeed(std::size_t most = kMost) : most_(most) { changes_.anew = true; }

  /// changed: there is something to take, where there was nothing. wake: the cache should be told to tell all. Both are
  /// called on any thread, and throw nothing. Set them before others use it.
  void on_change(std::function<void()> changed);
  void on_want(std::function<void()> wake);

  /// All is to be told anew, for somebody who doesn't know what was told before.
  void want_all();
  /// What has come since the last time. Returns at once. Whoever sends calls it, and nobody else.
  Changes take();
  /// What the tiers have: told beside the pool's, and all of it behind a Changes::anew.
  StoredBlocks& stored() { return stored_; }

  void entered(const kv::TreeBlock& block) noexcept override;
  void left(const kv::Digest& digest, const kv::Namespace& ns) noexcept override;
  bool wants_all() const noexcept override;
  void begin_all() noexcept override;
  void end_all() noexcept override;

 private:
  template <class Add>
  void add(const Add& add) noexcept;
  void lose() noexcept COPPICE_REQUIRES(mutex_);

  const std::size_t most_;
  StoredBlocks stored_;
  std::function<void()> changed_;
  mutable check::Mutex mutex_;
  std::function<void()> wake_ COPPICE_GUARDED_BY(mutex_);
  Changes changes_ COPPICE_GUARDED_BY(mutex_);
  std::size_t told_ COPPICE_GUARDED_BY(mutex_) = 0;  // of changes_: by begin_all() to end_all()
  bool telling_ COPPICE_GUARDED_BY(mutex_) = false;
  bool lost_ COPPICE_GUARDED_BY(mutex_) = false;    // what comes is of no use until all is told
  bool wanted_ COPPICE_GUARDED_BY(mutex_) = false;  // all is to be told
};

}  // namespace coppice::events
