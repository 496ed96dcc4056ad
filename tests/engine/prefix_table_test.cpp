// The table of pinned prefixes: shares, refusals, which pins give way, and what is counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/pinned_pool.h"

namespace coppice::testing {
namespace {

// Of 60 blocks of tokens an owner may pin 15, all together 30.
TEST(PrefixTable, SharesAreHeld) {
  std::mt19937_64 random(8);
  Pool h(small(Groups::kFull));
  const auto first = random_prompt(random, 6 * kBlock), second = random_prompt(random, 10 * kBlock);
  EXPECT_TRUE(h.pin(first, object(first.size()), "", "a").prefix);
  const auto refused = h.pin(second, object(second.size()), "", "a");
  EXPECT_FALSE(refused.prefix);
  EXPECT_EQ(refused.refusal, PinRefusal::kOwnersShare);
  EXPECT_EQ(refused.needed, 16);
  EXPECT_EQ(refused.most, 15);
  EXPECT_TRUE(h.pin(first + random_prompt(random, 4 * kBlock), object(10 * kBlock), "", "a").prefix);
  EXPECT_EQ(h.snapshot().cache.pinned, 10) << "the blocks that two pins share count once";
  for (const char* owner : {"b", "c"}) {
    const auto prompt = random_prompt(random, 9 * kBlock);
    EXPECT_TRUE(h.pin(prompt, object(prompt.size()), "", owner).prefix);
  }
  EXPECT_EQ(h.snapshot().cache.pinned, 28);
  const auto full = h.pin(second, object(second.size()), "", "d");
  EXPECT_FALSE(full.prefix);
  EXPECT_EQ(full.refusal, PinRefusal::kShare);
  EXPECT_EQ(full.needed, 38);
  EXPECT_EQ(full.most, 30);
  EXPECT_EQ(h.snapshot().cache.pins, 4) << "no old one was ended for it";
  EXPECT_TRUE(h.pin(first, object(first.size()), "", "d").prefix) << "what is pinned takes no more room";
}

TEST(PrefixTable, LessThanABlockIsRefused) {
  Pool h(small(Groups::kFull));
  const auto outcome = h.pin(Prompt(kBlock - 1, 3), object(kBlock - 1));
  EXPECT_FALSE(outcome.prefix);
  EXPECT_EQ(outcome.refusal, PinRefusal::kTooShort);
}

// Marks before objects, the first to end before others, and what the request itself stands on last.
TEST(PrefixTable, WhichPinsGiveWay) {
  std::mt19937_64 random(22);
  HarnessConfig config = small(Groups::kFull, 16);
  config.pin_share = config.pin_share_of_key = 1;
  config.context_length = 15 * kBlock;
  Pool h(config);
  const auto own = random_prompt(random, 2 * kBlock);
  h.pin(own, mark(own.size(), 1));
  h.pin(random_prompt(random, 2 * kBlock), object(2 * kBlock, 50, "soon"));
  h.pin(random_prompt(random, 2 * kBlock), object(2 * kBlock, 90, "late"));
  h.pin(random_prompt(random, 2 * kBlock), mark(2 * kBlock, 99));
  const auto names = [&] {
    std::vector<std::string> names;
    for (const auto& prefix : h.list())
      names.push_back(prefix.object ? prefix.name : prefix.ttl == seconds(1) ? "own" : "mark");
    std::ranges::sort(names);
    return names;
  };
  using Names = std::vector<std::string>;
  for (const auto& [blocks, left] : {std::pair(8U, Names{"late", "mark", "own", "soon"}),
                                     {9, {"late", "own", "soon"}},
                                     {11, {"late", "own"}},
                                     {14, {"own"}}}) {
    const auto id = h.submit({.prompt = own + random_prompt(random, (blocks - 2) * kBlock - 1), .max_tokens = 1});
    h.finish();
    EXPECT_FALSE(h.result(id).refusal) << h.result(id).message;
    EXPECT_EQ(names(), left) << blocks << " blocks";
  }
  EXPECT_EQ(h.snapshot().pins_given_up, 3);
}

// The smallest: half of a pinned block agrees; and all of it, but a sibling's half was found first.
TEST(PrefixTable, APartOfAPinnedBlockIsNoHit) {
  Pool h(small(Groups::kFull));
  const Prompt pinned(2 * kBlock, 3);
  h.pin(pinned, mark(pinned.size(), 60));
  h.now += seconds(50);
  h.cached(Prompt(2 * kBlock - 4, 3) + Prompt{7, 8, 9});
  ASSERT_EQ(h.list().size(), 1U);
  EXPECT_EQ(h.list()[0].hits, 0);
  EXPECT_EQ(h.list()[0].expires - h.now, seconds(10)) << "and it is not renewed";
  h.cached(Prompt(2 * kBlock - 1, 3) + Prompt{2, 2});
  h.cached(pinned);
  EXPECT_EQ(h.list()[0].hits, 1);
  EXPECT_EQ(h.list()[0].saved_tokens, 2 * kBlock - 1);
  EXPECT_EQ(h.list()[0].expires - h.now, seconds(60));
}

// Whoever watches must be told, though nothing runs.
TEST(PrefixTable, ItsChangesAreCounted) {
  Pool h(small(Groups::kFull));
  const Prompt prompt(2 * kBlock, 3);
  auto last = h.snapshot().pin_changes;
  const auto changed = [&] { return std::exchange(last, h.snapshot().pin_changes) != last; };
  h.cached(prompt);
  EXPECT_FALSE(changed());
  const auto pin = h.pin(prompt, object(prompt.size(), 60));
  EXPECT_TRUE(changed());
  h.list();
  EXPECT_FALSE(changed()) << "a question";
  h.ask({.kind = Kind::kEnd, .owner = {}, .prefix = pin.prefix->id});
  EXPECT_TRUE(changed());
  h.pin(prompt, object(prompt.size(), 60));
  EXPECT_TRUE(changed());
  h.now += seconds(60);
  h.step();
  EXPECT_TRUE(changed()) << "its time is over";
  h.ask({.kind = Kind::kReset});
  EXPECT_TRUE(changed()) << "a reset without pins";
}

// Pins are nobody who runs: without this, whoever pins a prefix would pass others in the queue.
TEST(PrefixTable, PinsEndWithTheirPayer) {
  std::mt19937_64 random(1);
  Pool h(small(Groups::kFull));
  const auto first = random_prompt(random, 5 * kBlock), second = random_prompt(random, 5 * kBlock);
  EXPECT_TRUE(h.pin(first, object(first.size()), "", "gone").prefix);
  EXPECT_TRUE(h.pin(second, object(second.size()), "", "stays").prefix);
  h.ask({.kind = Kind::kKeepPayers, .payers = {"stays"}});
  EXPECT_TRUE(h.list("gone").empty());
  EXPECT_EQ(h.list("stays").size(), 1U);
  EXPECT_FALSE(h.pin(first, object(first.size()), "", "gone").prefix) << "of a request that was there before";
  EXPECT_TRUE(h.list("gone").empty());
  EXPECT_TRUE(h.pin(first, object(first.size()), "", "stays").prefix);
}

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
    done = events.back().ended.has_value();
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

}  // namespace
}  // namespace coppice::testing
