// The algebra of partial attention states: softmax over a union of key sets from states over its parts (log-sum-exp;
// Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", section 3). Scalar: what the tests of plans and
// schedules merge with. Kernels keep their own form in registers, and merge_row() (cpu/tile_kernel.h) all states of a row
// at once; they are tested against plain attention.
//
// A state of one (row, head) is {max, sum, acc[dim]}: max of the scaled scores, sum of exp(score - max), and the values
// weighted by these exponentials. merge() is associative and commutative up to rounding; empty() is its neutral
// element.
#pragma once

#include <span>

namespace coppice::attention {

struct StateRef {
  float& max;
  float& sum;
  std::span<float> acc;  ///< [dim]
};

struct ConstStateRef {
  float max;
  float sum;
  std::span<const float> acc;  ///< [dim]
};

/// Seen no key: max -inf, sum 0, acc 0.
void empty(StateRef state);
bool is_empty(ConstStateRef state);

/// into := into + part.
void merge(StateRef into, ConstStateRef part);

/// out[dim] := acc / sum; zeros for an empty state.
void normalise(ConstStateRef state, std::span<float> out);

}  // namespace coppice::attention
