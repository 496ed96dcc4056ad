#include "attention/cpu/rope.h"

#include <cmath>

namespace coppice::attention {

Rope::Rope(int dims, double base, double scale, std::span<const float> factors) {
  for (int i = 0; i < dims; i += 2) {
    const double factor = factors.empty() ? 1.0 : factors[static_cast<std::size_t>(i / 2)];
    angles_.push_back(scale / (std::pow(base, static_cast<double>(i) / dims) * factor));
  }
}

void Rope::turn(int position, float* to) const {
  float* others = to + dims();
  for (const double angle : angles_) {
    const auto c = static_cast<float>(std::cos(position * angle)), s = static_cast<float>(std::sin(position * angle));
    *to++ = c;
    *to++ = c;
    *others++ = -s;
    *others++ = s;
  }
}

}  // namespace coppice::attention
