// Emulated tiles against sums in the order that Intel's manual gives, and against the real ones where this CPU has
// them.
#include <cstddef>
#include <cstdint>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/amx_emulated_test.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include "simd/amx-inl.h"
#include "simd/amx_emulated-inl.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::HWY_NAMESPACE {

#if COPPICE_SIMD_AMX
using simd::HWY_NAMESPACE::EmulatedTiles;

void emulate(const simd::TileShapes& shapes, const std::byte* a, const std::byte* b, std::byte* sums) {
  EmulatedTiles& tiles = EmulatedTiles::of_thread();
  tiles.load_shapes(shapes);
  tiles.load(0, sums, 64), tiles.load(1, a, 64), tiles.load(2, b, 64);
  tiles.multiply_bf16(0, 1, 2);
  tiles.store(0, sums, 64);
  tiles.load_shapes({});
}
void multiply(const simd::TileShapes& shapes, const std::byte* a, const std::byte* b, std::byte* sums) {
  using namespace simd::HWY_NAMESPACE;
  load_shapes(shapes);
  load_tile<0>(sums, 64), load_tile<1>(a, 64), load_tile<2>(b, 64);
  multiply_tiles<0, 1, 2>();
  store_tile<0>(sums, 64);
  load_shapes({});
}
void emulate_rounding(const float* x, std::uint16_t* to) {
  _mm512_storeu_si512(to, simd::HWY_NAMESPACE::emulated_bf16_of(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)));
}
void round(const float* x, std::uint16_t* to) {
  _mm512_storeu_si512(to, simd::HWY_NAMESPACE::bf16_of(_mm512_loadu_ps(x + 16), _mm512_loadu_ps(x)));
}
void misuse(int how) {
  EmulatedTiles& tiles = EmulatedTiles::of_thread();
  simd::TileShapes shapes{.palette = 1};
  for (int i = 0; i < 3; ++i) shapes.rows[i] = 16, shapes.row_bytes[i] = 64;
  if (how > 0) tiles.load_shapes(shapes);
  if (how < 2) tiles.zero(how == 0 ? 0 : 3);
  if (how == 2) tiles.multiply_bf16(0, 0, 1);
  if (how == 3) shapes.rows[1] = 8, tiles.load_shapes(shapes), tiles.multiply_bf16(0, 1, 2);
}
#else
[[maybe_unused]] void no_tiles() {}  // the compiler warns of a target that no function uses
#endif

}  // namespace coppice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "simd/target.h"

#if (HWY_TARGETS & HWY_AVX3_DL) != 0 && defined(__clang__)
namespace coppice {
namespace {

using namespace N_AVX3_DL;  // NOLINT: this file's own
using simd::TileShapes;

constexpr std::size_t kBytes = 16 * 64;

class AmxEmulated : public testing::Test {
 protected:
  void SetUp() override {
    if (std::ranges::count(simd::targets(), "AVX3_DL") == 0) GTEST_SKIP() << "the kernels of tiles need AVX-512, too";
  }

  /// A bf16: mostly of middling size, sometimes 0, denormal or huge.
  std::uint16_t any_bf16() {
    const std::uint32_t bits = random_();
    if (bits % 8 == 0) return static_cast<std::uint16_t>(bits >> 16 & 0x80FF);
    return static_cast<std::uint16_t>((bits >> 16 & 0x80FF) | (100 + (bits >> 8) % 50) << 7);
  }
  TileShapes any_shapes() {
    TileShapes s{.palette = 1};
    const auto rows = static_cast<std::uint8_t>(1 + random_() % 16),
               pairs = static_cast<std::uint8_t>(1 + random_() % 16);
    const auto columns = static_cast<std::uint16_t>(4 * (1 + random_() % 16));
    s.rows[0] = s.rows[1] = rows, s.rows[2] = pairs;
    s.row_bytes[0] = s.row_bytes[2] = columns, s.row_bytes[1] = static_cast<std::uint16_t>(4 * pairs);
    return s;
  }

