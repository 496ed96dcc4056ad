#include "port/mapping.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

namespace coppice::port {
namespace {

TEST(MappingTest, IsZeroedAndWritable) {
  Mapping mapping(100'000);
  ASSERT_EQ(mapping.size(), 100'000U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapping.data()) % 4096, 0U);
  prefer_huge_pages(mapping.bytes());
  EXPECT_TRUE(take_pages(mapping.bytes()));
  EXPECT_TRUE(std::ranges::all_of(mapping.bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
  std::ranges::fill(mapping.bytes(), std::byte{7});
  const Mapping moved = std::move(mapping);
  EXPECT_EQ(moved.data()[99'999], std::byte{7});
}

TEST(MappingTest, SaysThatThereIsNoSuchMemory) {
  EXPECT_THROW(Mapping(std::size_t{1} << 62), std::bad_alloc);
  EXPECT_EQ(Mapping().size(), 0U);
}

}  // namespace
}  // namespace coppice::port
