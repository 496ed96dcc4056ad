// Memory runs out at every single allocation of a run of the cache, one after the other: the operation fails, what
// cache.h promises of it holds, and no block is lost.
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <vector>

#include "support/failing_new.h"
#include "support/kv_shapes.h"

namespace coppice::test {
namespace {

using coppice::testing::Counting;
using coppice::testing::NotCounting;
using kv::SeqId;
using Tokens = std::vector<kv::Token>;

class Script {
 public:
  explicit Script(Groups groups) : cache_(make_config({groups, 8}, 14)) {}

  void go() {
    for (int i = 0; i < 140 && !::testing::Test::HasFailure(); ++i) {
      const int dice = pick(0, 9);
      if (live_.size() < 4 && dice < 3) {
        admit();
      } else if (!live_.empty()) {
        const auto at = std::next(live_.begin(), pick(0, static_cast<int>(live_.size()) - 1));
        if (dice == 8 && live_.size() < 4) {
          fork(at->first);
        } else if (dice == 9) {
          end(at->first, pick(0, 1) == 0);
        } else {
          grow(at->first);
        }
      }
      EXPECT_EQ(cache_.check_integrity(), "") << "operation " << i << "\n" << cache_.dump();
    }
    while (!live_.empty()) end(live_.begin()->first, true);
    EXPECT_EQ(cache_.stats().in_use, 0);
    EXPECT_EQ(cache_.stats().reserved, 0);
    EXPECT_EQ(cache_.check_integrity(), "");
    if (!coppice::testing::allocation_failed()) {
      EXPECT_GT(cache_.stats().evictions, 5);
      EXPECT_GT(cache_.stats().cow_forks, 5);
    }
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void admit() {
    Tokens prompt(static_cast<std::size_t>(pick(1, 40)));
    for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = i < 20 ? static_cast<kv::Token>(i) : pick(0, 1);
    const auto before = cache_.stats();
    const Namespace ns{.salt = pick(0, 3) == 0 ? "a salt that is too long for a short string" : ""};
    try {
      const Counting counting;
      const auto seq = cache_.admit({.prompt = prompt, .ns = ns});
      const NotCounting not_counting;
      if (seq) live_[*seq] = prompt;
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(cache_.stats().in_use, before.in_use);
      EXPECT_EQ(cache_.stats().reserved, before.reserved);
    }
  }

  void fork(SeqId seq) {
    const auto before = cache_.stats();
    try {
      const Counting counting;
      const SeqId child = cache_.fork(seq);
      const NotCounting not_counting;
      live_[child] = live_[seq];
    } catch (const std::bad_alloc&) {
      EXPECT_EQ(cache_.stats().sequences, before.sequences);
    }
  }

  void grow(SeqId seq) {
    const auto len = static_cast<std::size_t>(cache_.lengths(seq).len);
    Tokens& wanted = live_[seq];
    while (wanted.size() <= len) wanted.push_back(pick(0, 1));
    const auto n = std::min(wanted.size() - len, static_cast<std::size_t>(pick(1, 20)));
    std::vector<kv::BlockOp> copies;
    try {
      const Counting counting;
      const auto next = std::span(wanted).subspan(len, n);
      if (cache_.extend(seq, static_cast<std::int32_t>(n), copies)) cache_.publish(seq, next);
    } catch (const std::bad_alloc&) {
      end(seq, pick(0, 1) == 0);
    }
  }

  void end(SeqId seq, bool finish) {
    const Counting counting;
    finish ? cache_.finish(seq) : cache_.abandon(seq);
    const NotCounting not_counting;
    live_.erase(seq);
  }

  using Namespace = kv::Namespace;
  std::mt19937_64 random_{7};
  kv::Cache cache_;
  std::map<SeqId, Tokens> live_;
};

TEST(OutOfMemory, AtEveryAllocation) {
  for (const Groups groups : {Groups::kFull, Groups::kFullAndSliding, Groups::kFullAndFiveSliding}) {
    std::int64_t n = 0;
    do {
      SCOPED_TRACE(to_text(groups) + ", allocation " + std::to_string(++n));
      coppice::testing::fail_allocation(n);
      Script(groups).go();
      if (HasFailure()) return;
    } while (coppice::testing::allocation_failed());
    std::cout << to_text(groups) << ": " << n - 1 << " allocations\n";
    EXPECT_GT(n, 200);
  }
}

}  // namespace
}  // namespace coppice::test
