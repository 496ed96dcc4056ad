// Storable: what of the tree may be kept outside of the pool: a full block of one layer group, or a state that stands
// at the end of one. Not thread safe.
//
// What has been stored, or came from there, is marked (BlockPool::stored()) as long as it is in the tree.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/cache_config.h"
#include "kv/prefix_tree.h"
#include "kv/state_table.h"
#include "kv/text.h"
#include "kv/types.h"

namespace coppice::kv {

/// A view, until the tree changes.
struct Storable {
  int group = 0;                   ///< of Cache::config(); behind the last one: a state
  std::span<const BlockId> pages;  ///< one block; of a state its pages
  Digest digest{};                 ///< of the text up to its end
  Digest parent{};                 ///< of the text before its last block; of the namespace, if nothing is before it
  bool is_first = false;           ///< nothing is before its last block
  TextView text;                   ///< of the last block of that
  const Namespace* ns = nullptr;
  std::uint32_t uses = 0;
};
using OnStorable = std::function<void(const Storable&)>;

class Storables {
 public:
  Storables(const CacheConfig& config, BlockPool& pool, const StateTable& states, const PrefixTree& tree)
      : config_(config), pool_(pool), states_(states), tree_(tree) {}

  /// What stands at a full block of the full group and isn't marked: that block; `all`: those of the other groups, and
  /// the state at its end.
  void at(BlockId full_group_id, bool all, const OnStorable& f) const;

  /// What goes when this block or page is evicted, as far as it isn't marked. Holes of windows are no loss: they are
  /// left out.
  void before_eviction(BlockId id, const OnStorable& f) const;

  /// Full blocks of the full group, with `uses` or more, where something isn't marked: the block, one of another group,
  /// or the state at its end. What is used most and latest first, and what comes before in a text before what follows.
  /// O(tree).
  std::vector<BlockId> hottest(std::uint32_t uses = 1) const;

  /// Of the text up to the end of a full block of the full group in the tree; none: it is no such block.
  std::optional<Digest> digest_of(BlockId full_group_id) const;

  /// The longest beginning of a sequence's computed text, up to `len`, that can be taken up again from its whole blocks
  /// alone: with states where there are such. 0: nothing.
  std::int32_t whole_until(std::span<const BlockId> full_group, std::int32_t len) const;

 private:
  void state_behind(BlockId anchor, const OnStorable& f) const;
  bool all_marked(std::span<const BlockId> row) const;
  Storable describe(BlockId full_group_id) const;

  const CacheConfig& config_;
  BlockPool& pool_;
  const StateTable& states_;
  const PrefixTree& tree_;
};

}  // namespace coppice::kv
