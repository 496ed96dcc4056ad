// Everything at once, at random: submissions of related prompts, samples, salts, priorities, deadlines, cancellations,
// failed steps, tiny pools, budgets and queues, sharing on and off; every second round over an executor that works one
// step ahead. Every stream is compared with the oracle, the cache is checked after every step, and at the end of a
// round nothing is held.
//
// An operation is a submission, a cancellation or a step. There are a million (COPPICE_OPERATIONS: another number), and
// each hard transition must be met at least a thousand times (or once in a thousand operations), a quarter of both with
// each set of groups.
#include <gtest/gtest.h>

#include <iostream>

#include "engine/harness.h"
#include "support/kv_shapes.h"
#include "support/long_form.h"

namespace coppice::testing {
namespace {

using engine::Refusal;
using sampling::Finish;

const std::int64_t kDefaultOperations = test::kSanitized ? 150'000 : test::long_form() ? 1'000'000 : 300'000;

/// What falls to one of the four sets of groups, rounded up.
std::int64_t part(std::int64_t of_all) {
  return (of_all + 3) / 4;
}

/// What a load met.
struct Met {
  std::int64_t operations = 0, requests = 0;
  Transitions transitions;

  void add(Harness& h) {
    auto& t = transitions;
    for (const auto& [id, result] : h.results()) {
      ++requests;
      const auto& asked = result.submission;
      const auto refused = [&](Refusal why) { return result.refusal == why; };
      t["refused: too long"] += refused(Refusal::kTooLong) || refused(Refusal::kTooManySamples);
      t["refused: queue full"] += refused(Refusal::kQueueFull);
      t["timed out before the first token"] += refused(Refusal::kTimeout);
      t["step failed before the first token"] += refused(Refusal::kFailed);
      t["found in the tree"] += result.usage.cached_tokens > 0;
      t["found in the tree, salted"] += result.usage.cached_tokens > 0 && !asked.salt.empty();
      for (const auto& pin : result.usage.pins) ++t[pin.prefix ? "prefixes pinned" : "pins refused"];
      t["samples forked"] += asked.n > 1 && !result.samples[1].tokens.empty();
      for (const auto& sample : result.samples) {
        const bool streamed = !sample.tokens.empty();
        const bool full = static_cast<int>(sample.tokens.size()) == asked.max_tokens;
        t["stopped"] += sample.finish == Finish::kStop;
        t["ended by max_tokens"] += full && sample.finish == Finish::kLength;
        t["ended by pool or context"] += !full && sample.finish == Finish::kLength;
        t["cancelled before the first token"] += !streamed && sample.finish == Finish::kCancelled;
        t["cancelled in mid-stream"] += streamed && sample.finish == Finish::kCancelled;
        t["timed out in mid-stream"] += sample.finish == Finish::kTimeout;
        t["step failed in mid-stream"] += sample.finish == Finish::kError;
      }
    }
    if (h.groups().back().kind != kv::GroupKind::kRecurrent) {
      std::int64_t& drawn = t["rows before their token was known"];
      for (const auto& step : h.executor().steps()) drawn += static_cast<std::int64_t>(step.n_drawn);
    }
    const auto figures = h.snapshot();
    t["preempted"] += figures.preemptions;
    t["resumed"] += figures.resumptions;
    t["blocks forked"] += figures.cache.cow_forks;
    t["blocks evicted"] += figures.cache.evictions;
    t["admitted ahead of an earlier one"] += figures.passes;
  }
};

class Round {
 public:
  Round(Groups groups, int depth, std::uint64_t seed)
      : random_(seed), longest_(pick(0, 4) == 0 ? 200 : 60), h_(make_config(groups, depth)) {
    for (int i = pick(0, 20); i > 0; --i) h_.executor().fail_at(pick(0, 600));
  }

  void run(Met& met) {
    for (int i = 0; i < 300 && !::testing::Test::HasFailure(); ++i) {
      const int dice = pick(0, 11);
      if (dice < 3) {
        const bool alike = pick(0, 2) > 0;
        for (int k = pick(1, 4), first = k; k > 0; --k) submit(alike && k < first);
      }
      if (dice < 5 && !ids_.empty()) {
        // Mostly a late one: earlier ones are likely over.
        const auto back = std::min(ids_.size(), static_cast<std::size_t>(pick(0, 3) > 0 ? 8 : 1000));
        h_.cancel(ids_[ids_.size() - static_cast<std::size_t>(pick(1, static_cast<int>(back)))]);
        ++operations_;
      }
      if (dice == 5) h_.cancel(1'000'000);
      if (dice == 6 || dice == 7) look_at_prefixes(met);
      for (int k = pick(0, 4); k > 0; --k) step(met);
    }
    const int steps = h_.steps();
    h_.finish();
    h_.now += std::chrono::seconds(10);
    h_.step();
    EXPECT_EQ(h_.snapshot().cache.pins, 0) << "their time is over";
    met.operations += operations_ + h_.steps() - steps;
    met.add(h_);
  }

 private:
  void step(Met& met) {
    h_.now += std::chrono::milliseconds(1);
    const auto before = h_.snapshot();
    h_.step();
    ++operations_;
    const auto after = h_.snapshot();
    met.transitions["steps with followers"] += after.following_requests > 0;
    met.transitions["followers woken"] += after.following_requests < before.following_requests;
  }

