// explain(): where a prompt's match in the tree ends, and why. For people: nothing is decided by it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/digest.h"
#include "kv/types.h"

namespace coppice::kv {

struct CacheConfig;
class EvictionOrder;
class PrefixTree;

enum class MatchStop : std::uint8_t {
  kComplete,   ///< it doesn't: all tokens are known
  kDiffers,    ///< the tree goes on with other tokens
  kEvicted,    ///< what follows was in the tree, and was given up for room
  kNoState,    ///< what follows is in the tree, but no state of the recurrent layers is
  kUnknown,    ///< the tree ends here: nobody computed more, or it was evicted and is forgotten
  kNamespace,  ///< nothing at all is cached in this namespace. Other namespaces are never looked at
};

struct MatchEnd {
  std::int32_t length = 0;  ///< as match() says
  MatchStop why = MatchStop::kComplete;
  /// kEvicted: at least so many tokens behind `length` were cached once. Counts whole blocks that EvictionOrder remembers:
  /// every fourth block for long, all blocks for a while.
  std::int32_t evicted = 0;
  std::int32_t stateless = 0;  ///< kNoState: so many tokens behind `length` are cached
  std::vector<Token> found;    ///< kDiffers: the tree's next tokens on the path that agrees longest; at most 16
};

/// The same walk as PrefixTree::match(), but it hashes and allocates.
MatchEnd explain(const PrefixTree& tree, const EvictionOrder& evicted, const CacheConfig& config,
                 std::span<const Token> tokens, const Namespace& ns);

}  // namespace coppice::kv
