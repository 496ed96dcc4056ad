// Everything at once, at random: submissions of related prompts, samples, salts, cancellations, deadlines,
// failed steps, tiny pools and budgets. Every stream is compared with the oracle, every step checked.
#include <gtest/gtest.h>

#include <iostream>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using sampling::Finish;

struct Met {
  std::int64_t requests = 0, stopped = 0, by_length = 0, by_pool = 0, cancelled_early = 0, cancelled_late = 0;
  std::int64_t failed_early = 0, failed_late = 0, refused = 0, followed = 0;
  std::int64_t preemptions = 0, forks = 0, evictions = 0, cached = 0;

  void add(const Harness& h) {
    for (const auto& [id, result] : h.results()) {
      ++requests;
      refused += result.refusal == engine::Refusal::kTooLong || result.refusal == engine::Refusal::kQueueFull;
      failed_early += result.refusal == engine::Refusal::kFailed;
      cached += result.usage.cached_tokens;
      for (const auto& sample : result.samples) {
        const bool streamed = !sample.tokens.empty();
        const bool full = static_cast<int>(sample.tokens.size()) == result.submission.max_tokens;
        stopped += sample.finish == Finish::kStop;
        (full ? by_length : by_pool) += sample.finish == Finish::kLength;
        (streamed ? cancelled_late : cancelled_early) += sample.finish == Finish::kCancelled;
        failed_late += sample.finish == Finish::kError;
      }
    }
    const auto figures = h.snapshot();
    preemptions += figures.preemptions;
    forks += figures.cache.cow_forks;
    evictions += figures.cache.evictions;
  }
};

class Round {
 public:
  Round(Groups groups, std::uint64_t seed) : random_(seed), h_(make_config(groups)) {
    for (int i = pick(0, 6); i > 0; --i) h_.executor().fail_at(pick(0, 150));
  }

  void run(Met& met) {
    for (int i = 0; i < 100 && !::testing::Test::HasFailure(); ++i) {
      const int dice = pick(0, 9);
      if (dice < 3) {
        for (int k = pick(1, 4); k > 0; --k) submit();
      }
      if (dice == 4 && !ids_.empty())
        h_.cancel(ids_[static_cast<std::size_t>(pick(0, static_cast<int>(ids_.size()) - 1))]);
      if (dice == 5) h_.cancel(1'000'000);
      if (dice != 6) h_.step();
      met.followed += h_.snapshot().following_requests;
    }
    h_.finish();
    met.add(h_);
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  HarnessConfig make_config(Groups groups) {
    const auto n_groups = static_cast<std::int32_t>(make_groups(groups).size());
    const int block_size = 4 << pick(0, 2);
    return {.groups = groups,
            .block_size = block_size,
            .num_blocks = 2 + n_groups * pick(100, 600) / block_size,
            .max_batch = pick(1, 12),
            .step_tokens = pick(1, 60),
            .max_extend = pick(1, 40),
            .context_length = pick(0, 2) == 0 ? pick(60, 300) : 0,
            .max_waiting = static_cast<std::size_t>(pick(0, 5) == 0 ? pick(2, 8) : 4096),
            .share = pick(0, 9) > 0};
  }

  void submit() {
    Submission s;
    if (!prompts_.empty() && pick(0, 4) > 0) {
      const Prompt& other = prompts_[static_cast<std::size_t>(pick(0, static_cast<int>(prompts_.size()) - 1))];
      s.prompt.assign(other.begin(), other.begin() + pick(0, static_cast<int>(other.size())));
    }
    if (s.prompt.empty() || pick(0, 3) > 0) {
      s.prompt = s.prompt + random_prompt(random_, static_cast<std::size_t>(pick(1, 50)), 3);
    }
    s.prompt.resize(std::min<std::size_t>(s.prompt.size(), 200));
    prompts_.push_back(s.prompt);
    // Without a limit a request grows until the pool is full: thousands of tokens where most layers slide.
    const bool may_be_endless = h_.groups().size() == 1 || h_.executor().info().context_length > 0;
    s.max_tokens = may_be_endless && pick(0, 5) == 0 ? 0 : pick(1, 50);
    s.n = pick(0, 3) == 0 ? pick(2, 4) : 1;
    s.seed = random_();
    s.stop_after = pick(0, 3) == 0 ? pick(1, 40) : 0;
    s.salt = pick(0, 7) == 0 ? "other" : "";
    if (pick(0, 14) == 0) s.deadline = engine::Clock::now() + std::chrono::microseconds(pick(-50, 3000));
    ids_.push_back(h_.submit(std::move(s)));
  }

  std::mt19937_64 random_;
  Harness h_;
  std::vector<Prompt> prompts_;
  std::vector<engine::RequestId> ids_;
};

using Soak = PerGroups;

TEST_P(Soak, EveryStreamIsRight) {
  const auto seed = test_seed(20240602);
  Met met;
  for (std::uint64_t round = 0; round < 80; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Round(GetParam(), seed + round * 1000).run(met);
    if (HasFailure()) return;
  }
  std::cout << met.requests << " requests; samples: " << met.stopped << " stopped, " << met.by_length << " by length, "
            << met.by_pool << " by pool or context, cancelled " << met.cancelled_early << " before and "
            << met.cancelled_late << " after the first token, " << met.failed_late
            << " failed late; requests: " << met.failed_early << " failed early, " << met.refused << " refused; "
            << met.followed << " follower steps, " << met.preemptions << " preemptions, " << met.forks << " forks, "
            << met.evictions << " evictions, " << met.cached << " cached tokens\n";
  for (const auto count :
       {met.stopped, met.by_length, met.by_pool, met.cancelled_early, met.cancelled_late, met.failed_early,
        met.failed_late, met.refused, met.followed, met.preemptions, met.forks, met.evictions, met.cached}) {
    EXPECT_GT(count, 20) << "this load no longer meets what it is for";
  }
}

COPPICE_FOR_ALL_GROUPS(Soak);

}  // namespace
}  // namespace coppice::testing