  void look_at_prefixes(Met& met) {
    using Kind = engine::PrefixCommand::Kind;
    const engine::PrefixOwner owner{};
    const auto list = h_.ask({.kind = Kind::kList, .owner = owner}).prefixes;
    for (const auto& prefix : list) met.transitions["requests that began with a pinned prefix"] += prefix.hits;
    if (pick(0, 19) == 0) {
      met.transitions["cache reset"] += h_.ask({.kind = Kind::kReset}).blocks > 0;
    } else if (!list.empty()) {
      met.transitions["prefixes ended"] +=
          std::ssize(h_.ask({.kind = Kind::kEnd, .owner = owner, .prefix = list.front().id}).prefixes);
    }
  }

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  HarnessConfig make_config(Groups groups, int depth) {
    const auto n_groups = static_cast<std::int32_t>(make_groups(groups).size());
    const int block_size = 4 << pick(0, 2);
    return {.groups = groups,
            .block_size = block_size,
            .num_blocks = 2 + n_groups * pick(longest_ / 2, 3 * longest_) / block_size,
            .max_batch = pick(1, 12),
            .step_tokens = pick(1, 60),
            .max_extend = pick(1, 40),
            .context_length = pick(0, 2) == 0 ? pick(longest_ / 3, longest_ * 3 / 2) : 0,
            .max_waiting = static_cast<std::size_t>(pick(0, 5) == 0 ? pick(2, 8) : 4096),
            .share = pick(0, 9) > 0,
            .growth_room = pick(0, 2) > 0,
            .patience = pick(0, 5) == 0 ? 0 : pick(1, 100),
            .depth = depth,
            .seed = random_()};
  }

  /// again: with the prompt of the one before.
  void submit(bool again) {
    Submission s;
    if (again) {
      s.prompt = prompts_.back();
    } else if (!prompts_.empty() && pick(0, 4) > 0) {
      const Prompt& other = prompts_[static_cast<std::size_t>(pick(0, static_cast<int>(prompts_.size()) - 1))];
      s.prompt.assign(other.begin(), other.begin() + pick(0, static_cast<int>(other.size())));
    }
    if (s.prompt.empty() || (!again && pick(0, 3) > 0)) {
      s.prompt = s.prompt + random_prompt(random_, static_cast<std::size_t>(pick(1, longest_ / 4)), 3);
    }
    s.prompt.resize(std::min<std::size_t>(s.prompt.size(), static_cast<std::size_t>(longest_)));
    prompts_.push_back(s.prompt);
    // Where the context has no limit, an answer may grow into the pins' room and end early.
    if (h_.executor().info().context_length > 0 && pick(0, 1) == 0) {
      for (int tokens = pick(1, 16); std::cmp_less_equal(tokens, s.prompt.size()) && s.pins.size() < 4;
           tokens += pick(1, 16))
        s.pins.push_back({.tokens = tokens, .ttl = std::chrono::seconds(pick(1, 9)), .object = pick(0, 3) == 0});
    }
    // Without a limit a request grows until the pool is full: thousands of tokens where most layers slide.
    const bool may_be_endless = h_.groups().size() == 1 || h_.executor().info().context_length > 0;
    s.max_tokens = may_be_endless && pick(0, 5) == 0 ? 0 : pick(1, longest_ / 2);
    s.n = pick(0, 3) == 0 ? pick(2, 4) : 1;
    s.seed = random_();
    s.stop_after = pick(0, 3) == 0 ? pick(1, longest_ / 3) : 0;
    s.salt = pick(0, 5) == 0 ? "other" : "";
    if (pick(0, 3) == 0) s.priority = pick(-1, 1);
    if (pick(0, 1) == 0) s.payer = pick(0, 2) == 0 ? "few" : "many";
    if (pick(0, 2) == 0) s.deadline = h_.now + std::chrono::milliseconds(pick(0, 100));
    s.cache_report = pick(0, 3) == 0;
    ids_.push_back(h_.submit(std::move(s)));
    ++operations_;
  }

  std::mt19937_64 random_;
  int longest_;
  Harness h_;
  std::vector<Prompt> prompts_;
  std::vector<engine::RequestId> ids_;
  std::int64_t operations_ = 0;
};

using Soak = PerGroups;

TEST_P(Soak, EveryStreamIsRight) {
  const auto seed = test_seed(20240602);
  const std::int64_t of_all = operations_wanted(kDefaultOperations);
  // Where a match needs a state, some transitions are met half as often; over an executor that works ahead, some less
  // often, too.
  const std::int64_t wanted = part(of_all) * (GetParam() == Groups::kFullAndRecurrent ? 6 : 3) / 2;
  const std::int64_t least = part(of_all / 1000);
  Met met;
  for (std::uint64_t round = 0;
       met.operations < wanted || (!all_met(met.transitions, least) && met.operations < 3 * wanted); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Round(GetParam(), static_cast<int>(round % 2), seed + round * 1000).run(met);
    if (HasFailure()) return;
  }
  std::cout << met.operations << " operations, " << met.requests << " requests\n";
  expect_met(met.transitions, least);
  EXPECT_EQ(met.transitions.size(), GetParam() == Groups::kFullAndRecurrent ? 26u : 27u);
}

COPPICE_FOR_ALL_GROUPS_AND_STATES(Soak);

}  // namespace
}  // namespace coppice::testing
