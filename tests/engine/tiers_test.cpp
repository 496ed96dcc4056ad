// A store behind the pool: what one server computed, another one, or the same after a restart, starts on. And whatever
// is amiss with the store costs time at most.
#include "engine/tiers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using namespace std::chrono_literals;
using Contents = FakeStore::Contents;

constexpr StoreHabits kPrompt{.late = 0};

class Tiers : public PerDepth {
 protected:
  HarnessConfig config() const { return {.groups = groups(), .num_blocks = scaled(groups(), 200), .depth = depth()}; }
  bool forgets() const { return groups() != Groups::kFull; }

  std::shared_ptr<FakeStore> store(const StoreHabits& habits = kPrompt) {
    return std::make_shared<FakeStore>(contents_, 7, habits);
  }

  /// A server that has a prompt twice and stops: it stores what was used twice, or all.
  void serve(const Prompt& prompt, const std::string& salt = "", std::uint8_t model = 1) {
    Harness h(config());
    const auto s = store();
    h.attach(s, model);
    for (int i = 0; i < 2; ++i) {
      h.submit({.prompt = prompt, .max_tokens = 3, .salt = salt});
      h.finish();
    }
    for (int i = 0; i < 100 && !h.snapshot().settled; ++i) h.step();
    s->stop({});
  }

  std::mt19937_64 random_{3};
  std::shared_ptr<Contents> contents_ = std::make_shared<Contents>();
  Prompt prompt_ = random_prompt(random_, 100);
};
COPPICE_FOR_ALL_DEPTHS(Tiers);

TEST_P(Tiers, ARestartedServerStartsOnWhatWasUsedTwice) {
  serve(prompt_);
  ASSERT_FALSE(contents_->empty());
  Harness h(config());
  h.attach(store());
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 8, .cache_report = true});
  h.finish();
  EXPECT_EQ(h.result(id).usage.cached_tokens, 96);
  EXPECT_EQ(h.result(id).usage.loaded_tokens, 96);
  EXPECT_EQ(h.snapshot().computed_tokens, 4);
  EXPECT_EQ(h.snapshot().loaded_tokens, 96);
  EXPECT_EQ(h.snapshot().tiers.loads, 1);
  // It is in the tree now, and not to be stored once more.
  const auto blocks = h.cache().whole_blocks(kv::Text(prompt_).view().first(96), {});
  for (const kv::BlockId block : h.cache().storables().hottest())
    EXPECT_EQ(std::ranges::find(blocks, block), blocks.end()) << block;
  const auto again = h.submit({.prompt = prompt_, .max_tokens = 1});
  h.finish();
  EXPECT_EQ(h.result(again).usage.loaded_tokens, 0);
  EXPECT_GE(h.result(again).usage.cached_tokens, 96);
}

TEST_P(Tiers, WhatIsUsedOnceIsNotWritten) {
  Harness h(config());
  h.attach(store());
  h.submit({.prompt = prompt_, .max_tokens = 8});
  h.finish();
  EXPECT_TRUE(contents_->empty());
  EXPECT_TRUE(h.snapshot().settled);
}

// As in the host's memory: what was used once goes there too, when the pool has no room for it any more, and nothing
// sooner.
TEST_P(Tiers, AllThatIsEvictedIsWrittenAndNothingElse) {
  HarnessConfig small = config();
  small.num_blocks = scaled(groups(), 40);
  Harness h(small);
  const auto s = store();
  h.attach(s, 1, 64, /*load_always=*/true, /*all_evicted=*/true, /*lasting=*/false);
  for (int i = 0; i < 2; ++i) {
    h.submit({.prompt = prompt_, .max_tokens = 1});
    h.finish();
  }
  EXPECT_TRUE(contents_->empty());
  EXPECT_TRUE(h.snapshot().settled);
  while (h.cache().match(kv::Text(prompt_), {}) > 0) {
    h.submit({.prompt = random_prompt(random_, 120), .max_tokens = 1});
    h.finish();
  }
  EXPECT_GE(s->written(), 12);
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 8});
  h.finish();
  if (groups() == Groups::kFull) {
    EXPECT_GE(h.result(id).usage.loaded_tokens, 90);
  }
  EXPECT_EQ(error_in(h.result(id), h.groups()), "");
  h.engine().settle();
  h.finish();
  EXPECT_TRUE(h.snapshot().settled) << "nothing is to be kept for the next server";
}

