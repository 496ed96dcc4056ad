// The executor on tiny random models: what must hold for any weights, in milliseconds and without the model file.
#include "executor/tiny.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "support/executor_rig.h"

namespace coppice {
namespace {

using executor::Batch;
using executor::Executor;
using executor::StepError;
using test::ExecutorRig;
using test::load;
using test::random_tokens;
using test::RigPart;
using test::RigSequence;
using test::Row;
using test::tiny_path;
using test::Want;

/// Logits of every token, computed alone in a fresh sequence.
std::vector<Row> alone(ExecutorRig& rig, std::span<const kv::Token> tokens) {
  RigSequence s;
  return rig.feed(s, tokens, 256, Want::kAll);
}

struct Setup {
  const char* attention;
  const char* kv_format;
  /// Between schedules. They decide what attention multiplies as f32 and what as 16-bit numbers, and a product's last
  /// bits, which may change an f16 or a code in the pool.
  double tolerance;
};

class TinyTest : public testing::TestWithParam<Setup> {
 protected:
  std::unique_ptr<Executor> executor_ = load(tiny_path("plain", {}), GetParam().attention, 32, 1, GetParam().kv_format);
  ExecutorRig rig_{*executor_, 7};
  std::mt19937 random_{42};

  void expect_close(const Row& a, const Row& b, const std::string& what) {
    EXPECT_LT(test::relative_rms(a, b), GetParam().tolerance) << what;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, TinyTest,
                         testing::Values(Setup{"tree", "f16", 5e-4}, Setup{"gather", "f16", 5e-4},
                                         Setup{"dense", "f16", 3e-4}, Setup{"tree", "int8", 1e-3},
                                         Setup{"dense", "int8", 1e-3}, Setup{"tree", "turbo4", 1e-2},
                                         Setup{"dense", "turbo4", 1e-2}),
                         [](const auto& info) {
                           return std::string(info.param.attention) + "_" + info.param.kv_format;
                         });

TEST_P(TinyTest, MixedPrefillAndDecodeEqualSeparateSteps) {
  const auto a = random_tokens(random_, 71), b = random_tokens(random_, 40), c = random_tokens(random_, 33);
  const auto ra = alone(rig_, a), rb = alone(rig_, b), rc = alone(rig_, c);
  RigSequence sa, sb, sc;
  rig_.feed(sa, std::span(a).first(70), 256);
  rig_.feed(sb, std::span(b).first(9), 256);
  rig_.feed(sc, std::span(c).first(32), 256);
  const RigPart parts[] = {
      {&sa, std::span(a).subspan(70)}, {&sb, std::span(b).subspan(9), Want::kAll}, {&sc, std::span(c).subspan(32)}};
  const auto rows = rig_.step(parts);
  ASSERT_EQ(rows.size(), 33U);
  expect_close(rows.front(), ra[70], "decode");
  for (int i = 0; i < 31; ++i)
    expect_close(rows[static_cast<std::size_t>(i) + 1], rb[static_cast<std::size_t>(i) + 9], "chunk");
  expect_close(rows.back(), rc[32], "decode at a block's start");
}

TEST_P(TinyTest, PlanningIsTimedInEveryStep) {
  RigSequence sequence;
  for (int i = 0; i < 3; ++i) {
    const double before = executor_->planning_seconds();
    rig_.feed(sequence, random_tokens(random_, 9), 9);
    EXPECT_GT(executor_->planning_seconds(), before);
  }
}

TEST_P(TinyTest, SequencesOnSharedBlocksEqualSequencesOfTheirOwn) {
  const auto prefix = random_tokens(random_, 150);
  RigSequence base;
  rig_.feed(base, prefix, 100);
  std::vector<RigSequence> forks;
  std::vector<std::vector<kv::Token>> tails;
  for (int i = 0; i < 8; ++i) {
    forks.push_back(rig_.fork(base, 100 + 7 * i));  // whole and partial blocks, different depths
    tails.push_back(random_tokens(random_, 6));
  }
  std::vector<std::vector<Row>> rows(8);
  for (std::size_t step = 0; step < 6; step += 2) {  // chunks of two, then of one
    for (const std::size_t n : {step == 0 ? std::size_t{2} : std::size_t{1}}) {
      for (std::size_t at = step; at < step + 2; at += n) {
        std::vector<RigPart> parts;
        for (std::size_t i = 0; i < 8; ++i)
          parts.push_back({&forks[i], std::span(tails[i]).subspan(at, n), Want::kAll});
        const auto out = rig_.step(parts);
        for (std::size_t i = 0; i < out.size(); ++i) rows[i / n].push_back(out[i]);
      }
    }
  }
  for (std::size_t i = 0; i < 8; ++i) {
    std::vector<kv::Token> whole(prefix.begin(), prefix.begin() + 100 + 7 * static_cast<int>(i));
    whole.insert(whole.end(), tails[i].begin(), tails[i].end());
    const auto expected = alone(rig_, whole);
    ASSERT_EQ(rows[i].size(), 6U);
    for (std::size_t j = 0; j < 6; ++j)
      expect_close(rows[i][j], expected[whole.size() - 6 + j], "fork " + std::to_string(i));
  }
}

TEST_P(TinyTest, CopiesRunInListOrderAndBeforeTheStepsWrites) {
  const auto tokens = random_tokens(random_, 46), other = random_tokens(random_, 20);
  const auto expected = alone(rig_, tokens);
  RigSequence a;
  rig_.feed(a, std::span(tokens).first(45), 256);
  // a's partial block goes through a chain of copies, and in the same step somebody else writes over it.
  RigSequence b = a;
  const kv::BlockId middle = rig_.take();
  b.blocks.back() = rig_.take();
  rig_.add_copy({.src = a.blocks.back(), .dst = middle, .n_slots = 13});
  rig_.add_copy({.src = middle, .dst = b.blocks.back(), .n_slots = 13});
  RigSequence thief;
  const RigPart parts[] = {{&b, std::span(tokens).subspan(45)}, {&thief, other, Want::kNone}};
  const Batch batch = rig_.batch(parts);
  thief.blocks.back() = a.blocks.back();  // the batch's table is a view of it
  expect_close(rig_.run(batch).front(), expected[45], "forked row");
}

TEST_P(TinyTest, PaddingRowsTouchNothing) {
  const auto tokens = random_tokens(random_, 60);
  RigSequence resident;
  rig_.feed(resident, std::span(tokens).first(59), 256);
  // A table whose first block is the null block reads zeros there, as long as nobody wrote to it.
  RigSequence on_null;
  rig_.feed(on_null, random_tokens(random_, 40), 256);
  on_null.blocks[0] = kv::kNullBlock;
  const auto probe = [&] {
    RigSequence a = resident, b = on_null;
    std::vector<Row> rows = rig_.step({&a, std::span(tokens).subspan(59)});
    rows.push_back(rig_.step({&b, std::span(tokens).subspan(59)}).front());
    return rows;
  };
  const auto before = probe();
  for (const int n : {17, 33, 65, 70, 129}) {
    RigSequence s;
    rig_.step({&s, random_tokens(random_, n), Want::kNone});
  }
  EXPECT_EQ(probe(), before);
}

TEST_P(TinyTest, OnlyTheRowsAskedForAndTheSameOnesWhateverIsAsked) {
  const auto tokens = random_tokens(random_, 50);
  const auto all = alone(rig_, tokens);
  ASSERT_EQ(all.size(), 50U);
  RigSequence s;
  const RigPart parts[] = {{&s, tokens, Want::kNone}};
  Batch batch = rig_.batch(parts);
  EXPECT_TRUE(rig_.run(batch).empty());
  batch.logit_rows = {0, 7, 31, 49};
  const auto some = rig_.run(batch);  // the same keys and values once more
  ASSERT_EQ(some.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    expect_close(some[i], all[static_cast<std::size_t>(batch.logit_rows[i])], "row");
  }
}

TEST_P(TinyTest, HiddenStatesOfTheRowsAskedForWithAndWithoutLogits) {
  const auto tokens = random_tokens(random_, 50);
  RigSequence s;
  const RigPart parts[] = {{&s, tokens, Want::kNone}};
  Batch batch = rig_.batch(parts);
  const auto run = [&](std::vector<std::int32_t> logits, std::vector<std::int32_t> hidden) {
    batch.logit_rows = std::move(logits), batch.hidden_rows = std::move(hidden);
    const executor::Result result = executor_->forward(batch);
    std::vector<Row> rows;
    for (std::size_t i = 0; i < batch.logit_rows.size(); ++i)
      rows.emplace_back(result.logits.row(i).begin(), result.logits.row(i).end());
    const executor::HiddenStates states = result.hidden_states;
    EXPECT_EQ(states.data.size(), batch.hidden_rows.size() * static_cast<std::size_t>(executor_->info().n_embd));
    for (std::size_t i = 0; i < batch.hidden_rows.size(); ++i)
      rows.emplace_back(states.row(i).begin(), states.row(i).end());
    return rows;
  };
  const auto logits = run({7, 49}, {}), hidden = run({}, {3, 7, 49}), both = run({7, 49}, {3, 7, 49});
  for (std::size_t i = 0; i < 2; ++i) expect_close(both[i], logits[i], "logits");
  for (std::size_t i = 0; i < 3; ++i) expect_close(both[2 + i], hidden[i], "hidden states");
  std::vector<std::int32_t> every(50);
  std::iota(every.begin(), every.end(), 0);
  expect_close(run({}, every)[7], hidden[1], "one of all");
  // Behind the norm, before its weights, the mean square is 1: of random weights about 1 it stays near that.
  double squares = 0;
  for (const float x : hidden[0]) squares += double{x} * double{x};
  EXPECT_NEAR(squares / static_cast<double>(hidden[0].size()), 1, 0.5);
}

TEST_P(TinyTest, WhatCannotBeRunIsAnErrorAndTheExecutorLivesOn) {
  const auto tokens = random_tokens(random_, 40);
  RigSequence s;
  const RigPart parts[] = {{&s, tokens}};
  const Batch good = rig_.batch(parts);
  const auto expected = rig_.run(good);
  const auto refused = [&](auto&& spoil) {
    Batch bad = good;
    spoil(bad);
    EXPECT_THROW(executor_->forward(bad), StepError);
  };
  refused([](Batch& b) { b.rows[3] = 320; });
  refused([](Batch& b) { b.rows[3] = -1; });
  refused([](Batch& b) { b.sequences[0].first_position = -1; });
  refused([](Batch& b) { b.sequences[0].first_position = 25; });
  refused([](Batch& b) { b.sequences[0].first_position = std::numeric_limits<std::int32_t>::max(); });
  refused([](Batch& b) { b.sequences[0].tables.clear(); });
  refused([](Batch& b) {  // the same rows once more
    b.rows.insert(b.rows.end(), b.rows.begin(), b.rows.begin() + 40);
    b.sequences.push_back(b.sequences[0]);
  });
  refused([](Batch& b) { b.logit_rows = {40}; });
  refused([](Batch& b) { b.logit_rows = {5, 5}; });
  refused([](Batch& b) { b.hidden_rows = {40}; });
  refused([](Batch& b) { b.hidden_rows = {5, 5}; });
  refused([](Batch& b) { b.sequences.clear(); });
  refused([](Batch& b) { b.rows[3] = executor::RowSource::drawn(0); });
  const std::vector<float> values(static_cast<std::size_t>(executor_->info().n_embd), 1.0F);
  refused([&](Batch& b) {
    b.rows[3] = executor::RowSource::embedding(1);
    b.embeddings = {values};
  });
  refused([&](Batch& b) {
    b.rows[3] = executor::RowSource::embedding(0);
    b.embeddings = {std::span(values).first(values.size() - 1)};
  });
  refused([](Batch& b) { b.sequences[0].both_ways = {{-1, 3}}; });
  refused([](Batch& b) { b.sequences[0].both_ways = {{3, 3}}; });
  refused([](Batch& b) { b.sequences[0].both_ways = {{3, 41}}; });
  refused([](Batch& b) { b.sequences[0].both_ways = {{3, 6}, {5, 7}}; });
  refused([](Batch& b) { b.positions.resize(b.rows.size()); });
  refused([](Batch& b) { b.sequences[0].n_rows = 39; });
  refused([](Batch& b) { b.sequences[0].n_rows = 41; });
  refused([](Batch& b) { b.sequences[0].n_rows = 0; });
  refused([](Batch& b) { b.sequences[0].tables[0].blocks = b.sequences[0].tables[0].blocks.first(1); });
  refused([](Batch& b) { b.sequences[0].tables[0].block_size = 16; });
  refused([](Batch& b) { b.block_ops.push_back({.src = 1, .dst = kv::kNullBlock, .n_slots = 3}); });
  refused([](Batch& b) { b.block_ops.push_back({.src = 1, .dst = 1 << 20, .n_slots = 3}); });
  refused([](Batch& b) { b.block_ops.push_back({.src = 1, .dst = 2, .n_slots = 33}); });
  std::vector<std::byte> outside(executor_->info().outside_bytes(0));
  const auto moves = [&](kv::BlockOp op, std::size_t bytes) {
    return [=, &outside](Batch& b) {
      b.outside = {std::span(outside).first(bytes)};
      b.block_ops.push_back(op);
    };
  };
  using enum kv::BlockOp::Kind;
  refused(moves({.kind = kStore, .src = 1, .n_slots = 32}, outside.size() - 1));
  refused(moves({.kind = kStore, .src = 1, .n_slots = 3}, outside.size()));
  refused(moves({.kind = kStore, .src = 1, .n_slots = 32, .outside = 1}, outside.size()));
  refused(moves({.kind = kStore, .src = kv::kNullBlock, .n_slots = 32}, outside.size()));
  refused(moves({.kind = kStore, .src = 1, .n_slots = 32, .group = 1}, outside.size()));
  refused(moves({.kind = kLoad, .dst = kv::kNullBlock, .n_slots = 32}, outside.size()));
  refused(moves({.kind = kLoad, .dst = 1 << 20, .n_slots = 32}, outside.size()));
  refused([](Batch& b) { b = Batch{}; });
  for (const kv::BlockId id : {kv::BlockId{-1}, executor_->info().num_blocks, kv::kNullBlock, s.blocks[1]}) {
    const std::vector<kv::BlockId> wrong = {id, s.blocks[1]};
    refused([&](Batch& b) { b.sequences[0].tables[0].blocks = wrong; });
  }
  EXPECT_EQ(rig_.run(good), expected);
}

}  // namespace
}  // namespace coppice
