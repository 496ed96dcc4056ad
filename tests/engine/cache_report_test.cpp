// Why did my prefix miss? Each answer, through the engine [S5].
#include <gtest/gtest.h>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using engine::MatchEnded;
using CacheReport = PerGroups;

engine::CacheReport report_of(Harness& h, Prompt prompt, const std::string& salt = "") {
  const auto id =
      h.submit({.prompt = std::move(prompt), .max_tokens = 2, .seed = 9, .salt = salt, .cache_report = true});
  h.finish();
  const auto& result = h.result(id);
  EXPECT_TRUE(result.report) << "asked for";
  if (!result.report) return {};
  EXPECT_EQ(result.report->matched_tokens, result.usage.cached_tokens);
  EXPECT_EQ(result.report->prompt_tokens, result.usage.prompt_tokens);
  return *result.report;
}

Prompt tail(const Prompt& prompt, std::size_t from, std::size_t n) {
  const auto begin = prompt.begin() + static_cast<std::ptrdiff_t>(from);
  return {begin, begin + static_cast<std::ptrdiff_t>(std::min(n, prompt.size() - from))};
}

TEST_P(CacheReport, OnlyWhoAsksGetsOne) {
  std::mt19937_64 random(1);
  Harness h({.groups = GetParam()});
  const auto id = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 2});
  h.finish();
  EXPECT_FALSE(h.result(id).report);
}

TEST_P(CacheReport, TextThatDiffers) {
  std::mt19937_64 random(2);
  Harness h({.groups = GetParam()});
  const auto common = random_prompt(random, 45), old_rest = random_prompt(random, 60);
  h.submit({.prompt = common + old_rest, .max_tokens = 2});
  h.finish();
  const auto new_rest = Prompt{2000} + random_prompt(random, 59);
  const auto report = report_of(h, common + new_rest);
  EXPECT_EQ(report.ended, MatchEnded::kDiffers);
  EXPECT_EQ(report.matched_tokens, 45);
  EXPECT_EQ(report.before, tail(common, 45 - 16, 16));
  EXPECT_EQ(report.asked, tail(new_rest, 0, 16));
  EXPECT_EQ(report.found, tail(old_rest, 0, report.found.size()));
  EXPECT_GE(report.found.size(), 3u);
  EXPECT_EQ(report.lost_tokens, 59) << "all but the last token";
  EXPECT_GT(report.lost_seconds, 0) << "the speed of earlier prompts is known";
}

TEST_P(CacheReport, TheSameAgain) {
  std::mt19937_64 random(3);
  Harness h({.groups = GetParam()});
  const auto prompt = random_prompt(random, 50);
  EXPECT_EQ(report_of(h, prompt).ended, MatchEnded::kNamespace);
  EXPECT_EQ(report_of(h, prompt, "other").ended, MatchEnded::kNamespace) << "and nothing of what others have";
  const auto report = report_of(h, prompt);
  EXPECT_EQ(report.ended, MatchEnded::kLastToken);
  EXPECT_EQ(report.lost_tokens, 0);
  EXPECT_EQ(report.asked, Prompt{prompt.back()});
}

TEST_P(CacheReport, NobodyComputedMore) {
  std::mt19937_64 random(4);
  Harness h({.groups = GetParam()});
  const auto prompt = random_prompt(random, 48);
  const auto first = h.submit({.prompt = prompt, .max_tokens = 1});
  h.finish();
  const auto report = report_of(h, prompt + h.result(first).samples[0].tokens + random_prompt(random, 20));
  EXPECT_EQ(report.ended, MatchEnded::kUnknown);
  EXPECT_EQ(report.matched_tokens, 48);
  EXPECT_EQ(report.lost_tokens, 0);
}

TEST_P(CacheReport, Evicted) {
  std::mt19937_64 random(5);
  const auto n_groups = static_cast<std::int32_t>(make_groups(GetParam()).size());
  Harness h({.groups = GetParam(), .num_blocks = 24 * n_groups + 1, .max_extend = 32});
  const auto prompt = random_prompt(random, 80);
  h.submit({.prompt = prompt, .max_tokens = 1});
  h.finish();
  for (int i = 0; i < 4; ++i) {
    h.submit({.prompt = random_prompt(random, 130), .max_tokens = 1});
    h.finish();
  }
  ASSERT_GT(h.snapshot().cache.evictions, 0);
  const auto report = report_of(h, prompt + random_prompt(random, 5));
  EXPECT_EQ(report.ended, MatchEnded::kEvicted);
  EXPECT_EQ(report.matched_tokens + report.lost_tokens,
            72);  // of ten blocks of 8, the first, fifth and ninth are remembered
}

// A block that a running request is still filling is not in the tree.
TEST_P(CacheReport, InFlight) {
  std::mt19937_64 random(6);
  Harness h({.groups = GetParam()});
  const auto prompt = random_prompt(random, 53);
  h.submit({.prompt = prompt, .max_tokens = 40});
  for (int i = 0; i < 2; ++i) h.step();
  const auto report = report_of(h, prompt + random_prompt(random, 30));
  EXPECT_EQ(report.ended, MatchEnded::kInFlight);
  EXPECT_EQ(report.matched_tokens, 48);
  EXPECT_EQ(report.lost_tokens, 5);
}

TEST_P(CacheReport, SharingOff) {
  std::mt19937_64 random(7);
  Harness h({.groups = GetParam(), .share = false});
  EXPECT_EQ(report_of(h, random_prompt(random, 30)).ended, MatchEnded::kSharingOff);
}

COPPICE_FOR_ALL_GROUPS(CacheReport);

}  // namespace
}  // namespace coppice::testing
