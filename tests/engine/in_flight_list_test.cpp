// The list of leaders and followers by itself: who follows whom, for how long, who is woken.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/in_flight.h"

namespace coppice::engine {
namespace {

class InFlightList : public ::testing::Test {
 protected:
  // A request whose prompt is `shared` zeros and then `own` tokens that nobody else has.
  Sequence& make(int shared, int own, std::int32_t computed = 0) {
    const std::uint64_t arrival = open_.size() + 1;
    std::vector<kv::Token> prompt(static_cast<std::size_t>(shared), 0);
    prompt.insert(prompt.end(), static_cast<std::size_t>(own), static_cast<kv::Token>(arrival));
    Request request;
    request.prompt = std::move(prompt);
    auto& open = *open_.emplace_back(std::make_unique<OpenRequest>(std::move(request)));
    open.arrival = arrival;
    auto& sequence = *open.sequences.front();
    sequence.computed = computed;
    return sequence;
  }
  Sequence& leader(int shared, int own, std::int32_t computed = 0) {
    Sequence& sequence = make(shared, own, computed);
    sequence.stage = SequenceStage::kPrefill;
    list_.lead(sequence);
    return sequence;
  }
  void follow(Sequence& sequence) {
    const auto place = list_.find(sequence, 0);
    ASSERT_TRUE(place.has_value());
    list_.follow(sequence, *place);
  }

  InFlight list_{8, false, 8};
  std::vector<std::unique_ptr<OpenRequest>> open_;
};

TEST_F(InFlightList, OnlyWholeBlocksThatAreStillMissingAreWaitedFor) {
  leader(60, 20, 27);
  const Sequence& late = make(60, 5);
  ASSERT_TRUE(list_.find(late, 24).has_value());
  EXPECT_EQ(list_.find(late, 24)->needed, 56);
  EXPECT_FALSE(list_.find(late, 56).has_value()) << "four tokens of a block still being filled are not worth it";
  EXPECT_FALSE(list_.find(make(7, 30), 0).has_value()) << "less than a block";
  EXPECT_FALSE(list_.find(make(30, 9), 3).has_value()) << "published already: the leader cannot help";
}

TEST_F(InFlightList, TheLastTokenIsComputedInAnyCase) {
  leader(64, 10);
  EXPECT_EQ(list_.find(make(64, 0), 0)->needed, 64) << "63 tokens match if the last block is there";
  EXPECT_FALSE(list_.find(make(64, 0), 63).has_value());
}

TEST_F(InFlightList, TheDeepestLeaderAndTheOldestAmongEquals) {
  leader(24, 30);
  Sequence& deep = leader(48, 30);
  leader(48, 40);
  EXPECT_EQ(list_.find(make(100, 1), 0)->leader, &deep);
}

TEST_F(InFlightList, WakesThoseWhoseBlocksAreAllThere) {
  Sequence& first = leader(80, 20);
  Sequence& a = make(20, 9);
  Sequence& b = make(70, 9);
  Sequence& c = make(40, 9);
  for (Sequence* s : {&a, &b, &c}) follow(*s);
  EXPECT_EQ(list_.followers(), 3);
  first.computed = 15;
  list_.wake();
  EXPECT_EQ(list_.followers(), 3);
  first.computed = 40;
  list_.wake();
  EXPECT_EQ(list_.followers(), 1);
  EXPECT_EQ(a.stage, SequenceStage::kReady);
  EXPECT_EQ(b.stage, SequenceStage::kFollowing);
  EXPECT_EQ(c.stage, SequenceStage::kReady);
  list_.unfollow(b);
  EXPECT_EQ(list_.followers(), 0);
  EXPECT_EQ(b.leader, nullptr);
}

TEST_F(InFlightList, ALostLeaderWakesAllAndLeadsNoMore) {
  Sequence& first = leader(80, 20);
  Sequence& a = make(20, 9);
  Sequence& b = make(70, 9);
  for (Sequence* s : {&a, &b}) follow(*s);
  list_.leave(first);
  EXPECT_EQ(list_.followers(), 0);
  for (Sequence* s : {&a, &b}) EXPECT_EQ(s->stage, SequenceStage::kReady);
  EXPECT_FALSE(list_.find(a, 0).has_value());
}

}  // namespace
}  // namespace coppice::engine