TEST_P(Tiers, WhatIsPinnedIsWritten) {
  Harness h(config());
  h.attach(store());
  h.submit({.prompt = prompt_, .max_tokens = 8, .pins = {{.tokens = 50, .ttl = 60s}}});
  h.finish();
  for (int i = 0; i < 50; ++i) h.step();
  EXPECT_GE(contents_->size(), forgets() ? 1U : 6U);
}

TEST_P(Tiers, WhoStopsStoresAllThatIsCached) {
  {
    Harness h(config());
    const auto s = store();
    h.attach(s);
    h.submit({.prompt = prompt_, .max_tokens = 8});
    h.finish();
    h.engine().settle();
    for (int i = 0; i < 200; ++i) h.step();
    EXPECT_TRUE(h.snapshot().settled);
    s->stop({});
  }
  Harness h(config());
  h.attach(store());
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 8});
  h.finish();
  EXPECT_EQ(h.result(id).usage.loaded_tokens, 96);
}

// What is used twice leaves by and by: at any moment of that a block may be out and its state, or its window, not yet.
TEST_P(Tiers, WhoStopsAlsoStoresTheRestOfWhatIsOutInPart) {
  const auto ends_with = [&](int n) {
    Prompt prompt = prompt_;
    for (const auto token : random_prompt(random_, n)) prompt.push_back(token);
    return prompt;
  };
  for (int turns = 0; turns < 40; ++turns) {
    SCOPED_TRACE(turns);
    contents_ = std::make_shared<Contents>();
    const Prompt next = ends_with(30);
    std::int32_t cached = 0;
    {
      Harness h(config());
      const auto s = store({.late = 60});
      h.attach(s, 1, /*n_buffers=*/2);
      for (int i = 0; i < 3; ++i) {
        h.submit({.prompt = ends_with(20), .max_tokens = 1});
        h.finish();
      }
      cached = h.cache().match(kv::Text(next), {});
      for (int i = 0; i < turns; ++i) h.step();
      h.engine().settle();
      for (int i = 0; i < 1000 && !(h.snapshot().settled && s->waiting_writes() == 0); ++i) h.step();
      s->stop({});
    }
    Harness h(config());
    h.attach(store());
    const auto id = h.submit({.prompt = next, .max_tokens = 1});
    h.finish();
    EXPECT_EQ(h.result(id).usage.loaded_tokens, cached / 8 * 8);
  }
}

TEST_P(Tiers, OthersFindNothing) {
  serve(prompt_, "salt", 1);
  for (const auto& [salt, model] : {std::pair("", 1), std::pair("salt", 2), std::pair("other", 1)}) {
    Harness h(config());
    h.attach(store(), static_cast<std::uint8_t>(model));
    const auto id = h.submit({.prompt = prompt_, .max_tokens = 8, .salt = salt});
    h.finish();
    EXPECT_EQ(h.result(id).usage.cached_tokens, 0) << salt << model;
    EXPECT_EQ(h.snapshot().tiers.found_nothing, 1);
  }
}

TEST_P(Tiers, APromptThatGoesOnElsewhereStartsOnWhatItShares) {
  serve(prompt_);
  Harness h(config());
  h.attach(store());
  Prompt other(prompt_.begin(), prompt_.begin() + 50);
  const auto id = h.submit({.prompt = other + random_prompt(random_, 40), .max_tokens = 8});
  h.finish();
  // In between there is no window, and no state.
  if (!forgets()) EXPECT_EQ(h.result(id).usage.cached_tokens, 48);
}

TEST_P(Tiers, WhatDoesNotComeIsComputed) {
  serve(prompt_);
  for (const StoreHabits& habits : {StoreHabits{.late = 30, .fails = 100}, StoreHabits{.late = 30, .fails = 20},
                                    StoreHabits{.late = 30, .lies = 100}, StoreHabits{.late = 30, .lies = 20},
                                    StoreHabits{.late = 30, .wrong_answer = 50}}) {
    const auto contents = std::make_shared<Contents>(*contents_);
    const auto s = std::make_shared<FakeStore>(contents, 5, habits);
    Harness h(config());
    h.attach(s);
    const auto id = h.submit({.prompt = prompt_, .max_tokens = 8});
    h.finish();  // every token is right
    if (habits.fails == 100 || habits.lies == 100) EXPECT_LT(h.result(id).usage.loaded_tokens, 96);
    if (habits.lies == 100) EXPECT_GT(s->refused(), 0);
    EXPECT_LE(h.snapshot().tiers.unsound, s->refused());  // the last ones nobody waits for
  }
}

