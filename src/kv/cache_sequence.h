// CacheSequence: what the cache knows of one running sample. Plain data; the rules are in cache.h.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "check/assert.h"
#include "kv/block_table.h"
#include "kv/digest.h"
#include "kv/state_table.h"
#include "kv/text.h"
#include "kv/types.h"

namespace coppice::kv {

/// Names a sequence in the cache. Never reused.
enum class SeqId : std::uint64_t {};

/// The states of a sequence whose model has recurrent layers.
struct SequenceStates {
  StateRef now;                     // at computed_len; none at 0
  StateRef next;                    // that the step in hand writes; none: it writes `now` in place, or there is no step
  std::int32_t promised = 0;        // of `next`'s pages: those taken from the reservation
  std::int32_t growth_reserve = 0;  // ... and of these, from `CacheSequence::growth_reserve`
  BlockId end = kNullBlock;  // CacheConfig::keep_ends: where the last such state stands; no other is kept for this
  std::vector<std::int32_t> kept;  // positions where a state is to be kept besides every stride, whole blocks
};

struct CacheSequence {
  // First what each step looks at: nothing of it is in the processor's caches then.
  Text tokens;                             // computed
  std::vector<BlockTable> tables;          // [n_groups]
  std::vector<MediumSpan> prompt_media;    // all of them
  std::vector<std::int32_t> wanted_tails;  // positions inside of blocks where others wait for what is before
  std::int32_t cached_len = 0;
  std::int32_t len = 0;             // slots: those behind computed_len are of steps that are not published
  std::int32_t unpromised = 0;      // of the blocks that hold only these slots: those that no reservation paid for
  std::int32_t published = 0;       // the first so many blocks of the tables are the tree's
  std::int32_t prompt_blocks = 0;   // the reservation is for tables of this size
  std::int32_t reserved = 0;        // blocks promised, not allocated yet
  std::int32_t growth_reserve = 0;  // of `reserved`: kept for forks, growth and states, not for the prompt
  bool awaits = false;              // [computed_len, len) come from outside, by loads and not by steps: Cache::await()
  bool tail_forked = false;         // the first slots behind computed_len are in a fork whose copy may never run
  SequenceStates states;
  Namespace ns;

  std::int32_t computed_len() const { return static_cast<std::int32_t>(tokens.size()); }
  bool may_be_cut(std::int32_t at) const { return cuts(prompt_media, at).before == at; }

  /// A second sequence on the same tokens and blocks: one more reference on each, no reservation. Copies no keys.
  /// REQUIRES: len == computed_len.
  CacheSequence share() const {
    COPPICE_ASSERT(len == computed_len());
    CacheSequence copy{
        .tokens = tokens,
        .tables = {},
        .prompt_media = prompt_media,
        .wanted_tails = {},
        .cached_len = cached_len,
        .len = len,
        .published = published,
        .prompt_blocks = prompt_blocks,
        .states =
            {.now = states.now.share(), .next = {}, .promised = 0, .growth_reserve = 0, .end = kNullBlock, .kept = {}},
        .ns = ns};
    for (const BlockTable& table : tables) copy.tables.push_back(table.share());
    return copy;
  }
};

using Sequences = std::unordered_map<SeqId, CacheSequence>;

}  // namespace coppice::kv
