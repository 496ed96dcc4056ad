// Types that cross the border of kv: all that the executor and the attention kernels see of the cache. Header-only,
// plain data, standard library only. Any thread; nothing here throws but what std::vector does.
//
// Glossary (docs/glossary.md has the long form)
//   block     a page of the pool: `block_size` slots of keys and values, for the layers of one group
//   slot      the place of one token's keys and values: block id * block_size + offset in the block
//   group     layers that must remember the same positions (all, or a sliding window) and fit into one page
//   state     what recurrent layers remember of a prefix: a unit of `state_pages` pages, whose ids need not be adjacent
//   table     a sequence's blocks of one group, by absolute position: entry i holds [i * bs, (i + 1) * bs)
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "check/assert.h"

namespace coppice::kv {

/// A vocabulary id. What the tree knows is a Symbol (kv/text.h): a token, or a piece of a medium.
using Token = std::int32_t;

/// Names contents: equal digests mean equal contents, in this process and in any other.
using Digest = std::array<std::uint8_t, 32>;

/// Index of a block in the pool. Block 0 is the null block: zeroed, never written, never allocated.
using BlockId = std::int32_t;
inline constexpr BlockId kNullBlock = 0;

/// block id * block_size + offset. 64 bits: a pool may hold more than 2^31 slots.
using Slot = std::int64_t;

enum class GroupKind : std::uint8_t {
  kFull,       ///< every position is remembered, whether the window holds it or not
  kSliding,    ///< what left the window is forgotten
  kRecurrent,  ///< a state of fixed size stands for all positions so far: it has no blocks and no table
};

/// Rows of a sequence that see each other both ways, as pieces of a picture do in some models: positions [begin, end).
/// A window hides what lies too far back of them, too.
struct BothWays {
  std::int32_t begin = 0, end = 0;
  friend bool operator==(const BothWays&, const BothWays&) = default;
};

/// The end of what a query at `position` sees. both_ways: of its sequence, ascending, apart.
inline std::int64_t end_visible(std::int64_t position, std::span<const BothWays> both_ways) {
  const auto around = std::ranges::upper_bound(both_ways, position, {}, &BothWays::end);
  return around != both_ways.end() && around->begin <= position ? around->end : position + 1;
}

/// What one group of layers must remember. A model has at most one recurrent group; it comes last, behind all that have
/// tables. Layers with one window that don't fit into a page form several groups.
struct GroupSpec {
  GroupKind kind = GroupKind::kFull;
  int window = 0;                   ///< tokens that a query sees, itself included; 0: all
  std::vector<int> layers;          ///< model layers of this group, in the order in which they lie in a page
  std::size_t bytes_per_token = 0;  ///< keys and values of one token over this group's layers; kRecurrent: 0
  /// The window doesn't end at the query: it is the one of [0, window), [window, 2 * window), ... that the query lies
  /// in.
  bool chunked = false;
  int state_pages = 0;  ///< kRecurrent: pages of one state; else 0
  /// A query sees nothing behind it, also where its row and others see each other in other groups.
  bool causal = false;

  // Positions are counted from 0, in tokens. REQUIRES: none is negative.

  /// The first position that a query at `position` sees.
  std::int64_t first_visible(std::int64_t position) const {
    if (window == 0) return 0;
    return chunked ? position / window * window : std::max<std::int64_t>(0, position - window + 1);
  }
  /// The end of what a query at `position` sees. both_ways: of its sequence.
  std::int64_t end_visible(std::int64_t position, std::span<const BothWays> both_ways) const {
    return causal ? position + 1 : kv::end_visible(position, both_ways);
  }
  /// The first position that a sequence of `len` tokens still needs: its next query is at `len`. A match of this length
  /// must have it and all behind it. At the border of two chunks that is nothing.
  std::int32_t first_needed(std::int32_t len) const {
    return kind == GroupKind::kFull ? 0 : static_cast<std::int32_t>(first_visible(len));
  }
  /// The first position that a sequence of `len` tokens keeps of what it computed: what its last token saw. A request
  /// of the same text computes that token again (Cache::admit()), and needs its window: one position more than
  /// first_needed(len) says, or at the border of two chunks a whole chunk, until the next token is there.
  std::int32_t first_kept(std::int32_t len) const { return len == 0 ? 0 : first_needed(len - 1); }
  /// Whether both keep the same positions of every sequence.
  bool keeps_as(const GroupSpec& other) const {
    return kind == other.kind && window == other.window && chunked == other.chunked;
  }
};

/// How many groups have tables: all but the recurrent one.
inline std::size_t n_table_groups(std::span<const GroupSpec> groups) {
  return groups.size() - (!groups.empty() && groups.back().kind == GroupKind::kRecurrent ? 1 : 0);
}

/// What happens to the bytes of a block, in each layer of its group. kv plans copies, the data half of a fork; stores
/// and loads are for a second place that keeps what the pool gives up. These move whole blocks, and pages of states.
///
/// A step's operations are run in list order, before the step's first write. Contents change only inside a step, so
/// running them there equals running each at the moment it was planned: a source that was freed, or a destination that
/// was reused, between planning and running corrupts nothing (docs/decisions.md, "Copies in order").
struct BlockOp {
  enum class Kind : std::uint8_t {
    kCopy,   ///< slots [0, n_slots) of block `src` to those of block `dst`
    kStore,  ///< all of block `src`, or of a page of a state, to `outside`
    kLoad,   ///< all of `dst` from `outside`
  };
  Kind kind = Kind::kCopy;
  BlockId src = kNullBlock;   ///< is read; kLoad: unused
  BlockId dst = kNullBlock;   ///< is written; kStore: unused
  int n_slots = 0;            ///< kCopy: 1 to block_size
  int group = 0;              ///< of which layers: an index into the executor's groups
  std::uint64_t outside = 0;  ///< kStore, kLoad: an index into executor::Batch::outside
  friend bool operator==(const BlockOp&, const BlockOp&) = default;
};

/// A sequence's blocks of one group: blocks[i] has the positions [i * block_size, (i + 1) * block_size) of the
/// sequence. Entries that left a sliding window are kNullBlock. Valid until the next call that changes the sequence.
struct TableView {
  std::span<const BlockId> blocks;
  int block_size = 0;  ///< tokens

  /// REQUIRES: 0 <= position < blocks.size() * block_size.
  Slot slot(std::int64_t position) const {
    COPPICE_ASSERT(position >= 0 && position / block_size < std::ssize(blocks));
    return Slot{blocks[static_cast<std::size_t>(position / block_size)]} * block_size + position % block_size;
  }
};

}  // namespace coppice::kv