// A test of the test: it would see a wrong block.
TEST_P(Tiers, ALieThatNothingCanTellIsSeenByTheOracle) {
  serve(prompt_);
  Harness h(config());
  h.check_faults = false;
  h.attach(store({.late = 0, .lies = 100, .undetectable = true}));
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 8});
  h.run();
  EXPECT_GT(h.result(id).usage.loaded_tokens, 0);
  EXPECT_TRUE(!h.executor().faults().empty() || !error_in(h.result(id), h.groups()).empty());
}

TEST_P(Tiers, NobodyWaitsForAStoreThatIsSilent) {
  serve(prompt_);
  const auto s = store();
  s->stall(true);
  Harness h(config());
  h.attach(s);
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 8});
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(h.step()) << "it has nothing to do but to wait";
  EXPECT_EQ(h.snapshot().steps, 0);
  h.now += 2s;
  h.finish();
  EXPECT_EQ(h.result(id).usage.cached_tokens, 0);
  EXPECT_EQ(h.snapshot().tiers.late, 1);
  s->stop({});
}

TEST_P(Tiers, NobodyWaitsForPiecesThatDoNotCome) {
  serve(prompt_);
  const auto s = store();
  Harness h(config());
  h.attach(s);
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 8});
  h.step();
  s->turn();  // the answer
  s->stall(true);
  for (int i = 0; i < 20; ++i) h.step();
  EXPECT_EQ(h.snapshot().steps, 0);
  EXPECT_EQ(h.snapshot().running_requests, 1);
  h.now += 100s;
  h.finish();
  EXPECT_EQ(h.result(id).usage.loaded_tokens, 0);
  EXPECT_EQ(h.snapshot().tiers.late, 1);
  s->stop({});
}

TEST_P(Tiers, OthersRunOnWhileOneLoads) {
  serve(prompt_);
  const auto s = store();
  Harness h(config());
  h.attach(s);
  s->stall(true);
  h.submit({.prompt = random_prompt(random_, 5), .max_tokens = 60});
  for (int i = 0; i < 5; ++i) h.step();
  h.submit({.prompt = prompt_, .max_tokens = 8});
  const auto before = h.snapshot().generated_tokens;
  for (int i = 0; i < 30; ++i) h.step();
  EXPECT_EQ(h.snapshot().generated_tokens, before + 30);
  s->stall(false);
  h.finish();
  EXPECT_EQ(h.snapshot().loaded_tokens, 96);
}

TEST_P(Tiers, TwoRequestsOfOneTextLoadItOnce) {
  serve(prompt_);
  const auto s = store({.late = 60});
  Harness h(config());
  h.attach(s);
  const auto a = h.submit({.prompt = prompt_, .max_tokens = 8}), b = h.submit({.prompt = prompt_, .max_tokens = 8});
  h.finish();
  EXPECT_EQ(h.snapshot().loaded_tokens, 96);
  EXPECT_EQ(h.snapshot().computed_tokens, 2 * 4);  // what is behind the last whole block
  EXPECT_EQ(h.result(a).usage.loaded_tokens + h.result(b).usage.loaded_tokens, 96);
}

TEST_P(Tiers, WhoEndsWhileItLoadsLeavesNothing) {
  serve(prompt_);
  const auto s = store({.late = 70});
  s->ignore_forget();
  Harness h(config());
  h.attach(s);
  for (int i = 0; i < 1000; ++i) {
    const auto id = h.submit({.prompt = prompt_ + random_prompt(random_, 3), .max_tokens = 8});
    for (int k = i % 7; k > 0; --k) h.step();
    h.cancel(id);
    h.step();
    ASSERT_EQ(h.snapshot().cache.in_use, 0);
    if (i % 3 == 0) h.ask({.kind = engine::PrefixCommand::Kind::kReset});
  }
  s->stop({});
  h.finish();
  EXPECT_GT(h.snapshot().tiers.loads, 50);
  h.ask({.kind = engine::PrefixCommand::Kind::kReset});
  EXPECT_EQ(h.snapshot().cache.free, h.snapshot().cache.total);
}

