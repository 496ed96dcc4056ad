// Pinned prefixes: what stays cached, for how long, for whom, and what stays possible beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using engine::PinRefusal;
using engine::PinWish;
using engine::PrefixCommand;
using std::chrono::seconds;
using Prefixes = PerGroups;
using Kind = PrefixCommand::Kind;

constexpr int kBlock = 8;  // HarnessConfig's

/// A pool of so many blocks of tokens, however many groups there are.
HarnessConfig small(Groups groups, int blocks = 60) {
  const auto n = static_cast<std::int32_t>(make_groups(groups).size());
  return {.groups = groups, .num_blocks = blocks * n + 1, .max_batch = 2, .context_length = 10 * kBlock};
}

PinWish object(std::size_t tokens, int ttl = 60, std::string name = "") {
  return {.tokens = static_cast<std::int32_t>(tokens), .ttl = seconds(ttl), .object = true, .name = std::move(name)};
}
PinWish mark(std::size_t tokens, int ttl = 60) {
  return {.tokens = static_cast<std::int32_t>(tokens), .ttl = seconds(ttl)};
}

class Pool : public Harness {
 public:
  explicit Pool(const HarnessConfig& config) : Harness(config) {}

  /// Computes a prefix, pins it, and says what came of that.
  engine::PinOutcome pin(const Prompt& prompt, PinWish wish, const std::string& salt = "",
                         const std::string& payer = "") {
    const auto id =
        submit({.prompt = prompt, .only_prompt = true, .salt = salt, .pins = {std::move(wish)}, .payer = payer});
    finish();
    EXPECT_EQ(result(id).usage.pins.size(), 1U);
    return result(id).usage.pins.empty() ? engine::PinOutcome{} : result(id).usage.pins[0];
  }
  /// Tokens of a prompt's beginning that are found.
  std::int32_t cached(const Prompt& prompt, const std::string& salt = "", std::vector<PinWish> pins = {}) {
    const auto id = submit({.prompt = prompt, .max_tokens = 1, .salt = salt, .pins = std::move(pins)});
    finish();
    return result(id).usage.cached_tokens;
  }
  /// Other texts, four times as many as the pool holds.
  void flood(std::mt19937_64& random) {
    const auto wanted = 4 * snapshot().cache.total * kBlock;
    for (std::int64_t i = 0; i < wanted; i += 72) {
      submit({.prompt = random_prompt(random, 72), .max_tokens = 2});
      if (i % 720 == 0) finish();
    }
    finish();
  }
  std::vector<engine::PrefixInfo> list(const std::string& payer = "", const std::string& salt = "") {
    return ask({.kind = Kind::kList, .owner = {.payer = payer, .salt = salt}}).prefixes;
  }
};

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
  for (const engine::PrefixOwner& other : {engine::PrefixOwner{"you", ""}, {"me", "salt"}, {"", ""}}) {
    EXPECT_TRUE(h.ask({.kind = Kind::kList, .owner = other}).prefixes.empty());
    EXPECT_TRUE(h.ask({.kind = Kind::kList, .owner = other, .prefix = id}).prefixes.empty());
    EXPECT_TRUE(h.ask({.kind = Kind::kEnd, .owner = other, .prefix = id}).prefixes.empty());
  }
  EXPECT_EQ(h.ask({.kind = Kind::kList, .owner = {"me", ""}, .prefix = id}).prefixes.size(), 1U);
  EXPECT_TRUE(h.ask({.kind = Kind::kList, .owner = {"me", ""}, .prefix = "prefix_"}).prefixes.empty());
  EXPECT_EQ(h.ask({.kind = Kind::kEnd, .owner = {"me", ""}, .prefix = id}).prefixes.size(), 1U);
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
  h.ask({.kind = Kind::kEnd, .owner = {"me", ""}, .prefix = mine.prefix->id});
  EXPECT_EQ(h.snapshot().cache.pinned, blocks) << "the other one holds them";
  h.flood(random);
  EXPECT_EQ(h.cached(prompt + Prompt{1}), 3 * kBlock);
}

