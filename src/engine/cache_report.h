// CacheReport: why a request's prefix did not match further. Plain data, made once, at a request's first admission,
// and only if it was asked for.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/types.h"

namespace coppice::engine {

enum class MatchEnded : std::uint8_t {
  kLastToken,   ///< it went as far as it can: the last token is always computed
  kDiffers,     ///< the cached text goes on with other tokens
  kEvicted,     ///< what follows was cached, and was given up for room
  kNoState,     ///< what follows is cached, but no state of the model's recurrent layers stands there
  kInFlight,    ///< another request was computing the same tokens, in a block that was not full yet
  kUnknown,     ///< nobody computed more of it, or that was evicted and is forgotten
  kNamespace,   ///< nothing at all was cached under this salt
  kSharingOff,  ///< --share off
  kScored,      ///< it went as far as it may: the next token's log-probability is wanted
  kPooled,      ///< nothing may match: all tokens' hidden states are wanted
  kNotAsked,    ///< the request wanted nothing from the cache
};

struct CacheReport {
  std::int32_t prompt_tokens = 0;
  std::int32_t matched_tokens = 0;
  MatchEnded ended = MatchEnded::kLastToken;
  std::vector<kv::Token> before;  ///< the last tokens that matched; a few
  std::vector<kv::Token> asked;   ///< how the prompt goes on
  std::vector<kv::Token> found;   ///< kDiffers: how the cached text goes on
  std::int32_t lost_tokens = 0;   ///< matched at most, had the match not ended for this reason
  double lost_seconds = 0;        ///< their prefill, at the recent speed; 0 when that is not known
};

}  // namespace coppice::engine
