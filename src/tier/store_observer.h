// StoreObserver: is told which pieces a store has: what routers are told of a server's tiers. Abstract; implemented
// above tier.
//
// The store's threads call it, under its lock: it copies what it wants to keep, throws nothing, and calls nothing of
// the store.
//
// Invariants, of each place
//  1. A piece enters before it leaves, and leaves once. What leaves, or all when a place is emptied, is found no more.
//  2. When a store ends nothing leaves: a server's end says enough.
//  3. Only pieces of the model that observe() named, and with an origin, are told.
#pragma once

#include "tier/name.h"
#include "tier/piece.h"
#include "tier/store.h"

namespace coppice::tier {

class StoreObserver {
 public:
  virtual ~StoreObserver() = default;
  /// `name`: as the store calls it, which is not head.name where pieces are sealed. Of what was written before this
  /// process began nobody has looked at the checksum.
  virtual void entered(StoreKind place, const Name& name, const PieceHead& head) noexcept = 0;
  virtual void left(StoreKind place, const Name& name) noexcept = 0;
  /// All that entered there has left.
  virtual void emptied(StoreKind place) noexcept = 0;
};

}  // namespace coppice::tier
