#include "matmul/packed_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "matmul/quant_matrix.h"
#include "matmul/quant_weights.h"

namespace coppice {
namespace {

using matmul::PackedMemory;
using matmul::QuantMatrix;
using matmul::QuantType;

/// Sizes on both sides of what is mapped at a time.
TEST(PackedMemory, GivesZerosThatNobodyElseHas) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  PackedMemory memory;
  std::vector<std::span<std::byte>> taken;
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{4097}, 40 * kMiB, 30 * kMiB, 70 * kMiB, std::size_t{64}}) {
    const std::span<std::byte> part = memory.take(bytes);
    ASSERT_GE(part.size(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part.data()) % PackedMemory::kAlignment, 0U);
    EXPECT_TRUE(std::ranges::all_of(part, [](std::byte b) { return b == std::byte{0}; }));
    taken.push_back(part);
    std::ranges::fill(part, static_cast<std::byte>(taken.size()));
  }
  for (std::size_t i = 0; i < taken.size(); ++i) {
    EXPECT_EQ(std::ranges::count(taken[i], static_cast<std::byte>(i + 1)), std::ssize(taken[i]));
  }
}

TEST(PackedMemory, HoldsTheSameBytesAsAMatrixOfItsOwn) {
  constexpr int kIn = 256, kOut = 40;
  std::mt19937 random(2);
  PackedMemory memory;
  for (const QuantType type : {QuantType::kQ4K, QuantType::kQ5_0, QuantType::kMxfp4}) {
    const test::QuantWeights weights = test::random_weights(type, kIn, kOut, random);
    const QuantMatrix own(type, kIn, kOut, weights.bytes), in_memory(type, kIn, kOut, weights.bytes, 1, 0, &memory);
    ASSERT_EQ(own.bytes(), in_memory.bytes());
    EXPECT_TRUE(std::equal(own.packed(), own.packed() + own.bytes(), in_memory.packed()));
  }
}

}  // namespace
}  // namespace coppice
