// CacheReport: why a request's prefix did not match further. Plain data, made once, at a request's first admission,
// and only if it was asked for.
#pragma once

#include <cstdint>

#include "kv/explain.h"
#include "kv/text.h"

namespace coppice::engine {

using kv::MatchEnded;

struct CacheReport {
  std::int32_t prompt_tokens = 0;
  std::int32_t matched_tokens = 0;
  std::int32_t loaded_tokens = 0;  ///< of these: from a store outside of the pool
  double loaded_seconds = 0;       ///< that took so long
  MatchEnded ended = MatchEnded::kLastToken;
  kv::Text before;               ///< the last tokens that matched; a few
  kv::Text asked;                ///< how the prompt goes on
  kv::Text found;                ///< kDiffers: how the cached text goes on
  std::int32_t lost_tokens = 0;  ///< matched at most, had the match not ended for this reason
  double lost_seconds = 0;       ///< their prefill, at the recent speed; 0 when that is not known
};

}  // namespace coppice::engine
