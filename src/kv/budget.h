// Budget: which sequence may still take how many blocks of the pool; and the one place that takes them. Not thread
// safe.
//
// Admission reserves the blocks that a prompt will need, so that whoever was let in gets through its prompt without
// waiting for others. A reservation is a number, not particular blocks.
//
// In a group with a window it counts on the blocks that the prompt will leave behind, those that others used at
// admission excepted. Who takes a share of one later (a follower, a pin) pays nothing for it, and may hold it longer.
// Then a full pool can have no block for a prompt in hand: extend() says OutOfBlocks, and somebody is preempted.
//
// Invariants:
//  1. reserved() is the sum of all sequences' `reserved`.
//  2. reserved() <= free + cached: a reserved block can always be had, if need be by eviction.
#pragma once

#include <algorithm>
#include <cstdint>

#include "check/assert.h"
#include "kv/block_pool.h"
#include "kv/cache_config.h"
#include "kv/cache_sequence.h"
#include "kv/faults.h"
#include "kv/prefix_tree.h"
#include "kv/storable.h"

namespace coppice::kv {

class Budget {
 public:
  Budget(const CacheConfig& config, BlockPool& pool, PrefixTree& tree) : config_(config), pool_(pool), tree_(tree) {}

  /// Blocks that a sequence may take beside what others have reserved. `own_reserved`: its own reservation; 0: a new
  /// one.
  std::int64_t available(std::int32_t own_reserved) const {
    return pool_.free() + pool_.cached() - (reserved_ - own_reserved);
  }

  /// What a prompt takes of the blocks that nobody holds.
  struct Claim {
    std::int64_t fresh = 0;   ///< to be allocated until the prompt is prefilled
    std::int64_t cached = 0;  ///< matched, and held by the tree only: they become blocks in use
    bool lone_state = false;  ///< of these are the pages of the matched state
  };
  Claim claim(const PrefixMatch& match, std::int32_t prompt_blocks) const;

  /// REQUIRES: blocks <= available(seq.reserved).
  void reserve(CacheSequence& seq, std::int64_t blocks) {
    COPPICE_ASSERT(blocks <= available(seq.reserved));
    seq.reserved += static_cast<std::int32_t>(blocks);
    reserved_ += blocks;
  }
  /// The same, for other things than the prompt's own blocks.
  void reserve_spare(CacheSequence& seq, std::int32_t blocks) {
    reserve(seq, blocks);
    seq.growth_reserve += blocks;
  }
  /// While a prompt is being prefilled: what its windows will need next, as far as there is room. What they have left
  /// pays for it unless others hold it still, and for no more: a chunk leaves all its blocks at once, perhaps with one
  /// left to come. REQUIRES: the windows have been moved up to computed_len.
  void reserve_ahead(CacheSequence& seq);
  void give_back(CacheSequence& seq) {
    reserved_ -= seq.reserved;
    seq.reserved = 0;
  }

  /// A fresh block, taken from the sequence's reservation as long as it has one. Evicts the coldest cached block if
  /// none is free. REQUIRES: available(seq.reserved) > 0.
  BlockRef allocate(CacheSequence& seq);
  /// ... for slots behind computed_len, which rewind() may take back.
  BlockRef allocate_slots(CacheSequence& seq) {
    seq.unpromised += seq.reserved == 0;
    return allocate(seq);
  }
  /// So many of these blocks were given back, the last first: those that its reservation paid for are promised again.
  /// REQUIRES: nobody holds them.
  void take_back(CacheSequence& seq, std::int32_t blocks) {
    const std::int32_t unpromised = std::min(seq.unpromised, blocks);
    seq.unpromised -= unpromised;
    if (!fault(Fault::kRewindBreaksPromise)) reserve(seq, blocks - unpromised);
  }
  /// Likewise the pages of a state. REQUIRES: as many are available.
  StateRef allocate_state(CacheSequence& seq, StateTable& states);

  /// Is told of what is evicted for room, just before. It throws nothing. Null: nobody is.
  void on_eviction(const Storables* storables, OnStorable f) {
    storables_ = storables;
    on_eviction_ = std::move(f);
  }

  std::int64_t reserved() const { return reserved_; }
  std::int64_t evictions() const { return evictions_; }

 private:
  /// Blocks of a group that a sequence will take beyond those it holds, with tables of so many blocks.
  std::int32_t to_come(int g, std::int32_t blocks, std::int32_t held, std::int32_t prompt_blocks) const;

  const CacheConfig& config_;
  BlockPool& pool_;
  PrefixTree& tree_;
  std::int64_t reserved_ = 0;
  std::int64_t evictions_ = 0;
  const Storables* storables_ = nullptr;
  OnStorable on_eviction_;
};

}  // namespace coppice::kv
