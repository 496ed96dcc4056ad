// TierConfig: what an engine is told of a store outside of its pool, once that can be used. TierFigures: what came of
// it. Plain data.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "tier/buffers.h"
#include "tier/store.h"

namespace coppice::engine {

struct TierConfig {
  std::shared_ptr<tier::Store> store;            ///< its stop() was called before the engine is destroyed
  std::shared_ptr<tier::Buffers> loads, stores;  ///< of piece_bytes() each; they outlive the store
  std::array<std::uint8_t, 16> model{};          ///< model_name()
  std::string about;                             ///< tier::Piece::about
  bool origins = false;      ///< pieces say where their texts stand, salts included: somebody is told
  bool load_always = false;  ///< also what would come later than it is computed
  bool lasting = true;       ///< what is used twice goes there before it is evicted, and all at the end
  bool all_evicted = false;  ///< also what was used once is stored, when it is evicted
};

/// Sums since start.
struct TierFigures {
  std::int64_t asked = 0, found_nothing = 0;  ///< sequences of which the store was asked
  std::int64_t not_worth = 0;                 ///< ... what it held would have come later than it is computed
  std::int64_t loads = 0;                     ///< sequences that loaded something
  std::int64_t loads_cut = 0;                 ///< ... and of which not all has come
  std::int64_t left = 0;                      ///< loads of who was cancelled, or preempted
  std::int64_t late = 0;        ///< of these, and of questions: those that were given up, because computing was faster
  std::int64_t tokens = 0;      ///< that were loaded in place of computing them
  std::int64_t unsound = 0;     ///< pieces that were no such pieces
  std::int64_t stored = 0;      ///< pieces that the store took
  std::int64_t refused = 0;     ///< ... that it did not
  std::int64_t unbuffered = 0;  ///< ... for which there was no buffer, or whose step failed
  double bytes_per_second = 0;  ///< of loading, lately; 0: not known
};

}  // namespace coppice::engine
