// What a gated product touches at a tile's end.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <string_view>
#include <vector>

#include "matmul/quant_matrix.h"
#include "matmul/quant_weights.h"
#include "simd/target.h"
#include "support/normal.h"

namespace coppice {
namespace {

using matmul::QuantMatrix;
using matmul::QuantType;
using test::QuantWeights;

/// Numbers behind which no memory may be read or written.
class Fenced {
 public:
  explicit Fenced(std::size_t n) : n_(n) {
    EXPECT_NE(pages_, MAP_FAILED);
    EXPECT_EQ(mprotect(static_cast<std::byte*>(pages_) + page_, page_, PROT_NONE), 0);
  }
  ~Fenced() { munmap(pages_, 2 * page_); }
  Fenced(const Fenced&) = delete;
  Fenced& operator=(const Fenced&) = delete;
  float* data() const { return reinterpret_cast<float*>(static_cast<std::byte*>(pages_) + page_) - n_; }

 private:
  std::size_t n_, page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* pages_ = mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
};

/// It may be another worker's, who writes there at the same time.
TEST(QuantMatrix, GatingTouchesNothingBehindTheLastOutput) {
  std::mt19937 random(9);
  test::Normal normal(0.0F, 1.0F);
  for (const int n_out : {17, 18, 19, 21, 31}) {
    std::vector<float> x(32);
    for (float& each : x) each = normal(random);
    const QuantWeights weights = test::random_weights(QuantType::kQ4_0, 32, n_out, random);
    matmul::Claims claims;
    for (const std::string_view target : simd::targets()) {
      ASSERT_TRUE(simd::use(target));
      if (!QuantMatrix::supported()) continue;
      const QuantMatrix packed(QuantType::kQ4_0, 32, n_out, weights.bytes);
      const Fenced gates(static_cast<std::size_t>(n_out)), ups(static_cast<std::size_t>(n_out));
      QuantMatrix::multiply_gated(matmul::Gate::kSilu, {&packed, gates.data()}, {&packed, ups.data()}, {x.data(), 1},
                                  claims, {});
      for (int i = 0; i < n_out; ++i) {
        const double up = ups.data()[i], expected = up / (1.0 + std::exp(-up)) * up;
        ASSERT_NEAR(gates.data()[i], expected, 2e-5 * std::abs(expected)) << target;
      }
    }
    simd::use(simd::targets().front());
  }
}

}  // namespace
}  // namespace coppice
