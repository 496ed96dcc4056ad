// How many steps of one sequence may be in hand at once: the cache holds so many chunks ahead
// (kv::CacheConfig::max_extend), and a step takes one of them.
#pragma once

namespace coppice::engine {

/// has_states: there are recurrent layers, whose states have a place for one step. depth: the executor's.
constexpr int steps_in_hand(bool has_states, int depth) {
  return depth > 0 && !has_states ? 2 : 1;
}

}  // namespace coppice::engine
