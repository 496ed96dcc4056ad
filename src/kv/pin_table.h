// PinTable: prefixes that stay in the cache until somebody lets go of them. A pin holds a reference on each block that
// a match of its prefix needs, as a sequence does; and eviction leaves alone what is held. Not thread safe.
//
// What pins may hold is up to the caller: in all, and of one owner. A block that several pins hold counts once.
//
// Invariants (check_integrity() checks them):
//  1. A pin holds whole blocks: in the full group all of its prefix; in a sliding group those that a query right behind
//     it sees, and those that its last token saw, where the tree had them; and the state at its end, if the model has
//     such. They are the tree's, at their places.
//  2. blocks() is the number of different blocks that pins hold.
#pragma once

#include <cstdint>
#include <expected>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/block_table.h"
#include "kv/budget.h"
#include "kv/cache_config.h"
#include "kv/prefix_tree.h"
#include "kv/state_table.h"

namespace coppice::kv {

/// Names a pin. Never reused.
enum class PinId : std::uint64_t {};

struct PinRequest {
  TextView prefix;  ///< only whole blocks of it are held
  Namespace ns;
  std::string_view owner;                                                 ///< whose share it takes
  std::int64_t most = std::numeric_limits<std::int64_t>::max();           ///< blocks of all pins afterwards
  std::int64_t most_of_owner = std::numeric_limits<std::int64_t>::max();  ///< blocks of the owner's pins afterwards
};

struct Pinned {
  PinId id{};
  std::int32_t tokens = 0;  ///< of the prefix: those in whole blocks that are cached
  Digest digest{};          ///< of the last block: of these tokens and their namespace
};

/// Why there is no pin.
struct NoPin {
  enum class Why : std::uint8_t {
    kNotCached,    ///< not even a first block of the prefix
    kOwnersShare,  ///< the owner's pins would hold `needed` blocks, of `most_of_owner`
    kShare,        ///< all pins would hold `needed` blocks, of `most`
    kPromised,     ///< it would take `needed` blocks that nobody holds, and but `most` of those aren't promised to
                   ///< sequences
  };
  Why why = Why::kNotCached;
  std::int64_t needed = 0, most = 0;  ///< blocks
};

class PinTable {
 public:
  PinTable(const CacheConfig& config, BlockPool& pool, StateTable& states, const PrefixTree& tree, const Budget& budget)
      : config_(config),
        pool_(pool),
        states_(states),
        tree_(tree),
        budget_(budget),
        pins_of_(static_cast<std::size_t>(config.num_blocks)) {}

  /// Nothing has changed if it refuses, or if memory runs out.
  std::expected<Pinned, NoPin> add(const PinRequest& request);
  void remove(PinId id);

  std::int32_t count(BlockId block) const { return pins_of_[static_cast<std::size_t>(block)]; }  ///< pins that hold it
  std::int64_t blocks() const { return blocks_; }
  std::int64_t size() const { return static_cast<std::int64_t>(pins_.size()); }

  struct Pin {
    std::string owner;
    std::vector<BlockTable> tables;  // [n_groups]
    StateRef state;

    /// Calls f(block) for each block and page that it holds.
    template <class F>
    void for_each_held(F&& f) const {
      for (const BlockTable& table : tables) {
        for (const BlockId block : table.ids()) {
          if (block != kNullBlock) f(block);
        }
      }
      for (const BlockId page : state.pages()) f(page);
    }
  };
  const std::unordered_map<PinId, Pin>& pins() const { return pins_; }

 private:
  struct Growth {
    std::int64_t blocks = 0;    ///< that no pin holds yet
    std::int64_t of_owner = 0;  ///< the owner's, afterwards
    std::int64_t cached = 0;    ///< that nobody holds yet
  };
  Growth growth(const PrefixMatch& match, std::string_view owner) const;
  PrefixMatch whole_match(const PinRequest& request) const;
  /// Calls f(group, block) for each block that a pin of this match holds, in order; with the null block for those
  /// between.
  template <class F>
  void for_each_block(const PrefixMatch& match, F&& f) const;

  const CacheConfig& config_;
  BlockPool& pool_;
  StateTable& states_;
  const PrefixTree& tree_;
  const Budget& budget_;
  std::unordered_map<PinId, Pin> pins_;
  std::vector<std::int32_t> pins_of_;  // by block id: pins that hold it
  std::int64_t blocks_ = 0;
  std::uint64_t last_id_ = 0;
};

}  // namespace coppice::kv