  std::mt19937 random_{20261127};
};

float small_to_zero(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0F, x) : x;
}

float f32_of(std::uint16_t bf16) {
  return small_to_zero(std::bit_cast<float>(std::uint32_t{bf16} << 16));
}

TEST_F(AmxEmulated, ProductsAreTheManualsAndTheProcessors) {
  for (int round = 0; round < 300; ++round) {
    const TileShapes shapes = round % 2 == 0 ? any_shapes() : [] {
      TileShapes s{.palette = 1};
      for (int i = 0; i < 3; ++i) s.rows[i] = 16, s.row_bytes[i] = 64;
      return s;
    }();
    std::vector<std::uint16_t> a(kBytes / 2), b(kBytes / 2);
    std::vector<float> sums(kBytes / 4);
    for (auto& v : a) v = any_bf16();
    for (auto& v : b) v = any_bf16();
    for (auto& v : sums) v = f32_of(any_bf16());
    std::vector<float> expected = sums, emulated = sums, real = sums;
    for (std::size_t m = 0; m < shapes.rows[0]; ++m) {
      for (std::size_t n = 0; n < shapes.row_bytes[0] / 4U; ++n) {
        float parts[2] = {};
        for (std::size_t k = 0; k < shapes.rows[2]; ++k) {
          for (std::size_t i = 0; i < 2; ++i) {
            parts[i] = small_to_zero(std::fma(f32_of(a[m * 32 + 2 * k + i]), f32_of(b[k * 32 + 2 * n + i]), parts[i]));
          }
        }
        float& sum = expected[m * 16 + n];
        sum = small_to_zero(sum + small_to_zero(parts[0] + parts[1]));
      }
    }
    const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
    emulate(shapes, bytes(a), bytes(b), bytes(emulated));
    ASSERT_EQ(std::memcmp(emulated.data(), expected.data(), kBytes), 0) << "round " << round;
    if (!simd::amx()) continue;
    multiply(shapes, bytes(a), bytes(b), bytes(real));
    ASSERT_EQ(std::memcmp(emulated.data(), real.data(), kBytes), 0) << "the processor's differ in round " << round;
  }
}

TEST_F(AmxEmulated, RoundingIsToTheNearestAndTheProcessors) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  std::vector<float> x = {1.0F,      -1.0F,      0x1.01p0F, 0x1.03p0F, 0x1.010002p0F,   -0x1.03p0F, 0.0F,      -0.0F,
                          0x1p-127F, -0x1p-140F, kInf,      -kInf,     0x1.FFFFFEp127F, 0x1.FEp3F,  0x1.FFp3F, 3.0F};
  while (x.size() < 32) x.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random_()) & 0xBFFFFFFF));
  std::vector<std::uint16_t> emulated(32), real(32);
  emulate_rounding(x.data(), emulated.data());
  const std::vector<std::uint16_t> first = {0x3F80, 0xBF80, 0x3F80, 0x3F82, 0x3F81, 0xBF82, 0,      0x8000,
                                            0,      0x8000, 0x7F80, 0xFF80, 0x7F80, 0x417F, 0x4180, 0x4040};
  EXPECT_EQ(std::vector(emulated.begin(), emulated.begin() + 16), first);
  for (std::size_t i = 16; i < 32; ++i)
    EXPECT_LE(std::abs(f32_of(emulated[i]) - x[i]), std::abs(x[i]) * 0x1p-8F) << x[i];
  if (!simd::amx()) return;
  round(x.data(), real.data());
  EXPECT_EQ(emulated, real);
}

TEST_F(AmxEmulated, WhatAProcessorRefusesEndsTheProgram) {
  EXPECT_DEATH(misuse(0), "a tile has no shape");
  EXPECT_DEATH(misuse(1), "a tile has no shape");
  EXPECT_DEATH(misuse(2), "three tiles");
  EXPECT_DEATH(misuse(3), "do not fit");
}

}  // namespace
}  // namespace coppice
#endif  // HWY_AVX3_DL
#endif  // HWY_ONCE
