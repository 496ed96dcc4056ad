// Sequence: what the cache knows of one running sample; and DetachedSet, what is left of one that was detached. Plain
// data; the rules are in cache.h.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/block_table.h"
#include "kv/digest.h"
#include "kv/types.h"

namespace coppice::kv {

struct Sequence {
  Namespace ns;
  std::vector<Token> tokens;       // [len]
  std::vector<BlockTable> tables;  // [n_groups]
  std::int32_t cached_len = 0;
  std::int32_t computed_len = 0;
  std::int32_t published = 0;      // blocks, a prefix of the tables, that are the tree's
  std::int32_t prompt_blocks = 0;  // the reservation is for tables of this size
  std::int32_t reserved = 0;       // blocks promised, not allocated yet

  std::int32_t len() const { return static_cast<std::int32_t>(tokens.size()); }
};

struct DetachedSet {
  Namespace ns;
  std::vector<Token> tokens;
  std::vector<BlockTable> tables;
  std::int32_t published = 0;
};

}  // namespace coppice::kv
