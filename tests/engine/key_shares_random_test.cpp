// Keys that flood the engine with requests of any kind, at random, and one that sends chats: what the others send
// delays these by a bounded number of steps, however they come (open loop). Of more than its part they wait for those
// of their own key that came before.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "engine/harness.h"
#include "support/sanitized.h"

namespace coppice::testing {
namespace {

struct FloodsMet {
  std::int64_t chats = 0, preemptions = 0, at_once = 0, floods = 0;
  int slowest = 0;
};

class Flooded {
 public:
  static constexpr int kPrompt = 30, kAnswer = 4;  ///< of a chat, at most
  static constexpr int kLong = 120;                ///< the answer beside which the others come

  /// `beyond`: how many times the key's part it has open.
  Flooded(Groups groups, int depth, std::uint64_t seed, int beyond)
      : random_(seed), beyond_(beyond), config_(make_config(groups, depth)), h_(config_) {}

  void run(FloodsMet& met) {
    for (int i = 0; i < 150 && !::testing::Test::HasFailure(); ++i) {
      for (Key& key : floods_) flood(key);
      if (i == 20 && most_chats_ > 1) long_one();
      if (i > 20 && pick(0, 2) == 0) {
        for (int k = pick(1, beyond_ * most_chats_); k > 0; --k) chat(met);
      }
      h_.step();
    }
    for (const auto& [id, ahead] : chats_) check(id, ahead, met);
    met.preemptions += h_.snapshot().preemptions;
    for (const auto& [id, result] : h_.results()) {
      met.floods += result.first_step >= 0 && result.submission.payer != "chats";
      h_.cancel(id);
    }
    h_.finish();
  }

 private:
  struct Key {
    std::string name;
    Submission like;
    std::size_t longest = 0;
    int backlog = 0;
    std::vector<engine::RequestId> open;
  };

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  int open(std::vector<engine::RequestId>& ids) {
    std::erase_if(ids, [&](engine::RequestId id) { return h_.result(id).done; });
    return static_cast<int>(ids.size());
  }

  HarnessConfig make_config(Groups groups, int depth) {
    HarnessConfig config{.groups = groups,
                         .max_batch = pick(4, 16),
                         .step_tokens = pick(17, 64),
                         .patience = pick(0, 7),
                         .depth = depth};
    config.num_blocks = scaled(groups, pick(80, 300));
    for (int i = pick(1, 2); i > 0; --i) {
      Key& key = floods_.emplace_back();
      key.name = "flood " + std::to_string(i);
      key.longest = static_cast<std::size_t>(pick(0, 1) == 0 ? pick(1, 30) : pick(30, 500));
      key.backlog = pick(1, 30);
      key.like.n = pick(0, 1) == 0 ? 1 : pick(2, config.max_batch);
      key.like.max_tokens = pick(0, 1) == 0 ? pick(1, 5) : pick(5, 400);
    }
    // So many stay within the key's part of the places, and of the blocks.
    const kv::Cache cache(cache_config(config));
    const auto keys = static_cast<int>(floods_.size()) + 1;
    const std::int64_t rest = cache.stats().total / keys - cache.blocks_needed(kPrompt + kLong, 1);
    const auto blocks =
        1 + static_cast<int>(std::max<std::int64_t>(rest, 0) / cache.blocks_needed(kPrompt + kAnswer, 1));
    most_chats_ = std::max(std::min(config.max_batch / keys, blocks), 1);
    const int rows = std::max(config.step_tokens / 2, config.block_size) / keys;
    // The rows of all chats' prompts at the part of a step that is theirs, each chunk of a state's stride in a step of
    // its own; the step that runs when it comes, and one more each where one is planned ahead.
    most_steps_ = (most_chats_ * kPrompt + rows - 1) / rows + 6 + 2 * depth;
    return config;
  }

  void flood(Key& key) {
    for (int n = open(key.open); n < key.backlog; ++n) {
      Submission s = key.like;
      s.prompt = random_prompt(random_, static_cast<std::size_t>(pick(1, static_cast<int>(key.longest))));
      s.priority = pick(-5, 5);
      s.payer = key.name;
      key.open.push_back(h_.submit(std::move(s)));
    }
  }

  void chat(FloodsMet& met) {
    const int ahead = open(open_chats_);
    if (ahead >= beyond_ * most_chats_) return;
    open_chats_.push_back(h_.submit({.prompt = random_prompt(random_, static_cast<std::size_t>(pick(1, kPrompt))),
                                     .max_tokens = pick(1, kAnswer),
                                     .payer = "chats"}));
    chats_.emplace_back(open_chats_.back(), ahead);
    met.at_once += open_chats_.size() > 1;
  }

  /// So that something of the key runs all the time.
  void long_one() {
    const int ahead = open(open_chats_);
    open_chats_.push_back(
        h_.submit({.prompt = random_prompt(random_, kPrompt), .max_tokens = kLong, .payer = "chats"}));
    chats_.emplace_back(open_chats_.back(), ahead);
  }

  /// `ahead`: of its key, open when it came.
  void check(engine::RequestId id, int ahead, FloodsMet& met) {
    const Result& result = h_.result(id);
    // Of those ahead as many run at once as its part has places for, but for one with a long answer.
    const int turns = ahead < most_chats_ ? 1 : 1 + ahead / std::max(most_chats_ - 1, 1);
    const int most = turns == 1 ? most_steps_ : turns * (most_steps_ + kAnswer + 2);
    const bool came = result.first_step >= 0;
    const int steps = (came ? result.first_step : h_.steps()) - result.submitted_step;
    ++met.chats;
    met.slowest = std::max(met.slowest, steps);
    EXPECT_LE(steps, most) << ahead << " ahead; " << (came ? "" : "and still waits; ") << most_chats_
                           << " chats, batch " << config_.max_batch << ", " << config_.num_blocks << " blocks";
  }

  std::mt19937_64 random_;
  int most_chats_ = 0, most_steps_ = 0;
  const int beyond_;
  std::vector<Key> floods_;
  HarnessConfig config_;
  Harness h_;
  std::vector<std::pair<engine::RequestId, int>> chats_;
  std::vector<engine::RequestId> open_chats_;
};

using KeyShares = PerDepth;

void try_floods(Groups groups, int depth, int beyond) {
  const auto seed = test_seed(20261127);
  FloodsMet met;
  const int rounds = test::kSanitized ? 5 : 40;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Flooded(groups, depth, seed + static_cast<std::uint64_t>(round) * 1000, beyond).run(met);
    if (::testing::Test::HasFailure()) return;
  }
  std::cout << met.chats << " chats, " << met.at_once << " beside others of their key; the slowest took " << met.slowest
            << " steps; " << met.floods << " of the floods' requests began, " << met.preemptions << " preemptions\n";
  EXPECT_GE(met.chats, 50 * rounds / 4);
  EXPECT_GE(met.at_once, met.chats / 4);
  EXPECT_GE(met.preemptions, 2 * rounds);
  EXPECT_GE(met.floods, 5 * rounds);
}

TEST_P(KeyShares, NobodyWaitsForWhatOthersSend) {
  try_floods(groups(), depth(), 1);
}

TEST_P(KeyShares, BeyondItsPartAKeyWaitsForItself) {
  try_floods(groups(), depth(), 3);
}

INSTANTIATE_TEST_SUITE_P(Groups, KeyShares,
                         ::testing::Combine(::testing::Values(Groups::kFull, Groups::kFullAndSliding,
                                                              Groups::kFullAndRecurrent),
                                            ::testing::Values(0, 1)),
                         name_of_both);

}  // namespace
}  // namespace coppice::testing
