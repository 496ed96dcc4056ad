// From a planned step to a batch: which rows are wanted, and what of.
#include "engine/planned_step.h"

#include <gtest/gtest.h>

#include <list>

#include "engine/batch_builder.h"
#include "engine/harness.h"

namespace coppice::testing {
namespace {

using engine::Purpose;
using Rows = std::vector<std::int32_t>;

class PlannedParts : public ::testing::Test {
 protected:
  /// Rows of a prompt of its own.
  engine::StepPart& add(int rows) {
    engine::OpenRequest& open = requests_.emplace_back(make_request(requests_.size(), {.prompt = Prompt(20, 7)}));
    engine::Sequence& sequence = *open.sequences.front();
    sequence.stage = engine::SequenceStage::kPrefill;
    sequence.seq = cache_.admit({.prompt = open.request.prompt}).value();
    std::vector<kv::BlockOp> ops;
    EXPECT_TRUE(cache_.extend(sequence.seq, rows, ops));
    step_.rows += rows;
    return step_.parts.emplace_back(engine::StepPart{.sequence = &sequence, .first = 0, .rows = rows});
  }
  executor::Batch build() {
    executor::Batch batch;
    build_batch(cache_, step_, batch);
    return batch;
  }

  void SetUp() override { step_.parts.reserve(8); }

  kv::Cache cache_{cache_config({})};
  std::list<engine::OpenRequest> requests_;
  engine::PlannedStep step_;
};

TEST_F(PlannedParts, SeveralRowsOfEachMayBeWanted) {
  add(3).wanted.add({.purpose = Purpose::kScore, .first = 1, .n = 2});
  engine::StepPart& guessed = add(5);
  guessed.wanted.add({.purpose = Purpose::kVerify, .first = 0, .n = 4});
  guessed.wanted.add({.purpose = Purpose::kSample, .first = 4});
  engine::StepPart& pooled = add(4);
  pooled.wanted.add({.purpose = Purpose::kPool, .first = 2, .n = 2});
  engine::StepPart& drawn = add(2);
  drawn.wanted.add({.purpose = Purpose::kScore, .first = 0, .n = 1});
  drawn.wanted.add({.purpose = Purpose::kSample, .first = 1, .draw = 0});
  const executor::Batch batch = build();
  EXPECT_EQ(batch.n_rows(), 14);
  EXPECT_EQ(batch.logit_rows, (Rows{1, 2, 3, 4, 5, 6, 7, 12}));
  EXPECT_EQ(batch.hidden_rows, (Rows{10, 11}));
  EXPECT_EQ(batch.sample_rows, (Rows{13}));
  EXPECT_EQ(guessed.n_logits(), 5);
  EXPECT_EQ(pooled.n_hidden(), 2);
  EXPECT_EQ(pooled.n_logits(), 0);
  EXPECT_EQ(drawn.n_logits(), 1);
  EXPECT_EQ(drawn.draw(), 0);
  EXPECT_EQ(guessed.draw(), -1);
}

TEST_F(PlannedParts, ATokenThatIsDrawnIsNamedByItsSample) {
  add(1).drawn = 3;
  EXPECT_EQ(build().rows, std::vector{executor::RowSource::drawn(3)});
}

TEST(WantedListTest, HasOneEntryForEachPurpose) {
  engine::WantedList wanted;
  wanted.add({.purpose = Purpose::kScore, .first = -1, .n = 0});
  EXPECT_EQ(wanted.find(Purpose::kScore), nullptr);
  wanted.add({.purpose = Purpose::kPool, .first = 2, .n = 3});
  EXPECT_EQ(wanted.find(Purpose::kPool)->n, 3);
  EXPECT_DEATH(wanted.add({.purpose = Purpose::kPool}), "broken contract");
}

}  // namespace
}  // namespace coppice::testing
