// What the micro benchmark makes of its own figures, and the memory that it asks for.
#include "micro/memory_check.h"

#include <gtest/gtest.h>

#include <vector>

#include "micro/bench_case.h"

namespace coppice::bench {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kEnough = 100 * kMiB;

/// A layer of 50 MiB that is read at the memory's speed, three of them.
Reading reading() {
  const std::size_t bytes = 50 * kMiB;
  return {.unique = bytes,
          .read = bytes,
          .layers = 3,
          .seconds = 1e-3,
          .bandwidth = static_cast<double>(bytes) / 1e-3,
          .one_pass = true};
}

TEST(MemoryCheck, WhatMemoryGivesIsPossible) {
  EXPECT_EQ(judge(reading(), kEnough), Verdict::kPossible);
  EXPECT_FALSE(impossible(Verdict::kPossible));
}

TEST(MemoryCheck, ACounterBelowTheUniqueBytesIsImpossibleWhereverTheyLie) {
  for (const std::size_t layers : {1, 3}) {
    Reading r = reading();
    r.layers = layers;
    r.read = r.unique - 1;
    EXPECT_EQ(judge(r, kEnough), Verdict::kTooFew);
  }
  EXPECT_TRUE(impossible(Verdict::kTooFew));
}

TEST(MemoryCheck, ACounterBeyondTimeAndBandwidthIsImpossible) {
  Reading r = reading();
  r.read = 2 * r.unique;
  EXPECT_EQ(judge(r, kEnough), Verdict::kTooMany);
  EXPECT_TRUE(impossible(Verdict::kTooMany));
  r.seconds *= 2;
  EXPECT_EQ(judge(r, kEnough), Verdict::kPossible);
}

TEST(MemoryCheck, LaterPassesMayComeFromACacheButTheFirstDoesNot) {
  Reading r = reading();
  r.one_pass = false;
  r.read = 4 * r.unique;
  EXPECT_EQ(judge(r, kEnough), Verdict::kPossible);
  r.seconds /= 2;
  EXPECT_EQ(judge(r, kEnough), Verdict::kTooMany);
}

TEST(MemoryCheck, WhatACacheMayHoldIsNotHeldAgainstTheBandwidth) {
  Reading r = reading();
  r.layers = 1;
  r.seconds /= 10;
  EXPECT_EQ(judge(r, kEnough), Verdict::kInCache);
  EXPECT_FALSE(impossible(Verdict::kInCache));
}

TEST(MemoryCheck, EnoughIsMoreThanTheLastLevelCache) {
  EXPECT_GE(beyond_caches(480 * kMiB), 960 * kMiB);
  EXPECT_GT(beyond_caches(0), 0U);
}

std::vector<BenchCase> cases_of(std::vector<attention::KvFormat> formats, const std::string& name) {
  std::vector<BenchCase> cases = all_cases(formats);
  std::erase_if(cases, [&](const BenchCase& c) { return c.what.name != name; });
  return cases;
}

TEST(ArenaBytes, HoldEveryCaseWhateverMemoryThereIs) {
  using attention::KvFormat;
  const auto cases = cases_of({KvFormat::kInt8, KvFormat::kF16}, "8b/16k/batch16/unrelated");
  ASSERT_GE(cases.size(), 2U);
  EXPECT_LT(cases.front().pool_bytes(), cases.back().pool_bytes());
  EXPECT_EQ(arena_bytes(cases, kEnough, 0), cases.back().pool_bytes());
}

TEST(ArenaBytes, HoldEnoughLayersWhereMemoryAllows) {
  for (const char* name : {"smollm2-135m/1k/batch4/shared", "16 decodes on a 2,048 prefix, window 512"}) {
    const auto cases = cases_of({attention::KvFormat::kF16}, name);
    ASSERT_FALSE(cases.empty());
    const BenchCase& c = cases.front();
    EXPECT_GE(arena_bytes(cases, kEnough, 1000 * kEnough) / c.pool_bytes() * c.unique_bytes(), kEnough);
    EXPECT_LE(arena_bytes(cases, kEnough, kEnough / 2), kEnough / 2);
  }
}

TEST(OnePass, IsOverBlocksThatOneRowSees) {
  const auto one_pass = [](const char* name) { return cases_of({attention::KvFormat::kF16}, name).at(0).one_pass(); };
  EXPECT_TRUE(one_pass("8b/1k/batch4/unrelated"));
  EXPECT_FALSE(one_pass("8b/1k/batch4/shared"));
}

}  // namespace
}  // namespace coppice::bench
