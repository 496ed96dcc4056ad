// One tile of tree attention: some rows over a stretch of blocks, some key heads. Compiled for each instruction set
// that the compiler knows; the best one is chosen at run time.
//
// A tile leaves a partial state for each of its rows and heads, {acc[head_dim], max, sum}: the largest scaled score,
// the sum of exp(score - max), and the values weighted by these exponentials. Softmax over a union of key sets follows
// from the states of its parts, whatever the split (log-sum-exp; Milakov & Gimelshein 2018, "Online normalizer
// calculation for softmax", section 3). A state that has seen no key is empty: acc 0, max -inf, sum 0.
#pragma once

#include <hwy/aligned_allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "attention/cpu/amx_scratch.h"
#include "attention/layout.h"
#include "attention/plan/share_plan.h"

namespace coppice::attention {

struct TileInput {
  HeadShape heads;
  PoolView pool;
  std::span<const kv::BlockId> blocks;
  std::span<const RowInterval> rows;  ///< intervals count from the run's first slot
  std::int32_t run_offset = 0;        ///< the tile's first slot, counted from its run's
  const float* q = nullptr;           ///< [all rows of the step][n_head][head_dim]
  float* states = nullptr;            ///< [rows][n_head][head_dim + 2]: acc, max, sum
  int first_kv_head = 0;              ///< key heads [first, first + n) are attended to
  int n_kv_heads = heads.n_kv_head;
};

/// A worker's memory for one tile at a time. FewTile and ManyTile share it and decide what lies where. Sizes are the
/// larger need: ManyTile holds up to kMaxQueries queries of one key head, FewTile less than kMaxLanes queries of each
/// key head.
class TileScratch {
 public:
  /// Bounds of a tile; the kernels' own vectors are at most kMaxLanes long.
  static constexpr int kMaxQueries = 256;  ///< rows * heads_per_kv; AMX: columns of AmxScratch
  static constexpr int kMaxLanes = 16;
  static constexpr int kMaxSlots = 64;   ///< of a block
  static constexpr int kKeysAtOnce = 8;  ///< keys of a block are padded to a multiple of at most this

  TileScratch(const HeadShape& heads, int block_size);

  float* queries() { return queries_.get(); }                     ///< a tile's queries, as the kernel wants them
  std::int16_t* whole_queries() { return whole_queries_.get(); }  ///< as many
  float* units() { return units_.get(); }                         ///< one for each query
  float* acc() { return acc_.get(); }                             ///< as many as queries
  float* max() { return max_.get(); }                             ///< [n_head * rows, padded]
  float* sum() { return sum_.get(); }
  float* keys() { return keys_.get(); }                         ///< [block_size][head_dim]
  float* values() { return values_.get(); }                     ///< [block_size][head_dim]
  float* scores() { return scores_.get(); }                     ///< [block_size][4 vectors]
  std::int32_t* query_pairs() { return query_pairs_.get(); }    ///< queries as pairs of 16-bit numbers: half as many
  std::int32_t* key_pairs() { return key_pairs_.get(); }        ///< [block_size][head_dim / 2]
  std::int32_t* value_pairs() { return value_pairs_.get(); }    ///< [block_size / 2][head_dim]
  float* key_units() { return key_units_.get(); }               ///< [block_size]
  float* value_units() { return value_units_.get(); }           ///< [block_size]
  std::int32_t* weight_pairs() { return weight_pairs_.get(); }  ///< [block_size / 2][4 vectors]
  std::int32_t* lo() { return lo_.get(); }                      ///< [kMaxQueries]
  std::int32_t* hi() { return hi_.get(); }
  AmxScratch* amx() { return amx_.get(); }  ///< nullptr: AMX wasn't in use when this was made

 private:
  hwy::AlignedFreeUniquePtr<float[]> queries_, units_, acc_, max_, sum_, keys_, values_, scores_, key_units_,
      value_units_;
  hwy::AlignedFreeUniquePtr<std::int16_t[]> whole_queries_;
  hwy::AlignedFreeUniquePtr<std::int32_t[]> query_pairs_, key_pairs_, value_pairs_, weight_pairs_, lo_, hi_;
  std::unique_ptr<AmxScratch> amx_;
};

/// Rows that a tile may have.
int max_tile_rows(const HeadShape& heads);

/// Computes a tile's partial states. Returns the bytes of keys and values loaded.
/// REQUIRES: 0 < rows <= max_tile_rows; head_dim is a multiple of 16; block_size a multiple of
/// TileScratch::kKeysAtOnce, at most kMaxSlots.
std::uint64_t attend_tile(const TileInput& tile, TileScratch& scratch);

/// out[n_head][head_dim] := the partial states of one row merged, normalised, and rotated back where the format
/// rotates. states: [all partials][n_head][head_dim + 2]; their order changes only rounding, empty ones change nothing,
/// and a row with no other gives zeros. sinks: [n_head], scores that weigh in the softmax and have no value; nullptr:
/// there are none.
void merge_row(const HeadShape& heads, KvFormat format, const float* states, std::span<const std::int32_t> partials,
               float* out, const float* sinks = nullptr);

}  // namespace coppice::attention
