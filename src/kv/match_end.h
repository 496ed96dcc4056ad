// MatchEnd: where a prompt's match in the tree ends, and why. Plain data, for people: nothing is decided by it.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/types.h"

namespace coppice::kv {

enum class MatchStop : std::uint8_t {
  kComplete,   ///< it doesn't: all tokens are known
  kDiffers,    ///< the tree goes on with other tokens
  kEvicted,    ///< what follows was in the tree, and was given up for room
  kUnknown,    ///< the tree ends here: nobody computed more, or it was evicted and is forgotten
  kNamespace,  ///< nothing at all is cached in this namespace. Other namespaces are never looked at
};

struct MatchEnd {
  std::int32_t length = 0;  ///< as match() says
  MatchStop why = MatchStop::kComplete;
  /// kEvicted: tokens behind `length` that were cached once, at least: whole blocks, as far as EvictionOrder remembers them,
  /// which is one in four for long and all for a while.
  std::int32_t evicted = 0;
  std::vector<Token> found;  ///< kDiffers: what the tree has at [length ..) of a sibling that agrees longest; a few
};

}  // namespace coppice::kv
