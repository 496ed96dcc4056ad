// The fake executor by itself: it must do all that a batch can ask for, also what no engine asks for yet.
#include "support/fake_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "support/fake_generation.h"

namespace coppice::testing {
namespace {

using kv::BlockId;
using kv::BlockOp;
using Hashes = std::vector<std::uint64_t>;

/// Steps by hand on one group of blocks of four slots.
class ByHand {
 public:
  struct Part {
    std::vector<BlockId> blocks;
    std::int32_t first = 0;
    std::vector<kv::Token> tokens;
  };

  /// What the last row of each part gives.
  Hashes step(const std::vector<Part>& parts, std::vector<BlockOp> ops = {}) {
    executor::Batch batch{.block_ops = std::move(ops)};
    for (const Part& part : parts) {
      batch.tokens.insert(batch.tokens.end(), part.tokens.begin(), part.tokens.end());
      batch.sequences.push_back({.n_rows = static_cast<int>(part.tokens.size()),
                                 .first_position = part.first,
                                 .tables = {{.blocks = part.blocks, .block_size = kSlots}}});
      batch.logit_rows.push_back(batch.n_rows() - 1);
    }
    const executor::Result result = executor_.forward(batch);
    Hashes hashes;
    for (std::size_t i = 0; i < parts.size(); ++i) hashes.push_back(read_hash(result.logits.row(i)));
    return hashes;
  }
  const std::vector<std::string>& faults() const { return executor_.faults(); }

 private:
  static constexpr int kSlots = 4;
  FakeExecutor executor_{
      {.block_size = kSlots, .num_blocks = 10, .groups = {{.kind = kv::GroupKind::kFull, .layers = {0}}}}};
};

TEST(FakeExecutor, RunsBlockOperationsInTheirOrder) {
  const std::vector<kv::Token> a = {1, 2, 3, 4}, b = {5, 6, 7, 8};
  ByHand plain, moved;
  for (ByHand* one : {&plain, &moved}) one->step({{{1}, 0, a}, {{2}, 0, b}});
  // Block 1 is stored before b is copied over it, and a comes back elsewhere.
  const auto hashes = moved.step({{{3, 4}, 4, {9}}, {{1, 5}, 4, {9}}},
                                 {{.kind = BlockOp::Kind::kStore, .src = 1, .n_slots = 4, .outside = 7},
                                  {.kind = BlockOp::Kind::kCopy, .src = 2, .dst = 1, .n_slots = 4},
                                  {.kind = BlockOp::Kind::kLoad, .dst = 3, .n_slots = 4, .outside = 7}});
  EXPECT_EQ(hashes, plain.step({{{1, 4}, 4, {9}}, {{2, 5}, 4, {9}}}));
  EXPECT_EQ(moved.faults(), std::vector<std::string>{});
  moved.step({{{6, 8}, 4, {9}}}, {{.kind = BlockOp::Kind::kLoad, .dst = 6, .n_slots = 4, .outside = 8}});
  EXPECT_FALSE(moved.faults().empty()) << "nothing was stored there";
}

}  // namespace
}  // namespace coppice::testing
