// Products of several parts, as experts need them, against scalar ones in double precision: each row meets its own
// part.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "matmul/quant_kernel.h"
#include "matmul/quant_matrix.h"
#include "matmul/quant_weights.h"
#include "simd/target.h"
#include "support/normal.h"

namespace coppice {
namespace {

using matmul::Gate;
using matmul::QuantMatrix;
using matmul::QuantType;
using test::QuantWeights;
using test::Weight;

constexpr std::array kTypes = {QuantType::kQ4_0, QuantType::kQ4_1,  QuantType::kQ5_0, QuantType::kQ5_1,
                               QuantType::kQ8_0, QuantType::kIq4Nl, QuantType::kQ4K,  QuantType::kQ5K,
                               QuantType::kQ6K,  QuantType::kIq4Xs, QuantType::kMxfp4};

constexpr int kIn = 512, kOut = 40, kWorkers = 3;

/// Rows of each part: none, few, more than a panel of either kernel.
const std::vector<int> kFew = {0, 3, 1, 0, 5, 2, 0}, kMany = {0, 17, 80, 1, 0, 33, 130};

struct Problem {
  std::vector<std::int32_t> begin = {0}, order;
  std::vector<float> x;  ///< some rows are taken several times, some never

  Problem(const std::vector<int>& counts, std::mt19937& random) {
    for (const int n : counts) begin.push_back(begin.back() + n);
    const int n_x = begin.back() / 2 + 2;
    for (int i = 0; i < begin.back(); ++i)
      order.push_back(static_cast<std::int32_t>(random() % static_cast<unsigned>(n_x)));
    test::Normal normal(0.1F, 1.0F);
    for (int i = 0; i < n_x * kIn; ++i) x.push_back(normal(random));
  }
  void scale(float factor) {
    for (float& v : x) v *= factor;
  }
  int n() const { return begin.back(); }
  int n_parts() const { return static_cast<int>(begin.size()) - 1; }
  QuantMatrix::Rows rows() const { return {.x = x.data(), .n = n(), .order = order.data(), .begin = begin.data()}; }
};

struct Matrix {
  QuantWeights weights;
  std::vector<float> bias;

  Matrix(QuantType type, int n_parts, std::mt19937& random)
      : weights(test::random_weights(type, kIn, kOut * n_parts, random)) {
    test::Normal normal(0.0F, 1.0F);
    for (int i = 0; i < kOut * n_parts; ++i) bias.push_back(normal(random));
  }
  std::vector<double> times(const Problem& p) const {
    std::vector<double> y;
    for (int part = 0; part < p.n_parts(); ++part) {
      for (auto row = static_cast<std::size_t>(p.begin[static_cast<std::size_t>(part)]);
           row < static_cast<std::size_t>(p.begin[static_cast<std::size_t>(part) + 1]); ++row) {
        for (int o = 0; o < kOut; ++o) {
          const auto output = static_cast<std::size_t>(part * kOut + o);
          double sum = bias[output];
          for (std::size_t i = 0; i < kIn; ++i) {
            const Weight& w = weights.weights[output * kIn + i];
            sum += (w.scaled() + w.offset()) * p.x[static_cast<std::size_t>(p.order[row]) * kIn + i];
          }
          y.push_back(sum);
        }
      }
    }
    return y;
  }
};

double gated(Gate gate, double z, double up) {
  switch (gate) {
    case Gate::kSilu:
      return z / (1 + std::exp(-z)) * up;
    case Gate::kGelu:
      return 0.5 * z * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (z + 0.044715 * z * z * z))) * up;
    case Gate::kClamped:
      z = std::min(z, 7.0);
      return z / (1 + std::exp(-1.702 * z)) * (1 + std::clamp(up, -7.0, 7.0));
  }
  return 0;
}

/// Rounded rows cost 1e-2 at most, more behind a gate; the wrong part, row or bias some 1.
void expect_near(std::span<const float> got, std::span<const double> exact, double tolerance) {
  ASSERT_EQ(got.size(), exact.size());
  double worst = 0;
  for (std::size_t row = 0; row < exact.size(); row += kOut) {
    double away = 0, size = 0;
    for (std::size_t i = row; i < row + kOut; ++i) {
      away += (got[i] - exact[i]) * (got[i] - exact[i]);
      size += exact[i] * exact[i];
    }
    worst = std::max(worst, std::sqrt(away / size));
  }
  EXPECT_LT(worst, tolerance);
}

class QuantPartsTest : public testing::TestWithParam<QuantType> {
 protected:
  /// Calls check() on every instruction set that multiplies.
  template <class Check>
  void on_each_target(Check check) {
    int targets = 0;
    for (const std::string_view target : simd::targets()) {
      ASSERT_TRUE(simd::use(target));
      if (QuantMatrix::supported()) {
        ++targets;
        SCOPED_TRACE(target);
        check();
      }
      simd::use(simd::targets().front());
    }
    if (targets == 0) GTEST_SKIP() << "no instruction set of this CPU multiplies packed weights";
  }
  template <class Work>
  static void at_once(Work work) {
    std::vector<std::jthread> workers;
    for (int worker = 0; worker < kWorkers; ++worker) workers.emplace_back(work, worker);
  }

  std::mt19937 random_{17};
};

INSTANTIATE_TEST_SUITE_P(Types, QuantPartsTest, testing::ValuesIn(kTypes),
                         [](const auto& info) { return "type" + std::to_string(static_cast<int>(info.param)); });

