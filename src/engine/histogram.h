// Histogram: how often a figure fell below each of some bounds. Plain data, copied with the snapshot: the engine's
// thread counts, the server's thread turns it into Prometheus' form.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace coppice::engine {

/// Upper bounds, seconds: of a request's waits, and of what happens once a token.
inline constexpr std::array kRequestBounds = {0.005, 0.01, 0.025, 0.05, 0.1,  0.25, 0.5,
                                              1.0,   2.5,  5.0,   10.0, 30.0, 60.0, 120.0};
inline constexpr std::array kTokenBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5};

class Histogram {
 public:
  /// `bounds`: ascending, at most kMaxBounds, constants of the program.
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds) {}

  void add(double x) {
    ++counts_[static_cast<std::size_t>(std::ranges::lower_bound(bounds_, x) - bounds_.begin())];
    sum_ += x;
  }

  std::span<const double> bounds() const { return bounds_; }
  /// [bounds + 1]: how many are <= bound i and above the one before; the last: above all.
  std::span<const std::int64_t> counts() const { return std::span(counts_).first(bounds_.size() + 1); }
  double sum() const { return sum_; }

  static constexpr std::size_t kMaxBounds = 15;

 private:
  std::span<const double> bounds_;
  std::array<std::int64_t, kMaxBounds + 1> counts_{};
  double sum_ = 0;
};

}  // namespace coppice::engine
