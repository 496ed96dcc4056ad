// The packed product against a scalar one in double precision, with weights decoded here, on every instruction set.
#include "matmul/quant_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <map>
#include <random>
#include <span>
#include <thread>
#include <tuple>
#include <vector>

#include "matmul/quant_weights.h"
#include "simd/target.h"
#include "support/normal.h"
#include "support/sanitized.h"

namespace coppice {
namespace {

using matmul::QuantMatrix;
using matmul::QuantType;
using test::QuantWeights;
using test::Weight;

constexpr int kBlock = QuantMatrix::kBlock;

/// Three matrices of the same x.
struct Case {
  std::array<QuantType, 3> types;
  int n_in, n_out, n_rows, n_workers;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  for (const QuantType type : c.types) out << "type " << static_cast<int>(type) << ", ";
  return out << c.n_in << " x " << c.n_out << ", " << c.n_rows << " rows, " << c.n_workers << " workers";
}

constexpr std::array kSmallBlocks = {QuantType::kQ4_0, QuantType::kQ4_1,  QuantType::kQ5_0, QuantType::kQ5_1,
                                     QuantType::kQ8_0, QuantType::kIq4Nl, QuantType::kMxfp4};
constexpr std::array kSuperBlocks = {QuantType::kQ4K, QuantType::kQ5K, QuantType::kQ6K, QuantType::kIq4Xs};

/// What a type subtracts from q, which isn't negative in the file.
int zero_of(QuantType type) {
  return type == QuantType::kQ4_0   ? 8
         : type == QuantType::kQ5_0 ? 16
         : type == QuantType::kQ6K  ? 32
         : type == QuantType::kQ8_0 ? 128
                                    : 0;
}

/// x rounded to 8 bits in blocks of 32, the scales to f16.
std::vector<double> rounded(const std::vector<float>& x) {
  std::vector<double> result(x.size());
  for (std::size_t block = 0; block < x.size(); block += kBlock) {
    float largest = 0.0F;
    for (std::size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::abs(x[block + i]));
    // _Float16 is the compiler's own type: independent of the kernel's conversion.
    const auto scale = static_cast<double>(static_cast<_Float16>(largest / 127.0F));
    const float inverse = largest > 0.0F ? 127.0F / largest : 0.0F;
    for (std::size_t i = 0; i < kBlock; ++i) {
      result[block + i] = scale * std::nearbyint(x[block + i] * inverse);
    }
  }
  return result;
}

/// What a kernel is to multiply: scaled + offset, and x.
struct Operands {
  std::vector<double> scaled, offsets, x;
};

/// In whole numbers.
Operands whole(const QuantWeights& matrix, const std::vector<float>& x) {
  Operands result{{}, {}, rounded(x)};
  for (const Weight& w : matrix.weights) {
    result.scaled.push_back(w.scaled());
    result.offsets.push_back(w.offset());
  }
  return result;
}

/// The bf16 that has a number's first bits, and the nearest one.
float cut(float value) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xFFFF0000);
}
float nearest(float value) {
  int exponent;
  const float fraction = std::frexp(value, &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

/// On AMX.
Operands cut_weights(QuantType type, const QuantWeights& matrix, const std::vector<float>& x) {
  constexpr float kLost = 1.0028F;
  Operands result{{}, std::vector<double>(matrix.weights.size()), {}};
  for (const Weight& w : matrix.weights) {
    const auto zero = static_cast<float>(zero_of(type));
    const float d = w.d * static_cast<float>(w.s) * kLost;
    const float m = zero > 0.0F ? d * -zero : w.m * static_cast<float>(w.t) * kLost;
    result.scaled.push_back(cut(std::fma(static_cast<float>(w.q) + zero, d, m)));
  }
  for (const float v : x) result.x.push_back(nearest(v));
  return result;
}

/// Rows as they are, and rows that normalising makes 1/2 of exactly: squares are 4 on average.
struct Rows {
  std::vector<float> x, even, norm, normalised;

  Rows(const Case& c, std::mt19937& random) {
    test::Normal normal(0.2F, 1.0F);
    const auto n_in = static_cast<std::size_t>(c.n_in), n = n_in * static_cast<std::size_t>(c.n_rows);
    for (std::size_t i = 0; i < n_in; ++i) norm.push_back(normal(random));
    std::array<float, 32> block{4, -4, 4, -4};
    for (std::size_t i = 4; i < 20; ++i) block[i] = i % 2 == 0 ? 2 : -2;
    for (std::size_t i = 0; i < n; ++i) {
      if (i % 32 == 0) std::ranges::shuffle(block, random);
      x.push_back(normal(random));
      even.push_back(block[i % 32]);
      normalised.push_back(even.back() * 0.5F * norm[i % n_in]);
    }
  }
  QuantMatrix::Rows of(bool normed, int n) const {
    if (!normed) return {x.data(), n};
    return {even.data(), n, norm.data(), 0.0F};
  }
};

/// What a product is to be, [row][output], and the sum of its terms' sizes. Slow: made once for all instruction sets.
struct Reference {
  std::vector<double> sums, sizes;

  Reference(const Case& c, const Operands& operands) {
    const auto n_in = static_cast<std::size_t>(c.n_in), n_out = static_cast<std::size_t>(c.n_out);
    for (std::size_t r = 0; r < static_cast<std::size_t>(c.n_rows); ++r) {
      for (std::size_t o = 0; o < n_out; ++o) {
        double sum = 0.0, size = 0.0;
        for (std::size_t i = 0; i < n_in; ++i) {
          const double scaled = operands.scaled[o * n_in + i] * operands.x[r * n_in + i];
          const double offset = operands.offsets[o * n_in + i] * operands.x[r * n_in + i];
          sum += scaled + offset;
          size += std::abs(scaled) + std::abs(offset);
        }
        sums.push_back(sum);
        sizes.push_back(size);
      }
    }
  }
};

/// A product's y, with numbers around it that must stay, and what it is added to.
class Outputs {
 public:
  Outputs(const Case& c, bool plus, std::mt19937& random)
      : y_(static_cast<std::size_t>(c.n_out) * static_cast<std::size_t>(c.n_rows) + 2 * kAround, kUntouched) {
    if (plus) std::generate_n(std::back_inserter(plus_), y_.size() - 2 * kAround, [&] { return random() % 100; });
  }
  QuantMatrix::Product product(const QuantMatrix& matrix) {
    return {&matrix, y_.data() + kAround, plus_.empty() ? nullptr : plus_.data()};
  }

  void check(const Reference& reference) const {
    for (std::size_t i = 0; i < reference.sums.size(); ++i) {
      const double plus = plus_.empty() ? 0.0 : plus_[i];
      ASSERT_NEAR(y_[kAround + i], reference.sums[i] + plus, 2e-6 * (reference.sizes[i] + std::abs(plus)))
          << "output " << i << " of all rows'";
    }
    check_around();
  }
  void check_gated(const Outputs& gates, const Outputs& ups) const {
    for (std::size_t i = kAround; i < y_.size() - kAround; ++i) {
      const double gate = gates.y_[i], up = ups.y_[i], expected = gate / (1.0 + std::exp(-gate)) * up;
      // Far out the kernel's exp() stops growing at 88.
      ASSERT_NEAR(y_[i], expected, 2e-5 * std::abs(expected) + 6.2e-39 * std::abs(gate * up))
          << gate << " gates " << up;
    }
    check_around();
  }
  void check_around() const {
    for (std::size_t i = 0; i < kAround; ++i) ASSERT_EQ(y_[i], kUntouched);
    for (std::size_t i = y_.size() - kAround; i < y_.size(); ++i) ASSERT_EQ(y_[i], kUntouched);
  }

 private:
  static constexpr std::size_t kAround = 1024;
  static constexpr float kUntouched = -7e30F;
  std::vector<float> y_, plus_;
};

/// Each type with others of its kind, and blocks of 32 and of 256 together, as files have them.
std::vector<std::array<QuantType, 3>> trios() {
  std::vector<std::array<QuantType, 3>> trios = {{QuantType::kQ4K, QuantType::kQ8_0, QuantType::kQ6K}};
  const auto add = [&](const auto& kind) {
    const std::size_t n = kind.size(), step = test::kEmulated ? 3 : 1;  // each type once or twice is enough there
    for (std::size_t i = 0; i < n; i += step) trios.push_back({kind[i], kind[(i + 1) % n], kind[(i + 2) % n]});
  };
  add(kSmallBlocks);
  add(kSuperBlocks);
  return trios;
}

class QuantMatrixTest : public testing::TestWithParam<Case> {};

// One block; a last tile that is not full; more inputs than are rounded at a time; few rows and many, so that no panel
// of rows is cut, all are, or the last ones; most rows that AMX isn't used for, and one more; more workers than tiles.
INSTANTIATE_TEST_SUITE_P(Cases, QuantMatrixTest, testing::ValuesIn([] {
                           std::vector<Case> cases;
                           for (const auto& types : trios()) {
                             for (const auto& [n_in, n_out, n_rows, n_workers] : std::vector<std::array<int, 4>>{
                                      {32, 16, 1, 1},    {64, 21, 3, 2},    {96, 5, 2, 4},     {576, 192, 16, 2},
                                      {576, 100, 37, 3}, {2080, 33, 4, 2},  {4160, 48, 17, 1}, {128, 64, 133, 3},
                                      {96, 40, 50, 2},   {64, 21, 12, 2},   {64, 21, 13, 2},   {96, 1, 33, 1},
                                      {4160, 48, 16, 1}, {2080, 33, 32, 1}, {2080, 40, 48, 2}, {2080, 40, 50, 2},
                                      {4160, 33, 64, 1}, {2048, 16, 65, 1}, {8448, 33, 4, 2},  {8448, 17, 18, 1}}) {
                               if (test::kThreadSanitizer && (n_workers == 1 || n_in > 2080))
                                 continue;     // nothing more to find
                               int whole = 0;  // blocks of all three
                               for (const auto type : types) whole = std::max(whole, QuantMatrix::file_block(type));
                               cases.push_back({types, (n_in + whole - 1) / whole * whole, n_out, n_rows, n_workers});
                             }
                           }
                           return cases;
                         }()));

/// Matrices of n_out, 2 n_out and 5 outputs: a tile that is not full lies between two products.
TEST_P(QuantMatrixTest, MultipliesLikeTheWeightsItHolds) {
  const Case c = GetParam();
  std::mt19937 random(7);
  const Rows rows(c, random);
  std::vector<Case> cases(3, c);
  cases[1].n_out *= 2, cases[2].n_out = 5;
  std::vector<QuantWeights> matrices;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    matrices.push_back(test::random_weights(c.types[i], c.n_in, cases[i].n_out, random));
  }

  std::map<std::tuple<std::size_t, bool, bool>, Reference> references;
  const auto reference = [&](std::size_t i, bool normed, bool cut) -> const Reference& {
    const auto found = references.find({i, normed, cut});
    if (found != references.end()) return found->second;
    const std::vector<float>& x = normed ? rows.normalised : rows.x;
    const Operands operands = cut ? cut_weights(c.types[i], matrices[i], x) : whole(matrices[i], x);
    return references.emplace(std::tuple(i, normed, cut), Reference(cases[i], operands)).first->second;
  };

  int targets = 0;
  matmul::Claims claims;  // for one product after the other
  for (const std::string_view target : simd::targets()) {
    ASSERT_TRUE(simd::use(target));
    if (QuantMatrix::supported()) {
      ++targets;
      SCOPED_TRACE(target);
      const bool cut = simd::amx() && c.n_rows >= 13;
      std::vector<QuantMatrix> packed;
      for (std::size_t i = 0; i < cases.size(); ++i) {
        packed.emplace_back(c.types[i], c.n_in, cases[i].n_out, matrices[i].bytes);
      }
      for (const std::size_t together : {std::size_t{1}, cases.size()}) {
        for (const bool normed : {false, true}) {
          std::vector<Outputs> y;
          std::vector<QuantMatrix::Product> products;
          for (std::size_t i = 0; i < together; ++i) y.emplace_back(cases[i], normed, random);
          for (std::size_t i = 0; i < together; ++i) products.push_back(y[i].product(packed[i]));
          {
            std::vector<std::jthread> workers;
            for (int worker = 0; worker < c.n_workers; ++worker) {
              workers.emplace_back([&, worker] {
                QuantMatrix::multiply(products, rows.of(normed, c.n_rows), claims, {worker, c.n_workers});
              });
            }
          }
          for (std::size_t i = 0; i < together; ++i) y[i].check(reference(i, normed, cut));
        }
      }
    }
    simd::use(simd::targets().front());
  }
  if (targets == 0) GTEST_SKIP() << "no instruction set of this CPU multiplies packed weights";
}

/// Of products as MultipliesLikeTheWeightsItHolds finds them, from tiny to far beyond what exp() can take.
TEST_P(QuantMatrixTest, GatesOneProductByAnother) {
  const Case c = GetParam();
  std::mt19937 random(8);
  Rows rows(c, random);
  for (std::size_t i = 0; i < rows.x.size(); ++i) {
    rows.x[i] *= std::array{0.01F, 1.0F, 100.0F}[i / static_cast<std::size_t>(c.n_in) % 3];
  }
  const QuantWeights gate = test::random_weights(c.types[0], c.n_in, c.n_out, random);
  const QuantWeights up = test::random_weights(c.types[1], c.n_in, c.n_out, random);
  int targets = 0;
  matmul::Claims claims;
  for (const std::string_view target : simd::targets()) {
    ASSERT_TRUE(simd::use(target));
    if (QuantMatrix::supported()) {
      ++targets;
      SCOPED_TRACE(target);
      const QuantMatrix packed_gate(c.types[0], c.n_in, c.n_out, gate.bytes);
      const QuantMatrix packed_up(c.types[1], c.n_in, c.n_out, up.bytes);
      Outputs gates(c, false, random), ups(c, false, random), gated(c, false, random), scratch(c, false, random);
      const auto at_once = [&](auto&& work) {
        std::vector<std::jthread> workers;
        for (int worker = 0; worker < c.n_workers; ++worker) workers.emplace_back(work, worker);
      };
      at_once([&](int worker) {
        const std::array products = {gates.product(packed_gate), ups.product(packed_up)};
        QuantMatrix::multiply(products, rows.of(false, c.n_rows), claims, {worker, c.n_workers});
      });
      at_once([&](int worker) {
        QuantMatrix::multiply_gated(matmul::Gate::kSilu, gated.product(packed_gate), scratch.product(packed_up),
                                    rows.of(false, c.n_rows), claims, {worker, c.n_workers});
      });
      gated.check_gated(gates, ups);
      scratch.check_around();
    }
    simd::use(simd::targets().front());
  }
  if (targets == 0) GTEST_SKIP() << "no instruction set of this CPU multiplies packed weights";
}

/// Whatever is rounded or cut: the weights' own product, in double precision, is near, and nothing is larger or smaller
/// on the whole.
TEST(QuantMatrix, IsNearTheExactProduct) {
  for (const auto& types : trios()) {
    const QuantType type = types[0];
    if (!QuantMatrix::supported()) GTEST_SKIP() << "no instruction set of this CPU multiplies packed weights";
    const Case c{types, 1024, 256, 32, 1};
    std::mt19937 random(11);
    const Rows rows(c, random);
    const QuantWeights matrix = test::random_weights(type, c.n_in, c.n_out, random);
    const QuantMatrix packed(type, c.n_in, c.n_out, matrix.bytes);
    std::vector<float> y(static_cast<std::size_t>(c.n_out) * static_cast<std::size_t>(c.n_rows));
    const QuantMatrix::Product product{&packed, y.data()};
    matmul::Claims claims;
    QuantMatrix::multiply({&product, 1}, rows.of(false, c.n_rows), claims, {});
    double away = 0.0, size = 0.0, along = 0.0;
    for (std::size_t r = 0; r < static_cast<std::size_t>(c.n_rows); ++r) {
      for (std::size_t o = 0; o < static_cast<std::size_t>(c.n_out); ++o) {
        double exact = 0.0;
        for (std::size_t i = 0; i < 1024; ++i) {
          const Weight& w = matrix.weights[o * 1024 + i];
          exact += (w.scaled() + w.offset()) * rows.x[r * 1024 + i];
        }
        const double got = y[r * static_cast<std::size_t>(c.n_out) + o];
        away += (got - exact) * (got - exact), size += exact * exact, along += got * exact;
      }
    }
    EXPECT_LT(std::sqrt(away / size), simd::amx() ? 4e-3 : 1e-2) << static_cast<int>(type);
    EXPECT_NEAR(along / size, 1.0, 5e-4) << static_cast<int>(type);
  }
}

/// As embeddings want it: one of few rows, which AMX leaves to other instructions, isn't rounded by other rules than
/// one of many.
TEST(QuantMatrix, RowsThatAreToBeAlikeDoNotHangOnTheirNumber) {
  if (!QuantMatrix::supported()) GTEST_SKIP() << "no instruction set of this CPU multiplies packed weights";
  constexpr int kIn = 256, kOut = 40, kRows = 20;
  for (const QuantType type : {QuantType::kQ4_1, QuantType::kQ8_0, QuantType::kQ4K}) {
    std::mt19937 random(13);
    const Rows rows({{type, type, type}, kIn, kOut, kRows, 1}, random);
    const QuantMatrix packed(type, kIn, kOut, test::random_weights(type, kIn, kOut, random).bytes);
    matmul::Claims claims;
    const auto multiply = [&](int n) {
      std::vector<float> y(static_cast<std::size_t>(kOut) * static_cast<std::size_t>(n));
      const QuantMatrix::Product product{&packed, y.data()};
      QuantMatrix::Rows some = rows.of(false, n);
      some.alike = true;
      QuantMatrix::multiply({&product, 1}, some, claims, {});
      return y;
    };
    const std::vector<float> all = multiply(kRows);
    for (const int n : {1, 12, 13}) {
      const std::vector<float> few = multiply(n);
      EXPECT_TRUE(std::ranges::equal(few, std::span(all).first(few.size())))
          << n << " rows, type " << static_cast<int>(type);
    }
  }
}

/// How rows are cut into panels hangs on the number of workers, and AMX takes large panels another way: no bit may.
TEST(QuantMatrix, TheSameBitsOnAnyNumberOfWorkers) {
  if (!QuantMatrix::supported()) GTEST_SKIP() << "no instruction set of this CPU multiplies packed weights";
  for (const auto& [n_in, n_out, n_rows] : std::vector<std::array<int, 3>>{{256, 57, 301}, {2304, 40, 150}}) {
    const QuantType type = QuantType::kQ4K;
    std::mt19937 random(14);
    const Case c{{type, type, type}, n_in, n_out, n_rows, 1};
    const Rows rows(c, random);
    const QuantMatrix packed(type, n_in, n_out, test::random_weights(type, n_in, n_out, random).bytes);
    matmul::Claims claims;
    std::vector<float> plus(static_cast<std::size_t>(n_out) * static_cast<std::size_t>(n_rows)), first;
    for (float& x : plus) x = static_cast<float>(random() % 1000) / 7.0F;
    for (const int n_workers : {1, 2, 3, 7, 16}) {
      std::vector<float> y(plus.size());
      const QuantMatrix::Product product{&packed, y.data(), plus.data()};
      for (int i = 0; i < n_workers; ++i) {  // the first does it all
        QuantMatrix::multiply({&product, 1}, rows.of(true, n_rows), claims, {i, n_workers});
      }
      if (first.empty()) first = y;
      EXPECT_EQ(y, first) << n_in << " inputs, " << n_workers << " workers";
    }
  }
}

}  // namespace
}  // namespace coppice
