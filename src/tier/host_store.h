// HostStore: a Store that keeps pieces in this machine's memory, in the buffers in which they come: nothing is copied.
// For pools that are elsewhere, in a GPU. What was used least recently goes for room.
//
// Nothing reads a piece's payload but who copies it into the pool: it has a checksum of what stands before that alone
// (piece.h), as nobody sums the pool's bytes either.
//
// Threads: one answers find(), some what is loaded, one seals what is offered.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <unordered_map>

#include "check/mutex.h"
#include "tier/queued_store.h"

namespace coppice::tier {

class HostStore final : public QueuedStore {
 public:
  /// `most`: pieces that it holds; whoever fills buffers for it has more than these, or it gets nothing any more.
  explicit HostStore(std::size_t most, int loaders = 2);
  ~HostStore() override;  ///< REQUIRES: no call is running
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  bool offer(const Name& name, Buffer piece) override;
  void forget(const Which& which) override;
  void observe(StoreObserver& observer, const std::array<std::uint8_t, 16>& model) override;
  bool shares() const override { return true; }
  bool is_at(StoreKind place) const override { return place == StoreKind::kHost; }
  Counters counters() const override;
  void stop(Clock::time_point until) override;

 private:
  struct Held {
    Buffer piece;
    Clock::time_point used;
    std::list<Name>::iterator turn;  ///< in turns_
    bool told = false;               ///< to observer_
  };
  using Pieces = std::unordered_map<Name, Held, HashOfName>;

  void answer(Find find);
  void answer(Load load);
  void answer(Write write);
  void use(Held& held) COPPICE_REQUIRES(mutex_);
  void drop(Pieces::iterator piece) COPPICE_REQUIRES(mutex_);
  void tell(const Name& name, Held& held) COPPICE_REQUIRES(mutex_);

  const std::size_t most_;
  Pieces pieces_ COPPICE_GUARDED_BY(mutex_);
  std::list<Name> turns_ COPPICE_GUARDED_BY(mutex_);           ///< what was used least recently first
  std::map<Name, bool> under_way_ COPPICE_GUARDED_BY(mutex_);  ///< writes that were taken; true: forgotten meanwhile
  StoreObserver* observer_ COPPICE_GUARDED_BY(mutex_) = nullptr;
  std::array<std::uint8_t, 16> observed_ COPPICE_GUARDED_BY(mutex_){};  ///< of which model
  Counters counters_ COPPICE_GUARDED_BY(mutex_);
};

}  // namespace coppice::tier
