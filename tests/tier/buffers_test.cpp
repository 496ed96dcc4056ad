#include "tier/buffers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace coppice::tier {
namespace {

TEST(Buffers, AreSoManyAndComeBack) {
  Buffers buffers(3, 5000);
  EXPECT_EQ(buffers.size(), 8192u);
  {
    Buffer a = buffers.take(), b = buffers.take(), c = buffers.take();
    EXPECT_TRUE(a && b && c);
    EXPECT_FALSE(buffers.take());
    for (Buffer* each : {&a, &b, &c}) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(each->memory().data()) % kBufferAlignment, 0u);
      EXPECT_EQ(each->memory().size(), 8192u);
      EXPECT_EQ(each->size(), 0u);
      each->memory().back() = std::byte{1};
    }
    a.set_size(7);
    Buffer moved = std::move(a);
    EXPECT_EQ(moved.bytes().size(), 7u);
    EXPECT_EQ(buffers.free(), 0u);
  }
  EXPECT_EQ(buffers.free(), 3u);
}

TEST(Buffers, LeaveSomeToOthers) {
  Buffers buffers(3, 1);
  const Buffer a = buffers.take(2);
  EXPECT_TRUE(a);
  EXPECT_FALSE(buffers.take(2));
  EXPECT_TRUE(buffers.take(1));
}

TEST(Buffers, GoBackOnAnyThread) {
  Buffers buffers(4, 1);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        Buffer buffer = buffers.take();
        if (!buffer) continue;
        std::thread([moved = std::exchange(buffer, {})] {}).join();
        i += 99;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(buffers.free(), 4u);
}

}  // namespace
}  // namespace coppice::tier
