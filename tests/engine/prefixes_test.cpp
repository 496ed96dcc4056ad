// Pinned prefixes: what stays cached, for how long, for whom, and what stays possible beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>

#include "engine/pinned_pool.h"

namespace coppice::testing {
namespace {

using Prefixes = PerGroups;

TEST_P(Prefixes, APinnedPrefixSurvivesAFloodAndAnotherDoesNot) {
  std::mt19937_64 random(1);
  Pool h(small(GetParam()));
  const auto pinned = random_prompt(random, 5 * kBlock + 3), other = random_prompt(random, 5 * kBlock + 3);
  const auto rest = random_prompt(random, 9);
  const auto outcome = h.pin(pinned, object(pinned.size(), 60, "manual"));
  ASSERT_TRUE(outcome.prefix);
  EXPECT_EQ(outcome.prefix->tokens, 5 * kBlock + 3);
  EXPECT_EQ(outcome.prefix->pinned_tokens, 5 * kBlock);
  EXPECT_EQ(outcome.prefix->name, "manual");
  EXPECT_EQ(outcome.prefix->blocks, h.snapshot().cache.pinned);
  h.cached(other);
  h.flood(random);
  EXPECT_EQ(h.cached(other + rest), 0) << "the flood is no flood";
  EXPECT_EQ(h.cached(pinned + rest), 5 * kBlock);
  h.flood(random);
  EXPECT_EQ(h.cached(pinned), 5 * kBlock) << "the same text without a word more";
  const auto list = h.list();
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].id, outcome.prefix->id);
  EXPECT_EQ(list[0].hits, 2);
  EXPECT_EQ(list[0].saved_tokens, 2 * 5 * kBlock);
}

// Computed in one go with all that follows: its windows are passed when the prompt is done.
TEST_P(Prefixes, ABeginningInTheMiddleOfAPromptIsPinnedAsItIsPassed) {
  std::mt19937_64 random(2);
  Pool h(small(GetParam()));
  const auto begin = random_prompt(random, 3 * kBlock), rest = random_prompt(random, 6 * kBlock);
  h.cached(begin + rest, "", {mark(begin.size()), mark(begin.size() + 2 * kBlock)});
  EXPECT_EQ(h.list().size(), 2U);
  h.flood(random);
  EXPECT_EQ(h.cached(begin + random_prompt(random, 9)), 3 * kBlock);
  EXPECT_EQ(h.cached(begin + rest), 5 * kBlock);
}

TEST_P(Prefixes, TimeEndsIt) {
  std::mt19937_64 random(3);
  Pool h(small(GetParam()));
  const auto prompt = random_prompt(random, 4 * kBlock);
  h.pin(prompt, object(prompt.size(), 60));
  h.now += seconds(59);
  EXPECT_EQ(h.list().size(), 1U);
  EXPECT_EQ(h.list()[0].expires - h.now, seconds(1));
  EXPECT_EQ(h.now - h.list()[0].since, seconds(59));
  h.now += seconds(1);
  EXPECT_EQ(h.list().size(), 0U);
  EXPECT_EQ(h.snapshot().cache.pinned, 0);
  h.flood(random);
  EXPECT_EQ(h.cached(prompt + Prompt{1}), 0);
}

TEST_P(Prefixes, UseRenewsAMarkButNoObject) {
  std::mt19937_64 random(4);
  Pool h(small(GetParam()));
  const auto marked = random_prompt(random, 3 * kBlock), named = random_prompt(random, 3 * kBlock);
  h.pin(marked, mark(marked.size(), 60));
  h.pin(named, object(named.size(), 60));
  h.now += seconds(50);
  h.cached(marked + Prompt{1});
  h.cached(named + Prompt{1});
  h.now += seconds(50);
  const auto list = h.list();
  ASSERT_EQ(list.size(), 1U);
  EXPECT_FALSE(list[0].object);
  EXPECT_EQ(list[0].expires - h.now, seconds(10));
}

TEST_P(Prefixes, TheSameAgainRenewsIt) {
  std::mt19937_64 random(5);
  Pool h(small(GetParam()));
  const auto prompt = random_prompt(random, 3 * kBlock);
  const auto first = h.pin(prompt, object(prompt.size(), 60, "one"));
  h.now += seconds(30);
  const auto blocks = h.snapshot().cache.pinned;
  const auto again = h.pin(prompt + Prompt{1, 2}, object(prompt.size() + 2, 90, "two"));
  ASSERT_TRUE(first.prefix && again.prefix);
  EXPECT_EQ(first.prefix->id, again.prefix->id) << "the same whole blocks";
  EXPECT_EQ(again.prefix->expires - h.now, seconds(90));
  EXPECT_EQ(h.now - again.prefix->since, seconds(30));
  EXPECT_EQ(h.snapshot().cache.pinned, blocks);
  EXPECT_EQ(h.snapshot().cache.pins, 1);
  ASSERT_EQ(h.list().size(), 1U);
  EXPECT_EQ(h.list()[0].name, "two");
  EXPECT_EQ(h.list()[0].hits, 0) << "who pins it does not use it";
  h.pin(prompt, mark(prompt.size(), 1));
  EXPECT_EQ(h.list()[0].expires - h.now, seconds(90)) << "a mark shortens nothing";
  EXPECT_TRUE(h.list()[0].object);
}

