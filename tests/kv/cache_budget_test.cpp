// The budget: figures, reservations, eviction, and saying no.
#include "support/kv_fixture.h"

namespace coppice::test {
namespace {

class CacheBudgetTest : public KvTest {
 protected:
  std::int64_t per_group(int blocks) const { return std::int64_t{blocks} * n_groups(); }
  std::size_t bytes(std::int64_t blocks) {
    return static_cast<std::size_t>(blocks) * rig().cache().config().bytes_per_block;
  }
};

TEST_P(CacheBudgetTest, FiguresFollowARequest) {
  open(12);
  EXPECT_EQ(stats().total, per_group(12));
  EXPECT_EQ(stats().free, per_group(12));
  EXPECT_EQ(stats().bytes_budget, bytes(per_group(12)));
  EXPECT_EQ(stats().block_size, bs());

  const SeqId seq = start(words(100, bs() + 1));
  EXPECT_EQ(stats().free, per_group(12)) << "promised is not taken";
  EXPECT_EQ(stats().reserved, per_group(2 + 2)) << "the prompt, one growth and one fork block";
  EXPECT_EQ(stats().sequences, 1);
  prefill(seq, words(100, bs() + 1));
  EXPECT_EQ(stats().in_use, per_group(2));
  EXPECT_EQ(stats().free, per_group(10));
  EXPECT_EQ(stats().cached, 0);
  EXPECT_EQ(stats().reserved, per_group(2));
  EXPECT_EQ(stats().max_refs, 1);
  EXPECT_EQ(stats().bytes_in_use, bytes(per_group(2)));

  rig().finish(seq);
  EXPECT_EQ(stats().in_use, 0);
  EXPECT_EQ(stats().cached, per_group(2));
  EXPECT_EQ(stats().reserved, 0);
  EXPECT_EQ(stats().bytes_in_use, 0U);
  EXPECT_EQ(stats().bytes_peak, bytes(per_group(2))) << "peak in use, not pool size";
  EXPECT_EQ(stats().max_refs, 0);
}

TEST_P(CacheBudgetTest, AdmissionIsRefusedWithTheFigures) {
  open(6);
  const SeqId first = start(words(100, 2 * bs()));
  const Tokens prompt = words(900, 2 * bs()), giant = words(100, 10 * bs());
  const auto refused = rig().cache().admit({.prompt = prompt});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().needed, per_group(4));
  EXPECT_EQ(refused.error().needed, rig().cache().blocks_needed(2 * bs(), 1));
  EXPECT_EQ(refused.error().available, per_group(2));
  EXPECT_FALSE(refused.error().never);

  const auto never = rig().cache().admit({.prompt = giant});
  ASSERT_FALSE(never);
  EXPECT_EQ(never.error().needed, per_group(12));
  EXPECT_TRUE(never.error().never);

