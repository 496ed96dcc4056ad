// What packed matrices hold, against ggml, whose types they are: its quantiser writes the blocks, and its dequantiser
// says what they mean.
#include <fmt/format.h>
#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "matmul/quant_matrix.h"
#include "support/normal.h"

namespace coppice {
namespace {

using matmul::QuantMatrix;
using matmul::QuantType;

class QuantTypesTest : public testing::TestWithParam<std::pair<ggml_type, QuantType>> {};

INSTANTIATE_TEST_SUITE_P(
    Types, QuantTypesTest,
    testing::Values(std::pair{GGML_TYPE_Q4_0, QuantType::kQ4_0}, std::pair{GGML_TYPE_Q4_1, QuantType::kQ4_1},
                    std::pair{GGML_TYPE_Q5_0, QuantType::kQ5_0}, std::pair{GGML_TYPE_Q5_1, QuantType::kQ5_1},
                    std::pair{GGML_TYPE_Q8_0, QuantType::kQ8_0}, std::pair{GGML_TYPE_IQ4_NL, QuantType::kIq4Nl},
                    std::pair{GGML_TYPE_Q4_K, QuantType::kQ4K}, std::pair{GGML_TYPE_Q5_K, QuantType::kQ5K},
                    std::pair{GGML_TYPE_Q6_K, QuantType::kQ6K}, std::pair{GGML_TYPE_IQ4_XS, QuantType::kIq4Xs},
                    std::pair{GGML_TYPE_MXFP4, QuantType::kMxfp4}),
    [](const auto& info) { return ggml_type_name(info.param.first); });

/// Rows of one 1 each pick the weights one by one. Scales are of all sizes, and a block's numbers lean to one side.
TEST_P(QuantTypesTest, AreWhatGgmlReads) {
  if (!QuantMatrix::supported()) GTEST_SKIP() << "no instruction set of this CPU multiplies packed weights";
  const auto [theirs, ours] = GetParam();
  constexpr int kIn = 512, kOut = 37;
  constexpr std::size_t kCount = std::size_t{kIn} * kOut;
  const unsigned seed = 5;
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  test::Normal normal;
  std::vector<float> values(kCount), expected(kCount);
  for (std::size_t block = 0; block < kCount; block += 32) {
    const float mean = normal(random), size = std::exp(normal(random));
    for (std::size_t i = block; i < block + 32; ++i) values[i] = size * (mean + normal(random));
  }
  std::vector<std::byte> bytes(ggml_row_size(theirs, kIn) * kOut);
  ggml_quantize_chunk(theirs, values.data(), bytes.data(), 0, kOut, kIn, nullptr);
  ggml_get_type_traits(theirs)->to_float(bytes.data(), expected.data(), static_cast<std::int64_t>(kCount));

  const QuantMatrix packed(ours, kIn, kOut, bytes);
  std::vector<float> x(std::size_t{kIn} * kIn), y(kCount);
  for (std::size_t i = 0; i < kIn; ++i) x[i * kIn + i] = 1.0F;
  matmul::Claims claims;
  for (std::size_t first = 0; first < kIn; first += 8) {  // few enough for dot products of bytes, also where AMX is
    const QuantMatrix::Product product{&packed, y.data() + first * kOut};
    QuantMatrix::multiply({&product, 1}, {x.data() + first * kIn, 8}, claims, {});
  }
  const float one = 127.0F * static_cast<float>(static_cast<_Float16>(1.0F / 127.0F));  // as rows are rounded
  for (std::size_t o = 0; o < kOut; ++o) {
    for (std::size_t i = 0; i < kIn; ++i) {
      // Where a minimum is subtracted, the parts are larger than the weight.
      const float weight = expected[o * kIn + i], got = y[i * kOut + o] / one;
      ASSERT_NEAR(got, weight, 2e-6F * (std::abs(weight) + 4.0F)) << "output " << o << ", input " << i;
    }
  }
}

}  // namespace
}  // namespace coppice
