// EvictionOrder: for each layer group, the blocks that only the tree holds, coldest first. Not thread safe.
//
// Kept up as things change, never searched for: every operation is O(1). Invariants:
//  1. A list is sorted by tick: a block enters at the hot end with the current tick, or at the cold end with tick 0.
//  2. In the full group a block is never hotter than its parent in the tree: sequences hold whole paths, tables release
//     deepest first, and so the coldest block is a leaf.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/types.h"

namespace coppice::kv {

/// Where a block enters the order when its last user lets go of it.
enum class Heat : std::uint8_t {
  kHot,   ///< it was part of what a sequence saw to the end
  kCold,  ///< it left every running window: the first to go
};

class EvictionOrder {
 public:
  EvictionOrder(std::int32_t num_blocks, int n_groups)
      : links_(static_cast<std::size_t>(num_blocks)), ends_(static_cast<std::size_t>(n_groups)) {}

  /// One tick for everything that happens within one call of the cache.
  void tick() { ++now_; }

  /// REQUIRES: id is in no list.
  void add(BlockId id, int group, Heat heat);
  /// REQUIRES: id is in a list.
  void remove(BlockId id);
  /// A block in a list becomes its hottest.
  void touch(BlockId id) {
    const int group = links_[index(id)].group;
    remove(id);
    add(id, group, Heat::kHot);
  }
  bool contains(BlockId id) const { return links_[index(id)].group >= 0; }

  /// The coldest block of a group, or the null block.
  BlockId coldest(int group) const { return ends_[static_cast<std::size_t>(group)].cold; }
  /// The next hotter one of the same group, or the null block.
  BlockId hotter(BlockId id) const { return links_[index(id)].hotter; }

  /// The block to evict next over all groups: the oldest tick; the full group's (0) among equals, because its leaf
  /// takes the other groups' blocks of that place along. The null block when all lists are empty.
  BlockId next() const;

 private:
  struct Link {
    BlockId colder = kNullBlock;
    BlockId hotter = kNullBlock;
    std::int32_t group = -1;  // -1: in no list
    std::uint64_t tick = 0;
  };
  struct Ends {
    BlockId cold = kNullBlock;
    BlockId hot = kNullBlock;
  };
  static std::size_t index(BlockId id) { return static_cast<std::size_t>(id); }

  std::vector<Link> links_;  // by block id
  std::vector<Ends> ends_;   // by group
  std::uint64_t now_ = 1;
};

}  // namespace coppice::kv