TEST_P(Prefixes, OnlyItsOwnerSeesAndEndsIt) {
  std::mt19937_64 random(6);
  Pool h(small(GetParam()));
  const auto prompt = random_prompt(random, 3 * kBlock);
  const auto mine = h.pin(prompt, object(prompt.size()), "", "me");
  ASSERT_TRUE(mine.prefix);
  const std::string& id = mine.prefix->id;
  for (const engine::PrefixOwner& other :
       {engine::PrefixOwner{"you", {}}, {"me", {.salt = "salt"}}, {"me", {.adapter = "lora"}}, {"", {}}}) {
    EXPECT_TRUE(h.ask({.kind = Kind::kList, .owner = other}).prefixes.empty());
    EXPECT_TRUE(h.ask({.kind = Kind::kList, .owner = other, .prefix = id}).prefixes.empty());
    EXPECT_TRUE(h.ask({.kind = Kind::kEnd, .owner = other, .prefix = id}).prefixes.empty());
  }
  EXPECT_EQ(h.ask({.kind = Kind::kList, .owner = {"me", {}}, .prefix = id}).prefixes.size(), 1U);
  EXPECT_TRUE(h.ask({.kind = Kind::kList, .owner = {"me", {}}, .prefix = "prefix_"}).prefixes.empty());
  EXPECT_EQ(h.ask({.kind = Kind::kEnd, .owner = {"me", {}}, .prefix = id}).prefixes.size(), 1U);
  EXPECT_TRUE(h.list("me").empty());
  EXPECT_EQ(h.snapshot().cache.pinned, 0);
}

TEST_P(Prefixes, OfOneTextEachOwnerHasAPinOfTheSameBlocks) {
  std::mt19937_64 random(7);
  Pool h(small(GetParam()));
  const auto prompt = random_prompt(random, 3 * kBlock);
  const auto mine = h.pin(prompt, object(prompt.size()), "", "me");
  const auto blocks = h.snapshot().cache.pinned;
  h.pin(prompt, object(prompt.size()), "", "you");
  EXPECT_EQ(h.snapshot().cache.pinned, blocks);
  EXPECT_EQ(h.snapshot().cache.pins, 2);
  h.ask({.kind = Kind::kEnd, .owner = {"me", {}}, .prefix = mine.prefix->id});
  EXPECT_EQ(h.snapshot().cache.pinned, blocks) << "the other one holds them";
  h.flood(random);
  EXPECT_EQ(h.cached(prompt + Prompt{1}), 3 * kBlock);
}

// However much is pinned: whoever fits into an empty pool gets in, and through.
TEST_P(Prefixes, ARequestOfTheWholeContextAlwaysFits) {
  std::mt19937_64 random(9);
  for (const int blocks : {13, 14, 16, 20, 30}) {
    HarnessConfig config = small(GetParam(), blocks);
    config.pin_share = config.pin_share_of_key = 1;
    Pool h(config);
    for (int i = 0; i < 12; ++i) h.pin(random_prompt(random, 2 * kBlock), object(2 * kBlock));
    h.pin(random_prompt(random, 10 * kBlock), object(10 * kBlock));
    const auto all = random_prompt(random, 10 * kBlock - 3);
    for (const int n : {1, 2}) {
      const bool fits = h.cache().blocks_needed(10 * kBlock - 3, n) <= h.snapshot().cache.total;
      const auto id = h.submit({.prompt = all, .max_tokens = 3, .n = n});
      h.finish();
      EXPECT_EQ(!h.result(id).refusal, fits) << blocks << " blocks, " << n << " samples: " << h.result(id).message;
      if (h.result(id).refusal) continue;
      for (const auto& sample : h.result(id).samples) EXPECT_EQ(sample.tokens.size(), 3U);
    }
  }
}

// A pool that holds one request of the whole context and no block more: its default, where it limits the context.
TEST_P(Prefixes, APoolThatLimitsTheContextHoldsPins) {
  std::mt19937_64 random(20);
  HarnessConfig config = small(GetParam(), 15);
  config.context_length = 0;
  for (const auto total = config.num_blocks - 1;
       kv::Cache(cache_config(config)).blocks_needed(config.context_length + 1, 1) <= total;)
    ++config.context_length;
  Pool h(config);
  const auto prompt = random_prompt(random, 2 * kBlock);
  ASSERT_TRUE(h.pin(prompt, mark(prompt.size(), 60)).prefix);
  h.flood(random);
  EXPECT_EQ(h.cached(prompt + Prompt{1}), 2 * kBlock) << "requests that have room beside it leave it alone";
  EXPECT_EQ(h.snapshot().pins_given_up, 0);
  const auto whole = static_cast<std::size_t>(config.context_length);
  const auto all = h.submit({.prompt = random_prompt(random, whole - 1), .max_tokens = 1});
  h.finish();
  EXPECT_FALSE(h.result(all).refusal) << h.result(all).message;
  EXPECT_EQ(h.snapshot().cache.pins, 0);
  EXPECT_EQ(h.snapshot().pins_given_up, 1);
}

