// Everything at once, at random, over a store that is late, fails, lies and forgets: servers that stop and start on
// what others have stored, other weights in the same store, tiny pools, cancellations, deadlines, preemptions, failed
// steps, resets. Every stream is compared with the oracle, the cache is checked after every step, and at the end
// nothing is held: no block, no buffer.
//
// An operation is a submission, a cancellation or a step; COPPICE_OPERATIONS of them. Each hard transition must be met
// two thousand times in a million, a quarter of these with each kind of groups.
#include <gtest/gtest.h>

#include <chrono>
#include <iostream>
#include <memory>

#include "engine/harness.h"
#include "support/long_form.h"
#include "support/sanitized.h"

namespace coppice::testing {
namespace {

using Contents = FakeStore::Contents;

const std::int64_t kOperations = test::kSanitized ? 50'000 : test::long_form() ? 500'000 : 150'000;

class Server {
 public:
  Server(Groups groups, int block_size, std::shared_ptr<Contents> contents, std::vector<Prompt>& prompts,
         std::uint64_t seed)
      : random_(seed), prompts_(prompts), h_(config(groups, block_size)) {
    const bool good = pick(0, 2) == 0;
    const auto some = [&](int most) { return good ? 0 : pick(0, most); };
    store_ = std::make_shared<FakeStore>(std::move(contents), random_(),
                                         StoreHabits{.late = pick(0, 3) == 0 ? 96 : pick(0, 90),
                                                     .fails = some(10),
                                                     .lies = some(30),
                                                     .wrong_answer = some(10),
                                                     .forgets = some(2),
                                                     .drops = some(30),
                                                     .shares = pick(0, 2) == 0});
    store_->ignore_forget();
    model_ = pick(0, 6) == 0 ? 2 : 1;
    h_.attach(store_, model_, static_cast<std::size_t>(pick(1, 12)), /*load_always=*/true, pick(0, 3) == 0);
    for (int i = pick(0, 3); i > 0; --i) h_.executor().fail_at(pick(0, 400));
  }

  std::int64_t run(Transitions& met) {
    for (int i = 0; i < 150 && !::testing::Test::HasFailure(); ++i) {
      const int dice = pick(0, 11);
      if (dice < 3)
        for (int k = pick(1, 3); k > 0; --k) submit();
      if (dice < 5 && !ids_.empty()) {
        h_.cancel(ids_[ids_.size() -
                       static_cast<std::size_t>(pick(1, static_cast<int>(std::min<std::size_t>(ids_.size(), 5))))]);
        ++operations_;
        cancelled_ = true;
      }
      if (h_.snapshot().loading_requests > 0) trouble();
      if (pick(0, stalled_ ? 8 : 60) == 0) store_->stall(stalled_ = !stalled_);
      if (pick(0, 1) == 0) h_.ask({.kind = engine::PrefixCommand::Kind::kReset});
      for (int k = pick(0, 6); k > 0; --k) step(met);
    }
    store_->stall(false);
    if (pick(0, 3) > 0) h_.engine().settle();
    const int steps = h_.steps();
    while (!::testing::Test::HasFailure() && open()) {
      h_.now += std::chrono::milliseconds(20);
      step(met);
    }
    h_.finish();
    for (int i = 0; i < 300 && !h_.snapshot().settled; ++i) h_.step();
    store_->stop({});
    h_.ask({.kind = engine::PrefixCommand::Kind::kReset});
    h_.now += std::chrono::seconds(20);
    h_.step();
    h_.ask({.kind = engine::PrefixCommand::Kind::kReset});
    EXPECT_EQ(h_.snapshot().cache.free, h_.snapshot().cache.total);
    for (int i = 0; i < 2; ++i) h_.step();  // a step ahead has buffers, too
    EXPECT_EQ(h_.loads().free(), h_.loads().count());
    EXPECT_EQ(h_.stores().free(), h_.stores().count());
    count(met);
    return operations_ + h_.steps() - steps;
  }

 private:
  bool open() const { return h_.snapshot().running_requests + h_.snapshot().waiting_requests > 0; }

  void step(Transitions& met) {
    h_.now += std::chrono::milliseconds(1);
    const auto before = h_.snapshot();
    const auto writes = store_->waiting_writes();
    h_.step();
    ++operations_;
    const auto after = h_.snapshot();
    const bool left = after.tiers.left > before.tiers.left;
    const bool preempted = after.preemptions > before.preemptions;
    met["cancelled or out of time while it loads"] += left && !preempted;
    met["preempted while it loads"] += left && preempted;
    met["evicted while something is being stored"] += writes > 0 && after.cache.evictions > before.cache.evictions;
    met["waits for who loads"] += after.following_requests > before.following_requests && after.loading_requests > 0;
    met["steps beside a load"] += after.steps > before.steps && after.loading_requests > 0;
    cancelled_ = false;
  }

