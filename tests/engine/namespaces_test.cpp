// Two adapters under one salt: neither finds, follows, reports, pins, ends or counts what is the other's.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "engine/piece_names.h"
#include "engine/pinned_pool.h"

namespace coppice::testing {
namespace {

using Namespaces = PerGroups;

Submission of(const std::string& adapter, Prompt prompt) {
  return {.prompt = std::move(prompt), .max_tokens = 1, .salt = "salt", .adapter = adapter, .cache_report = true};
}

engine::PrefixOwner owner(const std::string& adapter) {
  return {.payer = "me", .ns = {.salt = "salt", .adapter = adapter}};
}

/// What is kept outside of the pool is named by both, and neither runs into the other.
TEST(NamesOfNamespaces, AreDifferentWhateverSaltsAndAdaptersAre) {
  std::set<std::array<std::uint8_t, 16>> names;
  const std::vector<kv::Namespace> all = {{"ab", "c"},   {"a", "bc"},   {"abc", ""},   {"", "abc"},
                                          {"1 0 a", ""}, {"1", "0 a"},  {"a", "1 0"},  {"1 1 a", "b"},
                                          {"a", "b"},    {"1", "1 ab"}, {"1 1 ab", ""}};
  for (const kv::Namespace& ns : all) names.insert(engine::space_name(ns).whole);
  EXPECT_EQ(names.size(), all.size());
}

TEST_P(Namespaces, AdaptersOfOneSaltFindNothingOfEachOther) {
  std::mt19937_64 random(1);
  Harness h({.groups = GetParam()});
  const auto prompt = random_prompt(random, 5 * kBlock);
  const auto first = h.submit(of("a", prompt));
  const auto beside = h.submit(of("b", prompt));
  h.step();
  EXPECT_EQ(h.snapshot().following_requests, 0) << "nobody waits for blocks that will never be its own";
  h.finish();
  const auto other = h.submit(of("b", prompt + Prompt{1})), third = h.submit(of("c", prompt));
  const auto same = h.submit(of("a", prompt + Prompt{1}));
  h.finish();
  for (const auto id : {first, beside, third}) {
    EXPECT_EQ(h.result(id).usage.cached_tokens, 0);
    ASSERT_TRUE(h.result(id).report);
    EXPECT_EQ(h.result(id).report->ended, engine::MatchEnded::kNamespace);
  }
  for (const auto id : {other, same}) EXPECT_EQ(h.result(id).usage.cached_tokens, 5 * kBlock);
}

TEST_P(Namespaces, AdaptersOfOneSaltHaveTheirOwnPins) {
  std::mt19937_64 random(2);
  Pool h(small(GetParam()));
  const auto prompt = random_prompt(random, 3 * kBlock);
  const auto pin = [&](const std::string& adapter) {
    Submission wish = of(adapter, prompt);
    wish.max_tokens = 0;
    wish.only_prompt = true;
    wish.pins = {object(prompt.size())};
    wish.payer = "me";
    const auto id = h.submit(wish);
    h.finish();
    return h.result(id).usage.pins.at(0).prefix.value();
  };
  const auto list = [&](const std::string& adapter) {
    return h.ask({.kind = Kind::kList, .owner = owner(adapter)}).prefixes;
  };
  const auto a = pin("a"), b = pin("b");
  EXPECT_NE(a.id, b.id);
  EXPECT_EQ(h.snapshot().cache.pins, 2);
  EXPECT_EQ(h.snapshot().cache.pinned, a.blocks + b.blocks);
  ASSERT_EQ(list("a").size(), 1U);
  EXPECT_EQ(list("a")[0].id, a.id);
  EXPECT_TRUE(list("").empty());

  h.submit(of("b", prompt + Prompt{1}));
  h.finish();
  EXPECT_EQ(list("a")[0].hits, 0);
  EXPECT_EQ(list("b")[0].hits, 1);
  EXPECT_EQ(list("b")[0].saved_tokens, 3 * kBlock);

  EXPECT_TRUE(h.ask({.kind = Kind::kEnd, .owner = owner("a"), .prefix = b.id}).prefixes.empty());
  EXPECT_EQ(h.ask({.kind = Kind::kEnd, .owner = owner("b"), .prefix = b.id}).prefixes.size(), 1U);
  EXPECT_EQ(list("a").size(), 1U);
  EXPECT_TRUE(list("b").empty());
}

COPPICE_FOR_ALL_GROUPS(Namespaces);

}  // namespace
}  // namespace coppice::testing
