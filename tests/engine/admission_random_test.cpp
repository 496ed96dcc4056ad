// The scheduler alone, at random, against a model of the rules of queue.h: who may go ahead of whom, and who may be
// kept waiting for how many admissions. Related prompts (so that some are hot, and some follow), samples, priorities of
// which the lower are the more frequent, tiny pools (so that some are preempted), cancellations.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <ranges>
#include <utility>

#include "engine/harness.h"
#include "engine/scheduler.h"
#include "support/sanitized.h"

namespace coppice::testing {
namespace {

using engine::OpenRequest;
using engine::Sequence;
using engine::SequenceStage;

struct Met {
  std::int64_t admissions = 0, preemptions = 0, passes = 0, followed = 0;
  std::int64_t due = 0;  // admissions of the first arrival ahead of a more important one
};

class Load {
 public:
  Load(Groups groups, std::uint64_t seed)
      : random_(seed),
        config_(make_config(groups)),
        cache_(cache_config(config_)),
        tiers_(cache_, info_, engine::Clock::now, [] {}),
        scheduler_(cache_, tiers_, engine_config(config_), figures_) {}

  void run(Met& met) {
    for (int i = 0; i < 400 && !::testing::Test::HasFailure(); ++i) {
      for (int k = pick(0, 3) == 0 ? pick(1, 4) : 0; k > 0; --k) submit();
      if (pick(0, 9) == 0 && !open_.empty()) release(*open_[index(open_.size())]);
      admit(met);
      compute();
      std::erase_if(open_, [&](const auto& open) {
        const auto ended = [](const auto& s) { return s->stage == SequenceStage::kEnded; };
        if (!std::ranges::all_of(open->sequences, ended)) return false;
        scheduler_.leave(*open);
        return true;
      });
      EXPECT_EQ(cache_.check_integrity(), "");
    }
    met.preemptions += figures_.preemptions;
    met.passes += figures_.passes;
    for (const auto& open : open_) release(*open);
  }

 private:
  using StoreKind = std::pair<std::uint64_t, int>;  ///< arrival, sample
  static StoreKind place(const Sequence* s) { return {s->request->arrival, s->sample}; }

  /// Of a sequence, since it became ready.
  struct Wait {
    std::int64_t allowed = 0;  ///< its own admission is one of so many
    std::int64_t seen = 0;
  };

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  std::size_t index(std::size_t size) { return static_cast<std::size_t>(pick(0, static_cast<int>(size) - 1)); }

  HarnessConfig make_config(Groups groups) {
    const auto n_groups = static_cast<std::int32_t>(make_groups(groups).size());
    return {.groups = groups,
            .block_size = 4,
            .num_blocks = 2 + n_groups * pick(20, 60),
            .max_batch = pick(3, 8),
            .step_tokens = pick(8, 60),
            .max_extend = 40,
            .growth_room = pick(0, 1) > 0,
            .patience = pick(0, 7)};
  }

  void submit() {
    engine::Request request;
    if (pick(0, 1) == 0) last_prompt_.clear();
    last_prompt_ = last_prompt_ + random_prompt(random_, static_cast<std::size_t>(pick(1, 12)), 3);
    if (last_prompt_.size() > 40) last_prompt_.resize(40);
    request.prompt = last_prompt_;
    request.max_tokens = pick(1, 20);
    request.samples.resize(static_cast<std::size_t>(pick(0, 3) == 0 ? pick(2, 3) : 1));
    request.priority = pick(0, 4) > 0 ? -5 : pick(-6, 5);
    if (scheduler_.objection(request)) return;
    ++arrivals_;
    auto& open = *open_.emplace_back(std::make_unique<OpenRequest>(std::move(request)));
    open.arrival = arrivals_;
    scheduler_.enqueue(*open.sequences.front(), {});
  }

  void release(OpenRequest& open) {
    for (const auto& sequence : open.sequences) scheduler_.release(*sequence);
  }

  std::vector<Sequence*> in(SequenceStage stage) const {
    std::vector<Sequence*> found;
    for (const auto& open : open_) {  // in the order of arrival
      for (const auto& sequence : open->sequences)
        if (sequence->stage == stage) found.push_back(sequence.get());
    }
    return found;
  }

  // Who is ready now and was not: how long may it take, and how much longer for those behind?
  void note_ready(const std::vector<Sequence*>& ready) {
    const auto following = in(SequenceStage::kFollowing);
    const std::int64_t turn = config_.patience + 1;
    std::erase_if(waits_, [&](const auto& wait) { return std::ranges::find(ready, wait.first, place) == ready.end(); });
    for (const Sequence* sequence : ready) {
      const StoreKind fresh = place(sequence);
      if (waits_.contains(fresh)) continue;
      const bool counted = std::erase(followers_, fresh) > 0;  // those behind know it as one of the queue
      for (auto& [other, wait] : waits_)
        if (!counted && fresh < other) wait.allowed += turn;
      const auto before = [&](const StoreKind& other) { return other < fresh; };
      waits_[fresh].allowed = turn * (1 + std::ranges::count_if(waits_ | std::views::keys, before) +
                                      std::ranges::count_if(following, before, place));
    }
  }

