// What one server's pool holds of a text, in another one's: blocks and states leave one executor as bytes and come into
// a second one with another pool and other block ids. Decodes that go on from there give the same bits.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "executor/tiny.h"
#include "support/family_models.h"

namespace coppice {
namespace {

using executor::Batch;
using executor::Executor;
using kv::BlockId;
using kv::BlockOp;
using test::ExecutorRig;
using test::FamilyModel;
using test::RigSequence;
using test::Row;
using test::Want;

constexpr int kBlockSize = 8, kTokens = 15 * kBlockSize, kDecodes = 9;

/// All blocks and the last state of a sequence, in one order.
template <class F>
void for_each_page(RigSequence& sequence, int state_group, F&& f) {
  int group = 0;
  for (BlockId& id : sequence.blocks) f(group, id);
  for (auto& blocks : sequence.more) {
    ++group;
    for (BlockId& id : blocks) f(group, id);
  }
  if (sequence.states.empty()) return;
  for (BlockId& id : sequence.states.rbegin()->second) f(state_group, id);
}

class MovesTest : public testing::TestWithParam<std::tuple<FamilyModel, const char*>> {
 protected:
  std::unique_ptr<Executor> executor(std::size_t pool) const {
    const FamilyModel& family = std::get<0>(GetParam());
    return test::load(test::tiny_path(family.name, family.model), "auto", kBlockSize, 1, std::get<1>(GetParam()), pool);
  }
};

std::vector<FamilyModel> all_families() {
  std::vector<FamilyModel> all = test::family_models();
  for (FamilyModel& hybrid : test::hybrid_models()) all.push_back(std::move(hybrid));
  return all;
}

INSTANTIATE_TEST_SUITE_P(Families, MovesTest,
                         testing::Combine(testing::ValuesIn(all_families()), testing::Values("f16", "int8")),
                         [](const auto& info) { return std::get<0>(info.param).name + "_" + std::get<1>(info.param); });

TEST_P(MovesTest, AnotherExecutorGoesOnWithTheSameBits) {
  std::mt19937 random(3);
  const auto tokens = test::random_tokens(random, kTokens + kDecodes);
  const auto prompt = std::span(tokens).first(kTokens), answer = std::span(tokens).subspan(kTokens);
  const auto here = executor(std::size_t{16} << 20), there = executor(std::size_t{12} << 20);
  ASSERT_TRUE(here->info().moves_blocks);
  ExecutorRig rig(*here, 11), other_rig(*there, 12);
  RigSequence s;
  rig.feed(s, prompt, 40);

  const int state_group = static_cast<int>(here->info().groups.size()) - 1;
  std::vector<std::vector<std::byte>> memory;
  Batch stores;
  for_each_page(s, state_group, [&](int group, BlockId id) {
    stores.block_ops.push_back(
        {.kind = BlockOp::Kind::kStore, .src = id, .n_slots = kBlockSize, .group = group, .outside = memory.size()});
    memory.emplace_back(here->info().outside_bytes(group));
  });
  stores.outside.assign(memory.begin(), memory.end());
  here->forward(stores);

  RigSequence came{.blocks = s.blocks, .more = s.more, .states = {}, .len = s.len};
  if (!s.states.empty()) came.states[s.len] = s.states.at(s.len);
  Batch loads{.block_ops = {}, .outside = stores.outside};
  for_each_page(came, state_group, [&](int group, BlockId& id) {
    id = other_rig.take();
    loads.block_ops.push_back({.kind = BlockOp::Kind::kLoad,
                               .dst = id,
                               .n_slots = kBlockSize,
                               .group = group,
                               .outside = loads.block_ops.size()});
  });
  there->forward(loads);
  EXPECT_EQ(rig.feed(s, answer, 1, Want::kAll), other_rig.feed(came, answer, 1, Want::kAll));
}

}  // namespace
}  // namespace coppice