TEST_P(QuantPartsTest, EachRowMeetsItsOwnPart) {
  for (const std::vector<int>& counts : {kFew, kMany}) {
    const Problem p(counts, random_);
    const Matrix matrix(GetParam(), p.n_parts(), random_);
    const std::vector<double> exact = matrix.times(p);
    matmul::Claims claims;
    on_each_target([&] {
      const QuantMatrix packed(GetParam(), kIn, kOut, matrix.weights.bytes, p.n_parts());
      std::vector<float> y(exact.size());
      const QuantMatrix::Product product{.matrix = &packed, .y = y.data(), .bias = matrix.bias.data()};
      at_once([&](int worker) { QuantMatrix::multiply({&product, 1}, p.rows(), claims, {worker, kWorkers}); });
      expect_near(y, exact, 2e-2);
    });
  }
}

TEST_P(QuantPartsTest, PartsAreGatedInEveryWay) {
  for (const Gate gate : {Gate::kSilu, Gate::kGelu, Gate::kClamped}) {
    Problem p(kFew, random_);
    const Matrix gates(GetParam(), p.n_parts(), random_), ups(GetParam(), p.n_parts(), random_);
    std::vector<double> exact = gates.times(p);
    double squares = 0;
    for (const double v : exact) squares += v * v;
    p.scale(static_cast<float>(4 / std::sqrt(squares / static_cast<double>(exact.size()))));  // some beyond 7, most not
    exact = gates.times(p);
    const std::vector<double> up = ups.times(p);
    for (std::size_t i = 0; i < exact.size(); ++i) exact[i] = gated(gate, exact[i], up[i]);
    matmul::Claims claims;
    on_each_target([&] {
      const QuantMatrix packed_gates(GetParam(), kIn, kOut, gates.weights.bytes, p.n_parts());
      const QuantMatrix packed_ups(GetParam(), kIn, kOut, ups.weights.bytes, p.n_parts());
      std::vector<float> y(exact.size()), scratch(exact.size());
      at_once([&](int worker) {
        QuantMatrix::multiply_gated(gate, {.matrix = &packed_gates, .y = y.data(), .bias = gates.bias.data()},
                                    {.matrix = &packed_ups, .y = scratch.data(), .bias = ups.bias.data()}, p.rows(),
                                    claims, {worker, kWorkers});
      });
      expect_near(y, exact, 4e-2);
    });
  }
}

/// Multiplies nothing, but counts how often each tile is read.
struct TileCounter {
  std::map<const std::byte*, int> reads;

  void round(const matmul::UnitPart&) {}
  void multiply(const matmul::TileProduct& t) { ++reads[t.tile]; }
  void gate(const matmul::TileProduct&, const float*) {}
};

/// 16 rows that choose 8 of 128 experts each, as a step of 16 streams of Qwen 3 30B-A3B: each chosen one's weights are
/// read once, the others' not at all.
TEST(QuantParts, AStepOf16RowsReadsEachChosenPartOnce) {
  constexpr int kParts = 128, kChosen = 8, kRows = 16;
  std::mt19937 random(5);
  std::vector<int> experts(kParts), counts(kParts);
  std::iota(experts.begin(), experts.end(), 0);
  for (int row = 0; row < kRows; ++row) {
    std::ranges::shuffle(experts, random);
    for (int i = 0; i < kChosen; ++i) ++counts[static_cast<std::size_t>(experts[static_cast<std::size_t>(i)])];
  }
  const Problem p(counts, random);
  const QuantWeights weights = test::random_weights(QuantType::kQ4K, kIn, kOut * kParts, random);
  const QuantMatrix gates(QuantType::kQ4K, kIn, kOut, weights.bytes, kParts),
      ups(QuantType::kQ4K, kIn, kOut, weights.bytes, kParts);
  std::vector<float> y(static_cast<std::size_t>(2 * p.n() * kOut));
  const std::array products = {QuantMatrix::Product{.matrix = &gates, .y = y.data()},
                               QuantMatrix::Product{.matrix = &ups, .y = y.data() + p.n() * kOut}};
  const QuantMatrix::Rows rows = p.rows();
  const Gate gate = Gate::kSilu;
  for (const Gate* g : {&gate, static_cast<const Gate*>(nullptr)}) {
    const matmul::QuantProducts cut = matmul::cut_products(products, rows, g, 2);
    matmul::Claims claims;
    TileCounter counter;
    for (int worker = 0; worker < 2; ++worker) matmul::each_unit(cut, claims, {worker, 2}, counter);
    std::map<const std::byte*, int> wanted;
    for (const QuantMatrix* m : {&gates, &ups}) {
      const std::size_t tile_bytes = m->bytes() / static_cast<std::size_t>(kParts * m->n_tiles());
      for (int part = 0; part < kParts; ++part) {
        for (int t = 0; t < m->n_tiles() && counts[static_cast<std::size_t>(part)] > 0; ++t) {
          wanted[m->packed() + static_cast<std::size_t>(part * m->n_tiles() + t) * tile_bytes] = 1;
        }
      }
    }
    EXPECT_EQ(counter.reads, wanted);
  }
}

TEST(QuantParts, RowsMayBeMissingAltogether) {
  if (!QuantMatrix::supported()) GTEST_SKIP() << "no instruction set of this CPU multiplies packed weights";
  std::mt19937 random(3);
  const Problem p({0, 0, 0}, random);
  const Matrix matrix(QuantType::kQ8_0, 3, random);
  const QuantMatrix packed(QuantType::kQ8_0, kIn, kOut, matrix.weights.bytes, 3);
  float untouched = 5;
  const QuantMatrix::Product product{.matrix = &packed, .y = &untouched};
  matmul::Claims claims;
  QuantMatrix::multiply({&product, 1}, p.rows(), claims, {});
  EXPECT_EQ(untouched, 5);
}

}  // namespace
}  // namespace coppice