  void admit(Met& met) {
    note_ready(in(SequenceStage::kReady));
    scheduler_.begin_step(0, {});
    for (;;) {
      const auto ready = in(SequenceStage::kReady);
      Sequence* next = scheduler_.next();
      if (next == nullptr) break;
      const auto turn = scheduler_.admit(*next);
      if (!turn && !turn.error().never) break;
      waits_.erase(place(next));
      if (!turn) {
        release(*next->request);
      } else if (*turn == engine::Scheduler::Turn::kFollows) {
        ++met.followed;
      } else {
        check_order(*next, ready, met);
        met.admissions += !std::exchange(next->request->admitted_before, true);
      }
    }
    followers_.clear();
    for (const Sequence* s : in(SequenceStage::kFollowing)) followers_.push_back(place(s));
  }

  // `s` was admitted, of those who were ready.
  void check_order(const Sequence& s, const std::vector<Sequence*>& ready, Met& met) {
    const OpenRequest& mine = *s.request;
    const bool first_arrival = ready.front() == &s;
    in_a_row_ = first_arrival ? 0 : in_a_row_ + 1;
    EXPECT_LE(in_a_row_, config_.patience);
    bool due = false;
    for (const Sequence* r : ready) {
      if (r == &s || r->stage != SequenceStage::kReady) continue;
      Wait& wait = waits_.at(place(r));
      EXPECT_LT(++wait.seen, wait.allowed) << "arrival " << r->request->arrival << ", patience " << config_.patience;
      const OpenRequest& theirs = *r->request;
      due |= theirs.request.priority < mine.request.priority;
      if (theirs.request.priority != mine.request.priority || theirs.arrival >= mine.arrival) continue;
      EXPECT_FALSE(was_preempted(*r)) << "and it was passed";
      EXPECT_LT(mine.nth_of_key - theirs.nth_of_key, static_cast<std::uint64_t>(config_.patience));
    }
    EXPECT_TRUE(first_arrival || !due) << "a more important one had to wait";
    met.due += due;
  }
  static bool was_preempted(const Sequence& waiting) { return waiting.request->admitted_before; }

  void compute() {
    copies_.clear();
    scheduler_.plan(copies_, 0, {});
    std::vector<Sequence*> sampled;
    scheduler_.submitted();
    scheduler_.launch();
    for (const engine::StepPart& part : scheduler_.flying().parts)
      if (part.completes) sampled.push_back(part.sequence);
    scheduler_.computed(0);
    for (Sequence* s : sampled) {
      OpenRequest& open = *s->request;
      while (s->n_samples > 1) {
        auto& sibling = *open.sequences.emplace_back(std::make_unique<Sequence>());
        sibling.request = &open;
        sibling.sample = static_cast<int>(open.sequences.size()) - 1;
        scheduler_.part(*s, sibling);
        sample(sibling);
      }
      sample(*s);
    }
  }

  void sample(Sequence& s) {
    s.out.push_back(pick(0, 2));
    if (std::ssize(s.out) >= s.request->request.max_tokens) scheduler_.release(s);
  }

  std::mt19937_64 random_;
  HarnessConfig config_;
  kv::Cache cache_;
  engine::Snapshot figures_;
  executor::ExecutorInfo info_;
  engine::Tiers tiers_;
  engine::Scheduler scheduler_;
  std::vector<std::unique_ptr<OpenRequest>> open_;
  Prompt last_prompt_;
  std::uint64_t arrivals_ = 0;
  std::map<StoreKind, Wait> waits_;
  std::vector<StoreKind> followers_;  ///< after the last admissions
  std::int64_t in_a_row_ = 0;
  std::vector<kv::BlockOp> copies_;
};

using Admission = PerGroups;

TEST_P(Admission, NobodyIsPassedForEver) {
  const auto seed = test_seed(20240603);
  Met met;
  constexpr int kPart =
      test::kSanitized ? 4 : 1;  // of all rounds, and of what must be met: memory's faults need no statistics
  const std::uint64_t rounds =
      (GetParam() == Groups::kFullAndRecurrent ? 600 : 100) / kPart;  // fewer prefixes are hot there
  for (std::uint64_t round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Load(GetParam(), seed + round * 1000).run(met);
    if (HasFailure()) return;
  }
  std::cout << met.admissions << " admissions, " << met.preemptions << " preemptions, " << met.passes << " hot passes, "
            << met.followed << " followed, " << met.due << " first arrivals ahead of more important ones\n";
  EXPECT_GE(met.admissions, 3000 / kPart);
  EXPECT_GE(met.preemptions, 100 / kPart);
  EXPECT_GE(met.passes, 100 / kPart);
  EXPECT_GE(met.followed, 100 / kPart);
  EXPECT_GE(met.due, 100 / kPart);
}

COPPICE_FOR_ALL_GROUPS_AND_STATES(Admission);

}  // namespace
}  // namespace coppice::testing
