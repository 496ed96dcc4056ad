// explain(): where a prompt's match in the tree ends, and why. For people: nothing is decided by it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/digest.h"
#include "kv/text.h"
#include "kv/types.h"

namespace coppice::kv {

struct CacheConfig;
class EvictionOrder;
class PrefixTree;

/// Why a prompt's match ended. explain() gives the first six; the others are known to who asks
/// (engine/make_cache_report.cpp).
enum class MatchEnded : std::uint8_t {
  kLastToken,   ///< it went as far as it can: all tokens that may match are known
  kDiffers,     ///< the cached text goes on with other tokens
  kEvicted,     ///< what follows was cached, and was given up for room
  kNoState,     ///< what follows is cached, but no state of the model's recurrent layers stands there
  kUnknown,     ///< nobody computed more of it, or that was evicted and is forgotten
  kNamespace,   ///< nothing at all is cached in this namespace. Other namespaces are never looked at
  kInFlight,    ///< another request was computing the same tokens, in a block that was not full yet
  kSharingOff,  ///< --share off
  kScored,      ///< it went as far as it may: the next token's log-probability is wanted
  kPooled,      ///< nothing may match: all tokens' hidden states are wanted
  kNotAsked,    ///< the request wanted nothing from the cache
};

struct MatchEnd {
  std::int32_t length = 0;  ///< as match() says
  MatchEnded why = MatchEnded::kLastToken;
  /// kEvicted: at least so many tokens behind `length` were cached once. Counts whole blocks that EvictionOrder
  /// remembers: every fourth block for long, all blocks for a while.
  std::int32_t evicted = 0;
  std::int32_t stateless = 0;  ///< kNoState: so many tokens behind `length` are cached
  Text found;                  ///< kDiffers: the tree's next tokens on the path that agrees longest; at most 16
};

/// The same walk as PrefixTree::match(), but it hashes and allocates.
MatchEnd explain(const PrefixTree& tree, const EvictionOrder& evicted, const CacheConfig& config, TextView tokens,
                 const Namespace& ns);

}  // namespace coppice::kv