  void count(Transitions& met) {
    const auto figures = h_.snapshot();
    met["loaded"] += figures.tiers.loads;
    met["loaded in part, or in vain"] += figures.tiers.loads_cut;
    met["given up, being late"] += figures.tiers.late;
    met["asked in vain"] += figures.tiers.found_nothing;
    met["asked in vain, others' weights being there"] += model_ == 2 ? figures.tiers.found_nothing : 0;
    met["stored"] += store_->written();
    met["dropped"] += figures.tiers.refused + figures.tiers.unbuffered;
    met["wanted while it is being stored"] += store_->wanted_while_written();
    met["lies seen"] += store_->refused();
    for (const auto& [id, result] : h_.results())
      met["right, though it was loaded"] += result.usage.loaded_tokens > 0 && !result.samples[0].tokens.empty();
  }

  // Somebody loads: it is cancelled, or others need its room.
  void trouble() {
    if (pick(0, 1) == 0) store_->stall(stalled_ = true);
    const int dice = pick(0, 5);
    if (dice < 3) {
      const std::size_t last = std::min<std::size_t>(ids_.size(), 4);
      for (std::size_t i = 1; i <= last; ++i) h_.cancel(ids_[ids_.size() - i]);
      operations_ += static_cast<std::int64_t>(last);
    } else if (dice < 5) {
      for (int i = 0; i < 3; ++i)
        ids_.push_back(
            h_.submit({.prompt = random_prompt(random_, 4), .max_tokens = kLongest, .n = 2, .priority = -2}));
      operations_ += 3;
    }
  }

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  HarnessConfig config(Groups groups, int block_size) {
    const auto n_groups = static_cast<std::int32_t>(make_groups(groups).size());
    const int longest = kLongest;
    return {.groups = groups,
            .block_size = block_size,
            .num_blocks = 4 + n_groups * pick(longest, 2 * longest) / block_size,
            .max_batch = pick(2, 8),
            .step_tokens = pick(4, 60),
            .max_extend = pick(4, 40),
            .context_length = 3 * longest,
            .state_stride = 0,
            .keep_ends = pick(0, 1) == 0,
            .growth_room = pick(0, 2) == 0,
            .depth = pick(0, 1),
            .seed = random_()};
  }

  void submit() {
    Submission s;
    if (!prompts_.empty() && pick(0, 5) > 0) {
      const Prompt& other = prompts_[static_cast<std::size_t>(pick(0, static_cast<int>(prompts_.size()) - 1))];
      const int whole = static_cast<int>(other.size());
      s.prompt.assign(other.begin(), other.begin() + (pick(0, 3) > 0 ? whole : pick(0, whole)));
    }
    if (s.prompt.empty() || pick(0, 4) == 0)
      s.prompt = s.prompt + random_prompt(random_, static_cast<std::size_t>(pick(1, kLongest / 2)), 3);
    s.prompt.resize(std::min<std::size_t>(s.prompt.size(), kLongest));
    if (prompts_.size() < 15) {
      prompts_.push_back(s.prompt);
    } else {
      prompts_[static_cast<std::size_t>(pick(0, 14))] = s.prompt;
    }
    s.max_tokens = pick(1, pick(0, 7) == 0 ? 80 : 5);
    s.n = pick(0, 5) == 0 ? 2 : 1;
    s.seed = random_();
    s.salt = pick(0, 5) == 0 ? "other" : "";
    if (pick(0, 3) == 0) s.priority = pick(-1, 1);
    if (pick(0, 5) == 0) s.deadline = h_.now + std::chrono::milliseconds(pick(0, 200));
    s.cache_report = pick(0, 3) == 0;
    s.progress = pick(0, 3) == 0;
    s.match_cache = pick(0, 19) > 0;
    if (pick(0, 9) == 0)
      s.pins.push_back({.tokens = pick(1, static_cast<int>(s.prompt.size())), .ttl = std::chrono::seconds(1)});
    ids_.push_back(h_.submit(std::move(s)));
    ++operations_;
  }

  static constexpr int kLongest = 90;

  std::mt19937_64 random_;
  std::vector<Prompt>& prompts_;
  Harness h_;
  std::shared_ptr<FakeStore> store_;
  std::uint8_t model_ = 1;
  std::vector<engine::RequestId> ids_;
  bool stalled_ = false, cancelled_ = false;
  std::int64_t operations_ = 0;
};

using TiersRandom = PerGroups;

TEST_P(TiersRandom, EveryStreamIsRight) {
  const auto seed = test_seed(20261128);
  const std::int64_t of_all = operations_wanted(kOperations) / 4, least = operations_wanted(kOperations) / 2000;
  Transitions met;
  std::int64_t operations = 0;
  for (std::uint64_t round = 0; operations < of_all || (!all_met(met, least) && operations < 40 * of_all); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::mt19937_64 random(seed + round * 1000);
    const auto contents = std::make_shared<Contents>();
    std::vector<Prompt> prompts;
    const int block_size = 4 << random() % 3;
    for (int restart = 0; restart < 10; ++restart) {
      operations += Server(GetParam(), block_size, contents, prompts, random()).run(met);
      if (HasFailure()) return;
    }
  }
  std::cout << operations << " operations\n";
  expect_met(met, least);
}

COPPICE_FOR_ALL_GROUPS_AND_STATES(TiersRandom);

}  // namespace
}  // namespace coppice::testing
