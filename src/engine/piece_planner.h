// PiecePlanner: which pieces of a text a store is asked for, and which of those that it holds are of use. Reads the
// cache and changes nothing. Not thread safe; the engine's thread owns it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/inflow.h"
#include "engine/tier_config.h"
#include "kv/cache.h"

namespace coppice::engine {

class PiecePlanner {
 public:
  /// config: its `model` is read with each call, so the store may be attached later.
  PiecePlanner(const kv::Cache& cache, const TierConfig& config) : cache_(cache), config_(config) {}

  /// No windows and no states: a sequence can start behind any beginning that is stored.
  bool any_beginning_is_usable() const { return cache_.config().n_groups() == 1 && !has_states(); }
  /// The number that pieces of states have where those of blocks have their group's.
  int state_group() const { return cache_.config().n_groups(); }
  /// Pages that make up a piece of this group.
  std::size_t pages_of(int group) const {
    return static_cast<std::size_t>(group == state_group() ? cache_.config().state_pages : 1);
  }

  /// Tokens: the longest match in the tree of at most `matched` of them that ends with a whole block. A shorter match
  /// has other windows and another state, so each length is looked up.
  std::int32_t whole_match(kv::TextView text, const kv::Namespace& ns, std::int32_t matched) const;

  /// All pieces of the text behind `base`, which is whole blocks that the tree holds: block after block, one of each
  /// group, then the state at its end.
  std::vector<WantedPiece> pieces(kv::TextView text, const kv::Namespace& ns, std::int32_t base) const;

  /// Tokens, whole blocks: the longest length for which all is held that a sequence needs which starts there.
  /// held: of each piece that pieces() gave for this base. `base`: there is none.
  std::int32_t usable_end(kv::TextView text, std::int32_t base, const std::vector<bool>& held) const;

  /// Leaves of the pieces what a sequence needs that starts at `end`, in the order of loading.
  void keep_needed(std::vector<WantedPiece>& pieces, std::int32_t end) const;

 private:
  bool has_states() const { return cache_.config().state_pages > 0; }
  int pieces_of_block() const { return state_group() + (has_states() ? 1 : 0); }

  const kv::Cache& cache_;
  const TierConfig& config_;
};

}  // namespace coppice::engine
