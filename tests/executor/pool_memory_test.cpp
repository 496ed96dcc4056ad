// The pool's memory is there before anybody writes to it.
#include "executor/ggml/store/pool_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "model/load_error.h"

namespace coppice::executor {
namespace {

constexpr std::size_t kSize = (std::size_t{9} << 20) + 4096;  // no whole number of huge pages, nor of threads' shares

std::size_t pages_in_memory(std::byte* data, std::size_t size) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> in_memory((size + page - 1) / page);
  EXPECT_EQ(::mincore(data, size, in_memory.data()), 0);
  return static_cast<std::size_t>(std::ranges::count_if(in_memory, [](unsigned char c) { return (c & 1) != 0; }));
}

/// An emulator may take the advice, and do nothing.
bool kernel_takes_pages() {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool takes = ::madvise(page, 4096, MADV_POPULATE_WRITE) == 0
                         ? pages_in_memory(static_cast<std::byte*>(page), 4096) == 1
                         : errno != EINVAL;
  ::munmap(page, 4096);
  return takes;
}

TEST(PoolMemory, EveryPageIsThereAndZeroBeforeTheFirstWrite) {
  if (!kernel_takes_pages()) GTEST_SKIP() << "here pages come with the first write only (Linux before 5.14)";
  for (const int n_threads : {1, 2, 5, 64}) {
    const PoolMemory memory(kSize, n_threads, {});
    EXPECT_EQ(memory.size(), kSize);
    EXPECT_EQ(pages_in_memory(memory.data(), kSize), kSize / static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)))
        << n_threads << " threads";
    EXPECT_TRUE(std::ranges::all_of(std::span(memory.data(), kSize), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(PoolMemory, ProgressIsToldAndMayEndIt) {
  std::vector<double> told;
  const PoolMemory memory(std::size_t{600} << 20, 2, [&](std::string_view stage, double fraction) {
    EXPECT_EQ(stage, "memory");
    told.push_back(fraction);
  });
  EXPECT_GE(told.size(), 2U);
  EXPECT_TRUE(std::ranges::is_sorted(told));
  struct Ended {};
  EXPECT_THROW(PoolMemory(kSize, 1, [](std::string_view, double) { throw Ended{}; }), Ended);
}

TEST(PoolMemory, WhatNoMachineHasIsRefused) {
  EXPECT_THROW(PoolMemory(std::numeric_limits<std::size_t>::max() / 2, 1, {}), model::LoadError);
}

}  // namespace
}  // namespace coppice::executor
