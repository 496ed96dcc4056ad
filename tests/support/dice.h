// Dice: random choices of a test, replayed by their seed.
#pragma once

#include <cstdint>
#include <iterator>
#include <random>

namespace coppice::test {

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n)); }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <class C>
  auto& one_of(C& c) {
    return *std::next(c.begin(), below(static_cast<std::int64_t>(c.size())));
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace coppice::test
