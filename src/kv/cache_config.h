// CacheConfig: what a cache is made of, and the block arithmetic that follows from it. Plain data.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kv/digest.h"
#include "kv/types.h"

namespace coppice::kv {

struct CacheConfig {
  int block_size = 32;              ///< 8, 16, 32 or 64 (2 in tests)
  std::int32_t num_blocks = 0;      ///< the null block included
  std::size_t bytes_per_block = 0;  ///< for the figures
  std::vector<GroupSpec> groups;    ///< group 0 must be kFull. A recurrent one comes last: checked() takes it away
  int state_pages = 0;              ///< set by checked(): pages of one state of the recurrent layers; 0: there are none
  std::int32_t state_stride = 0;    ///< tokens from one kept state to the next, whole blocks; 0: checked() chooses
  /// The most slots of a sequence that are not published: a step's prefill chunk; of two steps where they overlap.
  std::int32_t max_extend = 512;
  /// Whoever is past its prompt keeps a state at its last whole block, too: what is kept outside of the pool ends with
  /// whole blocks. It takes a state more for each sequence, where there is room.
  bool keep_ends = false;
  bool share = true;   ///< false: no tree; the pool and everything else stays
  std::string model;   ///< digest of the model; part of every block's identity
  std::string layout;  ///< how bytes lie in a block; part of every block's identity
  HashFn hash = sha256;

  int n_groups() const { return static_cast<int>(groups.size()); }
  std::int32_t blocks_for(std::int32_t tokens) const { return (tokens + block_size - 1) / block_size; }

  /// The first block of group `g` that a match of `len` tokens must have, and that a sequence takes of it.
  std::int32_t first_needed_block(int g, std::int32_t len) const { return groups[g].first_needed(len) / block_size; }
  /// The first block of group `g` that a sequence keeps which has computed `len` tokens. What lies before has left the
  /// window.
  std::int32_t first_kept_block(int g, std::int32_t len) const { return groups[g].first_kept(len) / block_size; }

  /// The most blocks of a group that a sequence holds at once while its prompt is prefilled up to `blocks` blocks.
  std::int32_t most_held(const GroupSpec& group, std::int32_t blocks) const {
    if (group.kind == GroupKind::kFull) return blocks;
    // Steps in hand write max_extend tokens while the window before them is still read; both ends may lie inside a
    // block.
    return std::min(blocks, blocks_for(group.window + max_extend) + 1);
  }

  /// What is reserved for each sample beyond the prompt: a growth block and a fork block in each group, and a state to
  /// write.
  std::int32_t spare_blocks() const { return 2 * n_groups() + state_pages; }
  /// For all samples: when they part each writes a state of its own, and the prompt's is still read.
  std::int32_t spare_blocks_of(int n_samples) const {
    return n_samples * spare_blocks() + (n_samples > 1 ? state_pages : 0);
  }

  /// Blocks that a prompt needs at the very least, with nothing cached and nobody else about.
  std::int64_t blocks_needed(std::int32_t prompt_len, int n_samples) const {
    std::int64_t sum = spare_blocks_of(n_samples);
    for (const GroupSpec& group : groups) sum += most_held(group, blocks_for(prompt_len));
    return sum;
  }
};

/// The config, its recurrent group turned into state_pages and state_stride. Throws std::invalid_argument when it makes
/// no sense.
CacheConfig checked(CacheConfig config);

}  // namespace coppice::kv