  rig().finish(first);
  EXPECT_TRUE(rig().admit(prompt)) << "waiting helped";
}

TEST_P(CacheBudgetTest, EverySampleReservesGrowthAndFork) {
  open(24);
  const SeqId seq = start(words(100, 3), {}, 4);
  EXPECT_EQ(stats().reserved, per_group(1 + 4 * 2));
  prefill(seq, words(100, 3));
  EXPECT_EQ(rig().cache().reserved(seq), per_group(8));
  const SeqId sample = rig().fork(seq);
  EXPECT_EQ(rig().cache().reserved(sample), per_group(2));
  EXPECT_EQ(rig().cache().reserved(seq), per_group(6));
  rig().finish(sample);
  EXPECT_EQ(stats().reserved, per_group(6));
}

// Two caches with one history, but that in one of them a request asked a thousand times in vain: the same blocks go,
// now and later, also where that depends on what was learned of how texts return.
TEST_P(CacheBudgetTest, ARefusedRequestLeavesNoTrace) {
  const auto live = [&](int refusals) {
    open(60, /*verify_each=*/false);
    const Tokens asked = words(100, 12 * bs() + bs() / 2);
    serve(asked);
    for (int i = 1; i <= 4; ++i) serve(words(1000 * i, 4 * bs()));
    serve(words(1000, 4 * bs()));  // used twice: a distance is learned
    const SeqId large = run(words(50000, 20 * bs()));
    for (int i = 0; i < refusals; ++i) {
      const Tokens prompt = asked + words(90000, 10 * bs());
      EXPECT_FALSE(rig().cache().admit({.prompt = prompt, .n_samples = 40}));
    }
    std::vector<std::string> seen = {rig().cache().dump(), std::to_string(stats().bytes_peak)};
    rig().finish(large);
    for (int i = 1; i <= 40; ++i) {  // the pool turns over; some texts come back
      serve(words(100000 + 1000 * i, (1 + i % 5) * bs()));
      if (i % 3 == 0) serve(words(100000 + 1000 * (i - 2), (1 + (i - 2) % 5) * bs()));
      if (i == 5) serve(words(2000, 4 * bs()));
      seen.push_back(rig().cache().dump());
    }
    seen.push_back(std::to_string(stats().bytes_peak));
    return seen;
  };
  const auto calm = live(0), asked = live(1000);
  EXPECT_GT(stats().evictions, per_group(20));
  for (std::size_t i = 0; i < calm.size(); ++i) ASSERT_EQ(calm[i], asked[i]) << "after " << i << " texts";
}

// The pool is promised to the last block, and partly full of cached text: everybody gets what was promised.
TEST_P(CacheBudgetTest, AReservedBlockCanAlwaysBeHad) {
  open(12);
  serve(words(5000, 6 * bs()));
  const Tokens a = words(100, 2 * bs() + 3), b = words(900, 3 * bs());
  const SeqId first = start(a, {}, 2), second = start(b);
  EXPECT_EQ(stats().reserved, per_group(3 + 4 + 3 + 2));
  EXPECT_FALSE(rig().admit(Tokens{9})) << "not a block is left to promise";

  prefill(first, a);
  prefill(second, b);
  const SeqId sample = rig().fork(first);
  for (const SeqId s : {first, second, sample}) feed(s, {7});
  EXPECT_GT(stats().evictions, 0);
}

// Somebody else's promise is no room.
TEST_P(CacheBudgetTest, GrowthStopsAtWhatIsPromisedToOthers) {
  open(8);
  const SeqId greedy = run(words(100, bs()));       // 1 block, 2 promised
  const SeqId other = start(words(900, 2 * bs()));  // 4 promised
  bool refused = false;
  for (int i = 0; i < 20 && !refused; ++i) {
    refused = !rig().extend(greedy, words(200 + i * bs(), bs()));
    rig().run_step();
  }
  EXPECT_TRUE(refused);
  prefill(other, words(900, 2 * bs()));
  feed(other, {7});
}

TEST_P(CacheBudgetTest, OutOfBlocksChangesNothingAndEndsWithRoom) {
  open(6);
  const SeqId one = run(words(100, bs())), two = run(words(900, bs()));
  while (rig().extend(one, words(200, bs()))) rig().run_step();
  const Tokens table = blocks_of(one);
  const std::int64_t evictions = stats().evictions;
  EXPECT_FALSE(rig().extend(one, words(300, bs())));
  EXPECT_EQ(blocks_of(one), table);
  EXPECT_EQ(stats().evictions, evictions);
  rig().finish(two);  // preempted
  EXPECT_TRUE(rig().extend(one, words(300, bs()))) << rig().failure();
  rig().run_step();
}

TEST_P(CacheBudgetTest, TheLongestUnusedTextIsEvictedFirst) {
  open(6);
  const Tokens old = words(100, 2 * bs()), used = words(900, 2 * bs());
  serve(used);
  serve(old);
  serve(used);                   // a hit makes it young again
  serve(words(5000, 4 * bs()));  // more than what left the windows makes free
  EXPECT_GE(stats().evictions, per_group(1));
  EXPECT_EQ(rig().match(used), 2 * bs());
  EXPECT_LT(rig().match(old), 2 * bs());
}

// Only the tail goes: what is left is still a prefix.
TEST_P(CacheBudgetTest, APathIsEvictedFromItsEnd) {
  if (n_groups() > 1) GTEST_SKIP() << "with windows, what they left goes first: cache_window_test";
  open(6);
  const Tokens text = words(100, 4 * bs());
  serve(text);
  for (int k = 1; k <= 3; ++k) {
    serve(words(1000 * k, (k == 1 ? 3 : 1) * bs()));  // one block more than is free
    EXPECT_EQ(rig().match(text), (4 - k) * bs()) << rig().cache().dump();
    EXPECT_EQ(stats().evictions, k);
  }
}

// The failed step wrote behind the published tail, into slots that nobody reads.
TEST_P(CacheBudgetTest, AFailedStepLeavesWhatWasPublished) {
  open(8);
  const Tokens prompt = words(100, 2 * bs() + 5);
  const SeqId seq = start(prompt);
  feed(seq, words(100, bs() + 3));
  ASSERT_TRUE(rig().extend(seq, words(100 + bs() + 3, 5)));
  rig().fail_step(/*copies_done=*/true);
  EXPECT_EQ(stats().in_use, 0);
  EXPECT_EQ(stats().cached, per_group(2));
  EXPECT_EQ(stats().reserved, 0);
  EXPECT_EQ(rig().match(prompt), bs() + 3);
}

// Finished in the middle of planning a step: its fork's copy may never run, so its partial tail is not published.
TEST_P(CacheBudgetTest, PreemptionWithAForkInHandPublishesNoTail) {
  open(12);
  serve(words(100, bs() + 5));
  const SeqId seq = start(words(100, bs() + 5) + words(700, 3));
  ASSERT_TRUE(rig().extend(seq, words(700, 3)));
  EXPECT_EQ(rig().copies_in_hand().size(), static_cast<std::size_t>(n_groups()));
  rig().finish(seq);
  EXPECT_EQ(stats().in_use, 0);
  EXPECT_EQ(rig().match(words(100, bs() + 5)), bs() + 5);
  rig().fail_step(/*copies_done=*/false);
  rig().finish(start(words(100, bs() + 5) + Tokens{9}));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CacheBudgetTest, testing::ValuesIn(all_shapes()), shape_name);

TEST(CacheConfigTest, AConfigThatMakesNoSenseIsRefused) {
  const kv::CacheConfig good = make_config({}, 8);
  EXPECT_NO_THROW(kv::Cache{good});
  const auto refused = [&](auto spoil) {
    kv::CacheConfig bad = good;
    spoil(bad);
    EXPECT_THROW(kv::Cache{bad}, std::invalid_argument);
  };
  refused([](kv::CacheConfig& c) { c.block_size = 0; });
  refused([](kv::CacheConfig& c) { c.num_blocks = 1; });
  refused([](kv::CacheConfig& c) { c.groups.clear(); });
  refused([](kv::CacheConfig& c) { c.max_extend = 0; });
  refused([](kv::CacheConfig& c) { c.groups[0] = {.kind = kv::GroupKind::kSliding, .window = 8}; });
  refused([](kv::CacheConfig& c) { c.groups.push_back({.kind = kv::GroupKind::kSliding, .window = 0}); });
}

}  // namespace
}  // namespace coppice::test
