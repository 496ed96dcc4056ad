#include "attention/plan/state.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace coppice::attention {

void empty(StateRef state) {
  state.max = -std::numeric_limits<float>::infinity();
  state.sum = 0.0F;
  std::ranges::fill(state.acc, 0.0F);
}

/// By its sum: a state whose scores were all -inf has seen nothing either.
bool is_empty(ConstStateRef state) {
  return state.sum == 0.0F;
}

void merge(StateRef into, ConstStateRef part) {
  if (is_empty({into.max, into.sum, into.acc})) {  // below, -inf - -inf would be NaN
    into.max = part.max;
    into.sum = part.sum;
    std::ranges::copy(part.acc, into.acc.begin());
    return;
  }
  const float max = std::max(into.max, part.max);
  const float a = std::exp(into.max - max), b = std::exp(part.max - max);
  into.max = max;
  into.sum = a * into.sum + b * part.sum;
  for (std::size_t d = 0; d < into.acc.size(); ++d) into.acc[d] = a * into.acc[d] + b * part.acc[d];
}

void normalise(ConstStateRef state, std::span<float> out) {
  const float scale = is_empty(state) ? 0.0F : 1.0F / state.sum;
  for (std::size_t d = 0; d < out.size(); ++d) out[d] = state.acc[d] * scale;
}

}  // namespace coppice::attention
