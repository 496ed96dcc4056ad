// The GPU's packed order, without one: each weight is where quant_pack.h says, read here lane by lane.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "matmul/cuda/quant_pack.h"
#include "quant_weights.h"
#include "support/attention_cases.h"

namespace coppice::matmul::cuda {
namespace {

double half_at(const std::byte* from) {
  _Float16 x;
  std::memcpy(&x, from, sizeof x);
  return static_cast<double>(x);
}
std::uint32_t word_at(const std::byte* from) {
  std::uint32_t x = 0;
  std::memcpy(&x, from, sizeof x);
  return x;
}

/// q - zero of input k of a chunk and output `out` of its tile, from the lane that has it.
int number_at(QuantType type, const std::byte* chunk, int k, int out) {
  const ChunkForm form = chunk_form(type);
  const int lane = out % 8 * 4 + k % 8 / 2, word = k % 32 / 16 * 2 + out / 8, block = k / 32 % 2;
  const int byte = k % 16 / 8 * 2 + k % 2, first_bit = byte * 8;  // in a word
  if (type == QuantType::kQ8_0) return static_cast<std::int8_t>(chunk[(block * 32 + lane) * 16 + word * 4 + byte]);
  const std::byte* low = chunk + (k / 64 * 32 + lane) * 16;
  if (type == QuantType::kMxfp4) {
    constexpr int kTwice[] = {0, 1, 2, 3, 4, 6, 8, 12};
    const std::uint32_t code = word_at(low + word * 4) >> (byte * 4 + 16 * block) & 15;
    return code < 8 ? kTwice[code] : -kTwice[code - 8];
  }
  int q = static_cast<int>(word_at(low + word * 4) >> (first_bit + 4 * block) & 15);
  const std::byte* high = chunk + form.high_at() + lane * 16;
  if (type == QuantType::kQ5K)
    q |= static_cast<int>(word_at(high + k / 64 * 4) >> (first_bit + 4 * block + word) & 1) << 4;
  if (type == QuantType::kQ6K) {
    high += k / 128 * 512 + k / 64 % 2 * 8 + block * 4;
    q |= static_cast<int>(word_at(high) >> (first_bit + 2 * word) & 3) << 4;
  }
  return q - (type == QuantType::kQ4_0 ? 8 : type == QuantType::kQ6K ? 32 : 0);
}

/// What number q at (k, out) stands for.
double weight_at(QuantType type, const std::byte* chunk, int k, int out) {
  const ChunkForm form = chunk_form(type);
  if (type == QuantType::kBf16) {  // registers: two inputs of both outputs, then those from 8 on
    const int at = out % 8 * 16 + k % 8 / 2 * 4 + k % 16 / 8 * 2 + out / 8;
    return std::bit_cast<float>(word_at(chunk + k / 16 * 512 + at * 4) >> (k % 2 * 16) << 16);
  }
  const int q = number_at(type, chunk, k, out);
  const std::byte *scales = chunk + form.scales_at() + out * 16, *deltas = chunk + form.deltas_at();
  if (type == QuantType::kMxfp4) return std::ldexp(q, std::to_integer<int>(deltas[k / 32 * 16 + out]) - 128);
  if (form.inputs == 64) return half_at(deltas + (k / 32 * 16 + out) * 2) * q;
  if (type == QuantType::kQ6K) return half_at(deltas + out * 2) * static_cast<std::int8_t>(scales[k / 16]) * q;
  return half_at(deltas + out * 4) * static_cast<int>(scales[k / 32]) * q +
         half_at(deltas + out * 4 + 2) * static_cast<int>(scales[8 + k / 32]);
}

TEST(CudaPack, HoldsEveryWeight) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(test::test_seed()));
  for (const QuantType type : {QuantType::kQ4_0, QuantType::kQ8_0, QuantType::kQ4K, QuantType::kQ5K, QuantType::kQ6K,
                               QuantType::kMxfp4, QuantType::kBf16}) {
    const int n_in = 768, n_out = 16 + static_cast<int>(random() % 40);
    const test::QuantWeights w = test::random_weights(type, n_in, n_out, random);
    const std::vector<std::byte> packed = pack(type, n_in, n_out, w.bytes);
    const ChunkForm form = chunk_form(type);
    const int chunks = n_in / form.inputs;
    ASSERT_EQ(std::ssize(packed), (n_out + 15) / 16 * chunks * form.bytes());
    for (int out = 0; out < n_out; ++out) {
      for (int k = 0; k < n_in; ++k) {
        const std::byte* chunk = packed.data() + (out / 16 * chunks + k / form.inputs) * form.bytes();
        const test::Weight& expected = w.weights[static_cast<std::size_t>(out * n_in + k)];
        ASSERT_EQ(weight_at(type, chunk, k % form.inputs, out % 16), expected.scaled() + expected.offset())
            << "type " << static_cast<int>(type) << ", output " << out << ", input " << k;
      }
    }
  }
}

/// So a lane that has output i of a tile's first half has output i of its other half, too.
TEST(CudaPack, PairsAreTilesOfEightAndEight) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(test::test_seed()));
  for (const QuantType type : {QuantType::kQ4K, QuantType::kMxfp4, QuantType::kBf16}) {
    const int n_in = 256, n = 40, chunks = n_in / chunk_form(type).inputs;
    const test::QuantWeights gate = test::random_weights(type, n_in, n, random),
                             up = test::random_weights(type, n_in, n, random);
    const std::vector<std::byte> packed = pack_pairs(type, n_in, n, gate.bytes, up.bytes);
    ASSERT_EQ(std::ssize(packed), n / 8 * chunks * chunk_form(type).bytes());
    for (int i = 0; i < n; ++i) {
      for (const bool of_up : {false, true}) {
        for (int k = 0; k < n_in; ++k) {
          const std::byte* chunk =
              packed.data() + (i / 8 * chunks + k / chunk_form(type).inputs) * chunk_form(type).bytes();
          const test::Weight& expected = (of_up ? up : gate).weights[static_cast<std::size_t>(i * n_in + k)];
          ASSERT_EQ(weight_at(type, chunk, k % chunk_form(type).inputs, i % 8 + (of_up ? 8 : 0)),
                    expected.scaled() + expected.offset())
              << "type " << static_cast<int>(type) << ", output " << i << ", input " << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace coppice::matmul::cuda
