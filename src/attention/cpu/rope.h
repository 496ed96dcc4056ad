// Rope: rotary position embedding (RoFormer, Su et al. 2021, section 3.4.2). Pair i of a head, values 2 i and 2 i + 1, turns
// by position * scale / (base^(2 i / dims) * factor[i]).
//
// Immutable; any thread may use it.
#pragma once

#include <span>
#include <vector>

namespace coppice::attention {

class Rope {
 public:
  /// dims: of each head, from its start; the rest doesn't turn. factors: [dims / 2], or empty: all 1.
  /// REQUIRES: dims is even; base, scale and factors are positive.
  Rope(int dims, double base, double scale, std::span<const float> factors);

  int dims() const { return 2 * static_cast<int>(angles_.size()); }
  /// Floats of a turn.
  std::size_t turn_size() const { return 4 * angles_.size(); }

  /// What values at a position are multiplied by, and then what the pairs' other values are: [2, dims]. Their sum is the
  /// turned value.
  void turn(int position, float* to) const;

 private:
  std::vector<double> angles_;  ///< [dims / 2] of position 1
};

}  // namespace coppice::attention
