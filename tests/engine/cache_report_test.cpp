// Why did my prefix miss? Each answer, through the engine.
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
  EXPECT_EQ(report.matched_tokens + report.lost_tokens, 80);
}

/// It computes all of its prompt, beside one that is running, too; and others find what it computed.
TEST_P(CacheReport, NotAsked) {
  std::mt19937_64 random(8);
  Harness h({.groups = GetParam()});
  const auto prompt = random_prompt(random, 50), more = prompt + random_prompt(random, 50);
  h.submit({.prompt = prompt, .max_tokens = 30});
  h.step();
  const auto alone = h.submit({.prompt = more, .max_tokens = 2, .cache_report = true, .match_cache = false});
  h.finish();
  EXPECT_EQ(h.result(alone).usage.cached_tokens, 0);
  ASSERT_TRUE(h.result(alone).report);
  EXPECT_EQ(h.result(alone).report->ended, MatchEnded::kNotAsked);
  EXPECT_EQ(report_of(h, more).matched_tokens, 99);
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
  EXPECT_EQ(report_of(h, {5}).ended, MatchEnded::kSharingOff) << "not: all that may match did";
  const auto scored =
      h.submit({.prompt = random_prompt(random, 30), .max_tokens = 2, .cache_report = true, .scored_from = 1});
  h.finish();
  EXPECT_EQ(h.result(scored).report->ended, MatchEnded::kSharingOff);
}

// Whatever comes of the request: who leaves has one, too.
TEST_P(CacheReport, ComesWithTheFirstEventAfterAdmission) {
  std::mt19937_64 random(8);
  Harness h({.groups = GetParam(), .step_tokens = 40, .max_extend = 32});
  const auto submit = [&](int max_tokens) {
    return h.submit({.prompt = random_prompt(random, 100), .max_tokens = max_tokens, .cache_report = true});
  };
  const auto streaming = submit(50), leaves = submit(50), late = submit(50);
  while (h.result(streaming).samples[0].tokens.empty()) h.step();
  EXPECT_TRUE(h.result(streaming).report) << "long before its end";
  h.cancel(leaves);
  h.step();
  EXPECT_TRUE(h.result(leaves).samples[0].tokens.empty()) << "a load that doesn't try it";
  EXPECT_TRUE(h.result(leaves).report);
  while (h.result(late).samples[0].tokens.empty()) h.step();
  h.finish();
  EXPECT_TRUE(h.result(late).report);
}

COPPICE_FOR_ALL_GROUPS(CacheReport);

// It is admitted before its report is made.
TEST(Admission, CountsEvenIfItsReportCannotBeMade) {
  bool fails = false;
  const kv::CacheConfig config{.block_size = 8,
                               .num_blocks = 40,
                               .bytes_per_block = 128,
                               .groups = make_groups(Groups::kFull),
                               .max_extend = 32,
                               .hash = [&](std::span<const std::byte> bytes) {
                                 if (fails) throw std::runtime_error("no digest can be had");
                                 return kv::sha256(bytes);
                               }};
  FakeExecutor executor(config);
  std::map<engine::RequestId, engine::Event> ends;
  engine::Engine engine(kv::Cache(config), executor, {}, [&](std::vector<engine::Event>&& events) {
    for (auto& event : events) {
      if (event.ended) ends[event.request] = std::move(event);
    }
  });
  std::mt19937_64 random(9);
  for (const engine::RequestId id : {1, 2}) {
    fails = id == 2;  // there is a root by then: only explain() wants digests
    engine.submit(make_request(id, {.prompt = random_prompt(random, 20), .max_tokens = 1, .cache_report = true}));
    while (engine.step()) {
    }
  }
  ASSERT_EQ(ends.size(), 2u);
  ASSERT_TRUE(std::holds_alternative<engine::Refused>(ends[2].news));
  EXPECT_EQ(std::get<engine::Refused>(ends[2].news).why, engine::Refusal::kFailed);
  EXPECT_FALSE(ends[2].report);
  const auto figures = engine.snapshot();
  EXPECT_EQ(figures.admissions, 2);
  EXPECT_EQ(figures.prompt_tokens, 40);
  EXPECT_EQ(figures.requests_failed, 1);
  EXPECT_EQ(figures.cache.in_use, 0);
}

}  // namespace
}  // namespace coppice::testing
