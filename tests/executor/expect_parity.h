// Whether rows of logits are those of another implementation.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>

#include "support/executor_rig.h"
#include "support/sanitized.h"

namespace coppice::test {

/// How much more libllama's rounding costs: for 64-bit ARM without scalable vectors it adds products of f16 in f16.
inline constexpr double kLibllamasRounding = kEmulated ? 4 : 1;

/// On f32 weights: a row is far off when a key, a norm or an angle is wrong; f16 keys and values cost some 1e-3.
inline void expect_parity(std::span<const Row> rows, std::span<const Row> expected) {
  ASSERT_EQ(rows.size(), expected.size());
  double sum = 0, worst = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double d = relative_rms(rows[i], expected[i]);
    sum += d;
    worst = std::max(worst, d);
  }
  const double mean = sum / static_cast<double>(rows.size());
  testing::Test::RecordProperty("mean", fmt::format("{:.2e}", mean));
  testing::Test::RecordProperty("worst", fmt::format("{:.2e}", worst));
  EXPECT_LT(mean, 2e-3 * kLibllamasRounding);
  EXPECT_LT(worst, 1e-2 * kLibllamasRounding);
}

}  // namespace coppice::test