// Of 60 blocks of tokens an owner may pin 15, all together 30.
TEST(PrefixTable, SharesAreHeld) {
  std::mt19937_64 random(8);
  Pool h(small(Groups::kFull));
  const auto first = random_prompt(random, 6 * kBlock), second = random_prompt(random, 10 * kBlock);
  EXPECT_TRUE(h.pin(first, object(first.size()), "", "a").prefix);
  const auto refused = h.pin(second, object(second.size()), "", "a");
  EXPECT_FALSE(refused.prefix);
  EXPECT_EQ(refused.refusal, PinRefusal::kOwnersShare);
  EXPECT_TRUE(h.pin(first + random_prompt(random, 4 * kBlock), object(10 * kBlock), "", "a").prefix);
  EXPECT_EQ(h.snapshot().cache.pinned, 10) << "the blocks that two pins share count once";
  for (const char* owner : {"b", "c"}) {
    const auto prompt = random_prompt(random, 9 * kBlock);
    EXPECT_TRUE(h.pin(prompt, object(prompt.size()), "", owner).prefix);
  }
  EXPECT_EQ(h.snapshot().cache.pinned, 28);
  const auto full = h.pin(second, object(second.size()), "", "d");
  EXPECT_FALSE(full.prefix);
  EXPECT_EQ(full.refusal, PinRefusal::kNoRoom);
  EXPECT_EQ(h.snapshot().cache.pins, 4) << "no old one was ended for it";
  EXPECT_TRUE(h.pin(first, object(first.size()), "", "d").prefix) << "what is pinned takes no more room";
}

TEST(PrefixTable, LessThanABlockIsRefused) {
  Pool h(small(Groups::kFull));
  const auto outcome = h.pin(Prompt(kBlock - 1, 3), object(kBlock - 1));
  EXPECT_FALSE(outcome.prefix);
  EXPECT_EQ(outcome.refusal, PinRefusal::kTooShort);
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

// Pins are nobody who runs: without this, whoever pins a prefix would pass others in the queue.
TEST(PrefixTable, APinLetsNobodyPass) {
  std::mt19937_64 random(11);
  HarnessConfig config = small(Groups::kFull);
  config.max_batch = 1;
  Pool h(config);
  const auto pinned = random_prompt(random, 4 * kBlock);
  h.pin(pinned, object(pinned.size()));
  h.submit({.prompt = random_prompt(random, 8), .max_tokens = 4});
  h.step();
  const auto first = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 2});
  const auto second = h.submit({.prompt = pinned + Prompt{1}, .max_tokens = 2});
  h.finish();
  EXPECT_LT(h.result(first).done_step, h.result(second).first_step);
}

TEST(PrefixTable, WithoutSharingThereIsNone) {
  HarnessConfig config = small(Groups::kFull);
  config.share = false;
  Pool h(config);
  EXPECT_FALSE(h.pin(Prompt(3 * kBlock, 3), object(3 * kBlock)).prefix);
}

// Nobody calls: the engine's thread wakes by itself.
TEST(PrefixTable, TimeEndsItWhileNothingRuns) {
  const HarnessConfig config = small(Groups::kFull);
  FakeExecutor executor(cache_config(config), config.context_length);
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  engine::Engine engine(kv::Cache(cache_config(config)), executor, engine_config(config), [&](auto&& events) {
    const std::lock_guard lock(mutex);
    done = events.back().done;
    changed.notify_one();
  });
  std::jthread thread([&] { engine.run(); });
  engine.submit(
      make_request(engine.next_id(), {.prompt = Prompt(3 * kBlock, 3), .only_prompt = true, .pins = {object(24, 1)}}));
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
  EXPECT_EQ(engine.snapshot().cache.pins, 1);
  while (engine.snapshot().cache.pins > 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  engine.stop();
}

COPPICE_FOR_ALL_GROUPS(Prefixes);

}  // namespace
}  // namespace coppice::testing
