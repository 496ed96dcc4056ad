// Numbers that are normally distributed, by Marsaglia's polar method. They are those of libstdc++'s
// std::normal_distribution<float>, which asks for two logarithms in long double for each number that it takes from the
// generator: most of what a test of tiny models did.
#pragma once

#include <cmath>
#include <random>

namespace coppice::test {

class Normal {
 public:
  explicit Normal(float mean = 0.0F, float spread = 1.0F) : mean_(mean), spread_(spread) {}

  template <std::uniform_random_bit_generator Random>
  float operator()(Random& random) {
    const float number = left_ ? spare_ : draw(random);
    left_ = !left_;
    return number * spread_ + mean_;
  }

 private:
  /// One of two; the other is kept.
  template <typename Random>
  float draw(Random& random) {
    float x = 0, y = 0, square = 0;
    do {  // a point in the unit circle
      x = 2 * unit(random) - 1;
      y = 2 * unit(random) - 1;
      square = x * x + y * y;
    } while (square > 1 || square == 0);
    const float stretch = std::sqrt(-2 * std::log(square) / square);
    spare_ = x * stretch;
    return y * stretch;
  }

  /// From 0 to 1, without 1.
  template <typename Random>
  static float unit(Random& random) {
    static_assert(Random::min() == 0);
    constexpr float kEnd = static_cast<float>(Random::max());  // rounded to the power of two above
    const float share = static_cast<float>(random()) / kEnd;
    return share < 1 ? share : std::nextafter(1.0F, 0.0F);
  }

  float mean_, spread_, spare_ = 0;
  bool left_ = false;  ///< the spare one
};

}  // namespace coppice::test
