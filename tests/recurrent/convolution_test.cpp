// Convolutions along a sequence on every instruction set, in parts of any size, against the sum that defines them.
#include "recurrent/convolution.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "support/normal.h"
#include "support/simd_targets.h"

namespace coppice::recurrent {
namespace {

constexpr int kChannels = 80, kRows = 23;

struct Problem {
  Problem(ConvForm f, int t, bool with_bias, std::mt19937& random) : form(f), taps(t), biased(with_bias) {
    test::Normal normal;
    for (std::vector<float>* values : {&x, &weights, &bias, &before}) {
      values->resize(static_cast<std::size_t>(kRows) * kChannels * 3);
      std::ranges::generate(*values, [&] { return normal(random); });
    }
  }
  int stride() const { return form == ConvForm::kGated ? 3 * kChannels : kChannels; }
  /// What the convolution reads at a row, from -3 on.
  double input(int row, int c, bool with_state) const {
    if (row < 0) return with_state ? before[static_cast<std::size_t>((row + taps - 1) * kChannels + c)] : 0.0;
    const float* at = x.data() + std::ptrdiff_t{row} * stride() + c;
    return form == ConvForm::kGated ? double{at[0]} * at[std::ptrdiff_t{2} * kChannels] : at[0];
  }
  double expected(int row, int c, bool with_state) const {
    double sum = biased ? bias[static_cast<std::size_t>(c)] : 0.0;
    for (int i = 0; i < taps; ++i) {
      sum += double{weights[static_cast<std::size_t>(c * taps + i)]} * input(row - taps + 1 + i, c, with_state);
    }
    if (form == ConvForm::kGated) return sum * x[static_cast<std::size_t>(row * stride() + kChannels + c)];
    return sum / (1 + std::exp(-sum));
  }

  ConvForm form;
  int taps;
  bool biased;
  std::vector<float> x, weights, bias, before;
};

class ConvolutionTest : public test::EachSimdTarget {};

INSTANTIATE_TEST_SUITE_P(Simd, ConvolutionTest, testing::ValuesIn(test::simd_targets()), test::simd_target_name);

/// Rows in parts of `size`, channels in two ranges; the state is written over where it is not the first part.
void expect_rows(const Problem& p, bool with_state, int size) {
  std::vector<float> y(static_cast<std::size_t>(kRows) * kChannels),
      state(static_cast<std::size_t>(p.taps - 1) * kChannels);
  for (int first = 0; first < kRows; first += size) {
    const float* before = first > 0 ? state.data() : with_state ? p.before.data() : nullptr;
    const ConvRows rows{.form = p.form,
                        .n_taps = p.taps,
                        .n_channels = kChannels,
                        .n = std::min(size, kRows - first),
                        .x = p.x.data() + std::ptrdiff_t{first} * p.stride(),
                        .weights = p.weights.data(),
                        .bias = p.biased ? p.bias.data() : nullptr,
                        .before = before,
                        .after = state.data(),
                        .y = y.data() + std::ptrdiff_t{first} * kChannels};
    convolve(rows, 0, 48);
    convolve(rows, 48, kChannels);
  }
  for (int row = 0; row < kRows; ++row) {
    for (int c = 0; c < kChannels; ++c) {
      ASSERT_NEAR(y[static_cast<std::size_t>(row * kChannels + c)], p.expected(row, c, with_state), 2e-5)
          << "row " << row << ", channel " << c;
    }
  }
  for (int i = 0; i < p.taps - 1; ++i) {
    for (int c = 0; c < kChannels; ++c) {
      ASSERT_FLOAT_EQ(state[static_cast<std::size_t>(i * kChannels + c)],
                      static_cast<float>(p.input(kRows - p.taps + 1 + i, c, with_state)));
    }
  }
}

TEST_P(ConvolutionTest, RowsInPartsOfAnySizeAreTheirSums) {
  std::mt19937 random(4);
  for (const ConvForm form : {ConvForm::kSilu, ConvForm::kGated}) {
    for (const int taps : {2, 3, 4}) {
      for (const bool biased : {false, true}) {
        const Problem p(form, taps, biased, random);
        for (const bool with_state : {false, true}) {
          for (const int size : {1, 2, 5, kRows}) expect_rows(p, with_state, size);
        }
      }
    }
  }
}

}  // namespace
}  // namespace coppice::recurrent