TEST_P(Prefixes, AnAnswerThatGrowsIsNotCutForAPin) {
  std::mt19937_64 random(21);
  HarnessConfig config = small(GetParam(), 12);
  config.pin_share = config.pin_share_of_key = 1;
  for (const int depth : {0, 1}) {
    config.depth = depth;
    Pool h(config);
    for (int i = 0; i < 3; ++i) {
      const auto prompt = random_prompt(random, 3 * kBlock);
      ASSERT_TRUE(h.pin(prompt, object(prompt.size())).prefix);
    }
    const auto id = h.submit({.prompt = random_prompt(random, 5), .max_tokens = 10 * kBlock - 5});
    h.finish();
    ASSERT_FALSE(h.result(id).refusal) << h.result(id).message;
    EXPECT_EQ(h.result(id).samples[0].tokens.size(), 10 * kBlock - 5U) << "depth " << depth;
    if (GetParam() == Groups::kFull) EXPECT_GT(h.snapshot().pins_given_up, 0) << "the pool is too large for this test";
  }
}

// All that decides is whether the request begins with the pin's tokens: a hundred trees of random texts of few letters,
// whose blocks are one another's siblings and agree in part.
TEST_P(Prefixes, AHitIsARequestThatBeginsWithAllPinnedTokens) {
  std::mt19937_64 random(test_seed(24));
  const auto draw = [&](std::size_t n) { return random_prompt(random, n, 2); };
  for (int round = 0; round < 30; ++round) {
    HarnessConfig config = small(GetParam(), 200);
    config.pin_share = config.pin_share_of_key = 1;
    Pool h(config);
    std::vector<Prompt> texts = {draw(3 * kBlock)};
    const auto next = [&] {  // a beginning of another text, and something of its own
      const Prompt& other = texts[random() % texts.size()];
      const std::size_t kept = random() % (other.size() + 1);
      return Prompt(other.begin(), other.begin() + static_cast<std::ptrdiff_t>(kept)) + draw(1 + random() % 9);
    };
    std::map<std::string, std::pair<Prompt, std::int64_t>> hits;  // by pin: its tokens, and how many began so
    for (int i = 0; i < 40; ++i) {
      Prompt text = random() % 4 == 0 ? texts[random() % texts.size()] : next();
      if (text.size() > 9 * kBlock) text.resize(9 * kBlock);
      texts.push_back(text);
      if (random() % 4 == 0 && text.size() >= kBlock) {
        const auto outcome = h.pin(text, object(text.size()));
        ASSERT_TRUE(outcome.prefix);
        text.resize(static_cast<std::size_t>(outcome.prefix->pinned_tokens));
        hits.try_emplace(outcome.prefix->id, text, 0);
        continue;
      }
      h.cached(text);
      for (auto& [id, pin] : hits) {
        pin.second += text.size() >= pin.first.size() && std::equal(pin.first.begin(), pin.first.end(), text.begin());
      }
    }
    for (const auto& prefix : h.list()) EXPECT_EQ(prefix.hits, hits.at(prefix.id).second) << prefix.id;
    if (HasFailure()) return;
  }
}

TEST_P(Prefixes, ResetLeavesWhatRuns) {
  std::mt19937_64 random(10);
  Pool h(small(GetParam()));
  const auto pinned = random_prompt(random, 3 * kBlock), cached = random_prompt(random, 4 * kBlock + 3);
  const auto running = random_prompt(random, 4 * kBlock);
  h.pin(pinned, object(pinned.size()));
  h.cached(cached);
  const auto id = h.submit({.prompt = running, .max_tokens = 20});
  for (int i = 0; i < 4; ++i) h.step();
  const auto before = h.snapshot().cache;
  const auto answer = h.ask({.kind = Kind::kReset});
  EXPECT_EQ(answer.ended, 1);
  EXPECT_GE(answer.tokens, 7 * kBlock + 3);
  EXPECT_LE(answer.tokens, 7 * kBlock + 4) << "a text's last token, if it was computed";
  EXPECT_EQ(answer.blocks, before.cached + before.pinned);
  EXPECT_EQ(h.snapshot().cache.pins, 0);
  h.finish();
  EXPECT_EQ(h.result(id).samples[0].tokens.size(), 20U);
  EXPECT_EQ(h.cached(pinned + Prompt{1}), 0);
  EXPECT_EQ(h.cached(cached + Prompt{1}), 0);
  EXPECT_GE(h.cached(running + Prompt{1}), 4 * kBlock) << "what was running is cached";
}

COPPICE_FOR_ALL_GROUPS(Prefixes);

}  // namespace
}  // namespace coppice::testing
