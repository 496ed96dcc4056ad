// EvictionOrder: for each layer group (the states of recurrent layers are one more), the blocks that only the tree
// holds, and which of them goes next. Not thread safe.
//
// The rule (docs/decisions.md, "Eviction by learned distance"): the block whose last use is longest ago goes first. But
// each use before the last, at most two of them, makes it look younger by one typical distance between a block's first
// two uses. Time is counted in blocks that entered the tree. The distance is learned, and uses are remembered after
// eviction.
//
// Every operation is O(1) for a given number of groups. Invariants:
//  1. A list holds the blocks of one group with one number of uses (capped), sorted by the time of last use. A block
//     enters at the hot end with the current time, or at the cold end of its group's first list with time 0.
//  2. In the full group a block has no more uses than its parent in the tree, and is never hotter. For sequences use
//     and hold whole paths, and tables release deepest first. So the block that goes next is a leaf's last.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/digest.h"
#include "kv/evicted_blocks.h"
#include "kv/types.h"

namespace coppice::kv {

/// Where a block enters the order when its last user lets go of it.
enum class Heat : std::uint8_t {
  kHot,   ///< it was part of what a sequence saw to the end
  kCold,  ///< it left every running window: the first to go
};

class EvictionOrder {
 public:
  static constexpr std::uint32_t kMostUses = EvictedBlocks::kMostUses;

  EvictionOrder(std::int32_t num_blocks, int n_groups)
      : links_(static_cast<std::size_t>(num_blocks)),
        ends_(static_cast<std::size_t>(n_groups) * kMostUses),
        evicted_(std::max(kRememberedAtLeast, links_.size() * kRememberedPools / kSampleEach)),
        evicted_lately_(std::max(kRememberedAtLeast, links_.size())) {}

  // --- uses
  // -----------------------------------------------------------------------------------------------------------
  /// Whether a block of a text is one of those that stand for their neighbours: they are remembered for long, and
  /// distances are learned from them.
  static bool is_sample(std::int32_t block) { return block % kSampleEach == 0; }
  /// A row of blocks (one of each group, or the null block) enters the tree. `digest`: of a full block that is a
  /// sample, which may have been evicted before; else null. Returns the uses of the row; the caller raises its
  /// ancestors to them.
  std::uint32_t enter(std::span<const BlockId> row, const Digest* digest);
  /// Gives a block of the full group as many uses as a block behind it has. False when it has them already; then its
  /// ancestors have, too.
  /// REQUIRES: id is in no list (the publisher of the block behind it holds it).
  bool raise(BlockId id, std::uint32_t uses);
  /// What is no new row enters the tree: a sliding block in the place of a hole, or a page of a state.
  void enter_aside(BlockId id) { links_[index(id)].uses = 1; }
  /// A request started on a block of the tree and on all before it. `came_back`: a sample of the full group that nobody
  /// held.
  void use(BlockId id, bool came_back);
  /// A full block of the full group is about to be evicted.
  void remember(BlockId id, const Digest& digest, bool sample);
  /// Whether a full block of the full group was evicted and is not forgotten yet. Samples are remembered for long,
  /// others until about a pool's worth of blocks was evicted after them.
  bool remembers(const Digest& digest) const {
    return evicted_.recall(digest).has_value() || evicted_lately_.recall(digest).has_value();
  }

  // --- the lists
  // ------------------------------------------------------------------------------------------------------
  /// REQUIRES: id is in no list, and has entered the tree.
  void add(BlockId id, int group, Heat heat);
  /// REQUIRES: id is in a list.
  void remove(BlockId id);
  /// A block in a list becomes the hottest of those with its number of uses.
  void touch(BlockId id) {
    const int group = links_[index(id)].list / static_cast<int>(kMostUses);
    remove(id);
    add(id, group, Heat::kHot);
  }
  bool contains(BlockId id) const { return links_[index(id)].list >= 0; }

  /// The block to evict next over all groups; the null block when all lists are empty. Among equals it is the full
  /// group's, because its leaf takes the other groups' blocks of that place along.
  BlockId next() const { return coldest(0, ends_.size()); }

  // For check_integrity().
  BlockId next(int group) const {
    const auto first = static_cast<std::size_t>(group) * kMostUses;
    return coldest(first, first + kMostUses);
  }
  /// The coldest block of a group with `uses` uses, and the next hotter one; or the null block.
  BlockId coldest_of(int group, std::uint32_t uses) const {
    return ends_[static_cast<std::size_t>(group) * kMostUses + uses - 1].cold;
  }
  BlockId hotter(BlockId id) const { return links_[index(id)].hotter; }
  std::uint32_t uses(BlockId id) const { return links_[index(id)].uses; }
  std::uint64_t last_use(BlockId id) const { return links_[index(id)].last_use; }

 private:
  static constexpr std::int32_t kSampleEach = 4;
  static constexpr std::size_t kRememberedAtLeast = 256;  ///< blocks: a small table forgets by chance
  static constexpr std::size_t kRememberedPools = 16;     ///< evicted blocks remembered for each block of the pool

  struct Link {
    BlockId colder = kNullBlock;
    BlockId hotter = kNullBlock;
    std::uint64_t last_use = 0;
    std::int16_t list = -1;  // group * kMostUses + uses - 1; -1: in none
    std::uint8_t uses = 1;
  };
  struct Ends {
    BlockId cold = kNullBlock;
    BlockId hot = kNullBlock;
  };
  static std::size_t index(BlockId id) { return static_cast<std::size_t>(id); }

  BlockId coldest(std::size_t first_list, std::size_t end_list) const;
  void learn_distance(std::uint64_t distance);

  std::vector<Link> links_;       // by block id
  std::vector<Ends> ends_;        // by group, then uses
  EvictedBlocks evicted_;         // samples
  EvictedBlocks evicted_lately_;  // the others: for explain() only, nothing is decided by them
  std::uint64_t now_ = 1;         // blocks of the full group that have entered the tree, and 1
  std::uint64_t distance_ = 0;    // between a block's first two uses, typically: the geometric mean of late
  double mean_log2_ = 0;          // of it
  std::uint64_t learned_ = 0;     // distances in that mean, at most as many as samples are remembered
};

}  // namespace coppice::kv