TEST_P(Tiers, AResetEndsWhatIsStoredOfThisModel) {
  serve(prompt_, "", 2);
  const std::size_t others = contents_->size();
  serve(prompt_);
  ASSERT_GT(contents_->size(), others);
  Harness h(config());
  h.attach(store());
  h.step();
  h.ask({.kind = engine::PrefixCommand::Kind::kReset});
  EXPECT_EQ(contents_->size(), others);
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 1});
  h.finish();
  EXPECT_EQ(h.result(id).usage.cached_tokens, 0);
}

TEST_P(Tiers, AResetOfOneTierLeavesTheOther) {
  serve(prompt_);
  Harness h(config());
  const auto s = store();
  h.attach(s);
  const auto cached = [&] {
    const auto id = h.submit({.prompt = prompt_, .max_tokens = 1});
    h.finish();
    return std::pair(h.result(id).usage.cached_tokens > 0, h.result(id).usage.loaded_tokens > 0);
  };
  EXPECT_EQ(cached(), std::pair(true, true));
  const auto reset = [&](engine::CacheTier tier) {
    return h.ask({.kind = engine::PrefixCommand::Kind::kReset, .tier = tier});
  };
  EXPECT_GT(reset(engine::CacheTier::kPool).blocks, 0);
  EXPECT_EQ(cached(), std::pair(true, true));
  EXPECT_TRUE(reset(engine::CacheTier::kRedis).absent);
  EXPECT_EQ(cached(), std::pair(true, false));
  EXPECT_FALSE(reset(engine::CacheTier::kDisk).absent);
  EXPECT_TRUE(contents_->empty());
  EXPECT_EQ(cached(), std::pair(true, false));
  s->stop({});
}

// It may be asked for before the model's hash is known, and so the store is there.
TEST_P(Tiers, AResetBeforeThereIsAStoreEndsWhatThatHolds) {
  serve(prompt_);
  Harness h(config());
  h.ask({.kind = engine::PrefixCommand::Kind::kReset});
  h.attach(store());
  h.step();
  EXPECT_TRUE(contents_->empty());
}

TEST_P(Tiers, WhatARevokedKeyHadGoesAndIsStoredNoMore) {
  const auto owner = [](char c) { return std::string(1, kv::Namespace::kOwnerMark) + std::string(32, c); };
  serve(prompt_, owner('b') + "salt");
  const std::size_t others = contents_->size();
  serve(prompt_, owner('a') + "salt");
  serve(prompt_, owner('a'));
  ASSERT_GT(contents_->size(), others);
  for (const bool before : {false, true}) {
    Harness h(config());
    const auto s = store();
    const engine::PrefixCommand command{
        .kind = engine::PrefixCommand::Kind::kKeepPayers, .payers = {owner('b')}, .revoked = {owner('a')}};
    if (before) h.ask(command);
    h.attach(s);
    h.step();
    if (!before) h.ask(command);
    EXPECT_EQ(contents_->size(), others);
    for (int i = 0; i < 2; ++i) {  // it was here already
      const auto id = h.submit({.prompt = prompt_, .max_tokens = 3, .salt = owner('a')});
      h.finish();
      EXPECT_EQ(h.result(id).usage.loaded_tokens, 0);
    }
    h.engine().settle();
    for (int i = 0; i < 100 && !h.snapshot().settled; ++i) h.step();
    s->stop({});
    EXPECT_EQ(contents_->size(), others);
  }
  Harness h(config());
  const auto s = store();
  h.attach(s);
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 1, .salt = owner('b') + "salt"});
  h.finish();
  EXPECT_GT(h.result(id).usage.loaded_tokens, 0);
  s->stop({});
}

TEST_P(Tiers, FewBuffersAreEnough) {
  serve(prompt_);
  Harness h(config());
  h.attach(store({.late = 50}), 1, /*n_buffers=*/1);
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 8});
  h.finish();
  EXPECT_EQ(h.result(id).usage.loaded_tokens, 96);
}

