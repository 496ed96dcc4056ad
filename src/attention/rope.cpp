#include "attention/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace coppice::attention {

namespace {

/// The pair, any number, that turns so many times in YaRN's original context.
double pair_of(double turns, const RopeShape& r) {
  return r.dims * std::log(r.yarn->original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(r.base));
}

/// How much of a pair's angle is scaled: 0 to 1.
double scaled_share(int pair, const RopeShape& r) {
  if (!r.yarn) return 1;
  double first = pair_of(r.yarn->beta_fast, r), last = pair_of(r.yarn->beta_slow, r);
  if (r.yarn->whole_pairs) first = std::floor(first), last = std::ceil(last);
  first = std::max(0.0, first), last = std::min(r.dims - 1.0, last);
  return std::clamp((pair - first) / std::max(0.001, last - first), 0.0, 1.0);
}

/// Where parts take turns, one that has used up its pairs leaves its turn to the first (Qwen3-VL).
std::uint8_t axis_of(int pair, const RopeShape& r) {
  const auto& [time, height, width] = r.sections;
  if (!r.interleaved) return pair < time ? 0 : pair < time + height ? 1 : 2;
  const int axis = pair % 3;
  return pair < 3 * r.sections[static_cast<std::size_t>(axis)] ? static_cast<std::uint8_t>(axis) : 0;
}

}  // namespace

Rope::Rope(const RopeShape& shape) : halves_(shape.halves), base_(shape.base), magnitude_(shape.magnitude) {
  for (int i = 0; i < shape.dims / 2; ++i) {
    const double factor = shape.factors.empty() ? 1.0 : shape.factors[static_cast<std::size_t>(i)];
    const double scaled = scaled_share(i, shape);
    if (shape.sections[1] > 0) axes_.push_back(axis_of(i, shape));
    angles_.push_back((shape.scale * scaled + (1 - scaled)) / (std::pow(shape.base, 2.0 * i / shape.dims) * factor));
  }
}

void Rope::turn(const RopeAxes& position, float* to) const {
  float* others = to + dims();
  const std::size_t n = angles_.size();
  for (std::size_t i = 0; i < n; ++i) {
    const double angle = position[axes_.empty() ? 0 : axes_[i]] * angles_[i];
    const auto c = static_cast<float>(magnitude_ * std::cos(angle)),
               s = static_cast<float>(magnitude_ * std::sin(angle));
    const std::size_t one = halves_ ? i : 2 * i, other = halves_ ? i + n : 2 * i + 1;
    to[one] = to[other] = c;
    others[one] = -s;
    others[other] = s;
  }
}

}  // namespace coppice::attention
