// Inflow: what of a sequence's text comes from a store: which pieces, and how far they are. Plain state; Tiers
// (tiers.h) moves it on. Belongs to the engine's thread.
//
// Its life: the store is asked which pieces it holds (the sequence waits in the queue); those up to the longest usable
// length are loaded (the sequence runs, and has no rows); then it is gone, whatever has come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/request.h"
#include "tier/buffers.h"
#include "tier/name.h"

namespace coppice::engine {

/// A block of a group, or a state.
struct WantedPiece {
  enum class At : std::uint8_t {
    kNowhere,  ///< not asked for
    kComing,   ///< the store has a buffer for it
    kHere,     ///< in `buffer`
    kInStep,   ///< a step in hand brings it into the pool, and Tiers has its buffer
    kIn,       ///< in the pool
  };
  int group = 0;           ///< as kv::Storable
  std::int32_t block = 0;  ///< it ends with this one of the text
  tier::Name name;
  std::vector<std::byte> text;  ///< of that block, as spell() has it
  At at = At::kNowhere;
  tier::Buffer buffer;
};

struct Inflow {
  std::uint64_t ticket = 0;              ///< names it to who comes back from the store's threads
  std::int32_t base = 0;                 ///< tokens, whole blocks: where it begins
  std::int32_t end = 0;                  ///< ... ends; while the store is asked: the furthest that is asked for
  std::vector<WantedPiece> wanted;       ///< in the order of loading
  std::size_t next = 0;                  ///< the first one at kNowhere
  std::size_t missed = kNone;            ///< the first one that doesn't come
  bool loads = false;                    ///< the sequence runs, and has blocks for it
  Clock::time_point began{}, give_up{};  ///< of asking, then of loading

  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
};

}  // namespace coppice::engine