/// As of the host's memory: what lies there comes at once, and what the pool gives up for it leaves meanwhile.
TEST_P(Tiers, WhatAStoreSharesNeedsNoBuffersAndComesInOneStep) {
  serve(prompt_);
  Harness h(config());
  h.attach(store({.late = 30, .shares = true}), 1, /*n_buffers=*/1);
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 8});
  for (int i = 0; i < 100 && h.snapshot().loaded_tokens == 0; ++i) h.step();
  EXPECT_EQ(h.snapshot().loaded_tokens, 96);
  h.finish();
  EXPECT_EQ(h.result(id).usage.loaded_tokens, 96);
}

TEST_P(Tiers, AStoreThatTakesNothingIsOfferedABlockOnce) {
  Harness h(config());
  h.attach(store({.drops = 100}), 1, /*n_buffers=*/1);  // fewer than a block has groups
  for (int i = 0; i < 2; ++i) {
    h.submit({.prompt = prompt_, .max_tokens = 3});
    h.finish();
  }
  for (int i = 0; i < 1000 && !h.snapshot().settled; ++i) h.step();
  EXPECT_TRUE(h.snapshot().settled);
  EXPECT_GT(h.snapshot().tiers.refused, 0);
}

// By the test's clock each piece takes a millisecond; by the machine's a prompt is computed in much less.
TEST_P(Tiers, ASlowStoreLosesToAFastModel) {
  serve(prompt_);
  const Prompt second = random_prompt(random_, 100);
  serve(second);
  Harness h(config());
  h.attach(store(), 1, /*n_buffers=*/1);
  // The model's pace is real. On a busy machine a step takes ten times as long now and then, which must not count for
  // much: the store gives at most 8,000 tokens a second.
  for (int i = 0; i < 20 || (h.snapshot().prefill_tokens_per_second < 50'000 && i < 1'000); ++i) {
    h.submit({.prompt = random_prompt(random_, 60), .max_tokens = 1});
    h.finish();
  }
  ASSERT_GT(h.snapshot().prefill_tokens_per_second, 50'000);
  const auto asked = h.snapshot().tiers.asked;
  h.submit({.prompt = prompt_, .max_tokens = 1});
  while (h.snapshot().running_requests + h.snapshot().waiting_requests > 0 || h.snapshot().tiers.asked == asked) {
    h.now += 1ms;
    h.step();
  }
  ASSERT_GT(h.snapshot().loaded_tokens, 0);
  const auto id = h.submit({.prompt = second, .max_tokens = 1});
  h.finish();
  EXPECT_EQ(h.snapshot().tiers.not_worth, 1);
  EXPECT_EQ(h.result(id).usage.loaded_tokens, 0);
}

TEST_P(Tiers, WhatIsEvictedAfterItsSecondUseComesBack) {
  HarnessConfig small = config();
  small.num_blocks = scaled(groups(), 40);
  Harness h(small);
  const auto s = store();
  h.attach(s);
  for (int i = 0; i < 2; ++i) {
    h.submit({.prompt = prompt_, .max_tokens = 3});
    h.finish();
  }
  while (h.cache().match(kv::Text(prompt_), {}) > 0) {
    h.submit({.prompt = random_prompt(random_, 120), .max_tokens = 3});
    h.finish();
  }
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 3});
  h.finish();
  EXPECT_GE(h.result(id).usage.cached_tokens, 96);
  EXPECT_GT(h.result(id).usage.loaded_tokens, 0);
}

TEST_P(Tiers, AFailedStepLosesWhatItMoved) {
  serve(prompt_);
  Harness h(config());
  const auto s = store();
  h.attach(s);
  h.executor().fail_at(1);
  const auto other = h.submit({.prompt = random_prompt(random_, 100), .max_tokens = 5});
  const auto id = h.submit({.prompt = prompt_, .max_tokens = 8});
  h.run();
  EXPECT_TRUE(h.result(other).done && h.result(id).done);
  EXPECT_EQ(h.snapshot().cache.in_use, 0);
  const auto again = h.submit({.prompt = prompt_, .max_tokens = 8});
  h.run();
  EXPECT_EQ(error_in(h.result(again), h.groups()), "");
}

}  // namespace
}  // namespace coppice::testing
