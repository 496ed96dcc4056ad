// The codec of KV formats, on every instruction set: what it writes, the scalar reference reads; how near that comes to
// the values; and that it keeps inside a head's bytes.
#include "attention/cpu/kv_codec.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "attention/reference.h"
#include "support/normal.h"
#include "support/simd_targets.h"

namespace coppice::attention {
namespace {

constexpr int kDims[] = {16, 32, 64, 80, 96, 128, 256};

std::vector<double> read(KvFormat format, int dim, const std::vector<std::byte>& head) {
  const HeadShape heads{.n_head = 1, .n_kv_head = 1, .head_dim = dim};
  const PoolView pool{
      .format = format, .block_size = 1, .row_bytes = head.size(), .block_stride = head.size(), .keys = head.data()};
  return stored_head(heads, pool, pool.keys, 0, 0);
}

std::vector<std::byte> encoded(KvFormat format, const std::vector<float>& values) {
  const int dim = static_cast<int>(values.size());
  std::vector<std::byte> head(head_bytes(format, dim));
  encode_head(format, dim, values.data(), head.data());
  return head;
}

/// Root mean square of what is lost, relative to the values'.
double loss(KvFormat format, const std::vector<float>& values) {
  const auto back = read(format, static_cast<int>(values.size()), encoded(format, values));
  double lost = 0, all = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    lost += (back[i] - double{values[i]}) * (back[i] - double{values[i]});
    all += double{values[i]} * double{values[i]};
  }
  return std::sqrt(lost / all);
}

/// Of the mean over vectors. Without hardware for f16, Highway rounds to it towards zero.
double allowed(KvFormat format) {
  return format == KvFormat::kF16 ? 5e-4 : format == KvFormat::kInt8 ? 8e-3 : 0.11;
}

class KvCodecTest : public test::EachSimdTarget {
 protected:
  std::mt19937 random_{1};
  test::Normal normal_{0.0F, 1.0F};

  std::vector<float> vector(int dim) {
    std::vector<float> values(static_cast<std::size_t>(dim));
    for (float& v : values) v = normal_(random_);
    return values;
  }
};

INSTANTIATE_TEST_SUITE_P(Simd, KvCodecTest, testing::ValuesIn(test::simd_targets()), test::simd_target_name);

TEST_P(KvCodecTest, DecodesWhatTheReferenceDecodes) {
  for (const KvFormat format : kKvFormats) {
    for (const int dim : kDims) {
      const auto head = encoded(format, vector(dim));
      const auto expected = read(format, dim, head);
      std::vector<float> values(static_cast<std::size_t>(dim));
      decode_head(format, dim, head.data(), values.data());
      for (std::size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(values[i], expected[i], 1e-5) << format_name(format) << ", " << dim << ", " << i;
      }
    }
  }
}

TEST_P(KvCodecTest, LosesLittleWhateverTheSpread) {
  for (const KvFormat format : kKvFormats) {
    for (const int dim : kDims) {
      for (const float size : {0.01F, 1.0F, 100.0F}) {
        for (const float outlier : {1.0F, 50.0F}) {  // one channel as large as that, as in some models' keys
          double sum = 0;
          constexpr int kVectors = 20;
          for (int i = 0; i < kVectors; ++i) {
            auto values = vector(dim);
            for (float& v : values) v *= size;
            values[3] *= outlier;
            sum += loss(format, values);
          }
          EXPECT_LT(sum / kVectors, allowed(format))
              << format_name(format) << ", " << dim << ", " << size << ", " << outlier;
        }
      }
    }
  }
}

TEST_P(KvCodecTest, ZerosStayZerosAndTinyValuesFinite) {
  for (const KvFormat format : kKvFormats) {
    for (const float size : {0.0F, 1e-30F, 1e-7F}) {
      auto values = vector(64);
      for (float& v : values) v *= size;
      for (const double v : read(format, 64, encoded(format, values))) ASSERT_NEAR(v, 0.0, 1e-6);
    }
  }
}

TEST_P(KvCodecTest, WhatIsTooLargeBecomesTheLargestThereIs) {
  for (const KvFormat format : kKvFormats) {
    for (const int dim : kDims) {
      for (const float size : {1e6F, 1e30F, std::numeric_limits<float>::infinity()}) {
        auto values = vector(dim);
        for (float& v : values) v *= size;
        double lost = 0, all = 0;
        const auto back = read(format, dim, encoded(format, values));
        for (std::size_t i = 0; i < back.size(); ++i) {
          const double kept = std::clamp(double{values[i]}, -65504.0, 65504.0);
          lost += (back[i] - kept) * (back[i] - kept);
          all += kept * kept;
        }
        EXPECT_LT(std::sqrt(lost / all), format == KvFormat::kF16    ? 1e-3
                                         : format == KvFormat::kInt8 ? 0.05
                                                                     : 0.2)
            << format_name(format) << ", " << dim << ", " << size;
      }
    }
  }
}

TEST_P(KvCodecTest, WritesEveryByteOfTheHeadAndNoOther) {
  for (const KvFormat format : kKvFormats) {
    for (const int dim : kDims) {
      const auto values = vector(dim);
      const auto head = encoded(format, values);
      for (const auto before : {std::byte{0x00}, std::byte{0xff}}) {
        std::vector<std::byte> bytes(head.size() + 128, before);
        encode_head(format, dim, values.data(), bytes.data() + 64);
        EXPECT_TRUE(std::equal(head.begin(), head.end(), bytes.begin() + 64)) << format_name(format) << ", " << dim;
        const auto untouched = [&](std::byte b) { return b == before; };
        EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + 64, untouched)) << format_name(format) << ", " << dim;
        EXPECT_TRUE(std::all_of(bytes.end() - 64, bytes.end(), untouched)) << format_name(format) << ", " << dim;
      }
    }
  }
}

TEST(KvFormat, NamesAreFoundAgain) {
  for (const KvFormat format : kKvFormats) EXPECT_EQ(find_format(format_name(format)), format);
  EXPECT_EQ(find_format("q8_0"), std::nullopt);
}

}  // namespace
}  // namespace coppice::attention
