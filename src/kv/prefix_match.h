// PrefixMatch: how much of a text a tree knows. It depends on its symbols and media, on where it may be cut, on holes
// of sliding groups, and on the states of recurrent layers. Nothing is changed, and no hash is compared.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/cache_config.h"
#include "kv/state_table.h"
#include "kv/text.h"
#include "kv/tree_node.h"
#include "kv/types.h"

namespace coppice::kv {

/// A match of `length` tokens; rows[i] are the n_groups ids of block i, the last perhaps matched in part.
struct PrefixMatch {
  std::int32_t length = 0;
  std::vector<const BlockId*> rows;
  std::int32_t known = 0;           ///< what the length would be if states stood everywhere
  UnitId state = kNoUnit;           ///< of recurrent layers, at `length`
  BlockId state_page = kNullBlock;  ///< one of its pages
};

/// The longest prefix of `tokens` below `root` whose sliding windows have no hole, and with a state of the recurrent
/// layers if there are such. The match points into the tree.
PrefixMatch longest_match(const TreeNode& root, TextView tokens, const StateTable& states, const CacheConfig& config);

/// Of the blocks of a match, how many a sequence holds. Sequences hold whole paths of the full group, so these come
/// first.
std::int32_t blocks_in_use(const PrefixMatch& match, const BlockPool& pool);

}  // namespace coppice::kv
