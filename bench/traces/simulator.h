// An independent simulator of a cache of whole prompts' blocks: nothing of src/kv is in it, so that the two check each
// other. One request after another; its blocks stay while it runs; where room is needed, the leaf that the rule puts
// first goes, and so what is kept is always closed under prefixes.
#pragma once

#include <cstdint>

#include "trace.h"

namespace coppice::bench {

enum class Rule : std::uint8_t {
  kLru,      ///< the leaf that was used longest ago
  kOptimum,  ///< the leaf whose next use is farthest away: nobody can do better (Belady)
};

/// Blocks served from a cache of `budget` blocks: found as part of an unbroken prefix.
std::int64_t simulate(const Trace& trace, std::int32_t budget, Rule rule);

}  // namespace coppice::bench
