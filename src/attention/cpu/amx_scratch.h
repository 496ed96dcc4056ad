// What tiles of many queries need in memory where AMX multiplies them (amx_heads-inl.h).
#pragma once

#include <hwy/aligned_allocator.h>

#include <cstddef>
#include <cstdint>

#include "attention/layout.h"

namespace coppice::attention {

/// A worker's memory for one tile at a time. Matrices consist of AMX tiles: 16 rows of 64 bytes, which are 16 f32, or
/// 32 bf16 or 16 pairs of them. A number is the sum of two parts, a high and a low bf16. Heads are filled up with
/// zeros.
class AmxScratch {
 public:
  static constexpr int kColumn = 16;                 ///< queries whose products are one AMX tile wide
  static constexpr int kFew = 3;                     ///< columns, whose tiles are of another kind (amx_few-inl.h)
  static constexpr int kTogether = 2;                ///< columns for which AMX tiles of keys and values are loaded once
  static constexpr int kMaxColumns = 32;             ///< of all key heads that are computed at a time; at least one's
  static constexpr int kStretch = 128;               ///< of blocks that follow each other: weighed together
  static constexpr int kStep = 32;                   ///< values, or slots, that one AMX instruction sums up
  static constexpr int kParts = 2, kTileSize = 512;  ///< bf16

  explicit AmxScratch(const HeadShape& heads);

  /// [column][step][part]: rows of pairs of values, 16 queries wide.
  std::uint16_t* queries(int column, int step) {
    return queries_.get() + (column * steps_ + step) * kParts * kTileSize;
  }
  /// [16 slots][step][part]: rows of 32 values, one for each slot.
  std::uint16_t* keys(int slots16, int step) { return keys_.get() + (slots16 * steps_ + step) * kParts * kTileSize; }
  /// [32 slots][16 values][part]: rows of 32 slots, one for each value. Of few columns: rows of pairs of slots, 16
  /// values wide.
  std::uint16_t* values(int slots32, int values16) {
    return values_.get() + (slots32 * 2 * steps_ + values16) * kParts * kTileSize;
  }
  /// [2: groups of columns take turns][kTogether][32 slots]: [32][16 queries]
  float* scores(int buffer, int i, int slots32) {
    return scores_.get() + ((buffer * kTogether + i) * kStretch + slots32 * kStep) * kColumn;
  }
  /// In the same place: rows of pairs of slots, 16 queries wide, each row's high part before its low one.
  std::uint16_t* weights(int buffer, int i, int slots32) {
    return reinterpret_cast<std::uint16_t*>(scores(buffer, i, slots32));
  }

  /// Of few columns: [kFew][32 slots][part]: rows of 32 slots, one for each query.
  std::uint16_t* few_weights(int i, int slots32) {
    return weights_.get() + (i * (kStretch / kStep) + slots32) * kParts * kTileSize;
  }
  float* few_scores(int i) { return scores_.get() + i * kStretch * kColumn; }  ///< [kFew][kStretch][16 queries]
  float* sums(int i) { return sums_.get() + i * kColumn * padded(); }  ///< [kFew][16 values][16 queries][16 values]

  float* query(int i) { return query_.get() + i * padded(); }  ///< [16][padded()]: a column's, still f32
  float* acc(int column) {
    return acc_.get() + std::ptrdiff_t{column} * kColumn * padded();
  }  ///< [padded()][16]; few: [16][padded()]
  float* max(int column) { return max_ + column * kColumn; }
  float* sum(int column) { return sum_ + column * kColumn; }
  std::int32_t* lo(int column) { return lo_ + column * kColumn; }  ///< of a head's columns
  std::int32_t* hi(int column) { return hi_ + column * kColumn; }
  float* key_scales() { return key_scales_; }  ///< [kStretch]; of formats that have some
  float* value_scales() { return value_scales_; }

  int steps() const { return steps_; }           ///< of a head's values
  int padded() const { return steps_ * kStep; }  ///< a head's values

 private:
  int steps_;
  hwy::AlignedFreeUniquePtr<std::uint16_t[]> queries_, keys_, values_, weights_;
  hwy::AlignedFreeUniquePtr<float[]> scores_, sums_, query_, acc_;
  alignas(64) float key_scales_[kStretch] = {}, value_scales_[kStretch] = {};
  alignas(64) float max_[kMaxColumns * kColumn] = {}, sum_[kMaxColumns * kColumn] = {};
  alignas(64) std::int32_t lo_[kMaxColumns * kColumn] = {}, hi_[kMaxColumns * kColumn] = {};
};

}  // namespace coppice::attention
