// The scheduler alone, at random, against a model of invariant 5 of scheduler.h: who may be kept waiting for how many
// admissions. Related prompts (so that some are hot, and some follow), samples, priorities of which the lower are the
// more frequent, tiny pools (so that some are preempted), cancellations.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <ranges>
#include <utility>

#include "engine/harness.h"
#include "engine/scheduler.h"

namespace coppice::testing {
namespace {

using engine::OpenRequest;
using engine::Sequence;
using engine::SequenceState;

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
        scheduler_(cache_, engine_config(config_), figures_) {
    copies_.reserve(1000);
    for (auto* list : {&pool_full_, &lost_}) list->reserve(100);
  }

  void run(Met& met) {
    for (int i = 0; i < 400 && !::testing::Test::HasFailure(); ++i) {
      for (int k = pick(0, 3) == 0 ? pick(1, 4) : 0; k > 0; --k) submit();
      if (pick(0, 9) == 0 && !open_.empty()) release(*open_[index(open_.size())]);
      admit(met);
      compute();
      std::erase_if(open_, [](const auto& open) {
        return std::ranges::all_of(open->sequences, [](const auto& s) { return s->state == SequenceState::kEnded; });
      });
      EXPECT_EQ(cache_.check_integrity(), "");
    }
    met.admissions += figures_.admissions;
    met.preemptions += figures_.preemptions;
    met.passes += figures_.passes;
    for (const auto& open : open_) release(*open);
  }

 private:
  using Place = std::pair<std::uint64_t, int>;  ///< arrival, sample
  static Place place(const Sequence* s) { return {s->request->arrival, s->sample}; }

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
            .max_passes = pick(0, 7)};
  }

  void submit() {
    auto& open = *open_.emplace_back(std::make_unique<OpenRequest>());
    auto& request = open.request;
    if (pick(0, 1) > 0) request.prompt = last_prompt_;
    request.prompt = request.prompt + random_prompt(random_, static_cast<std::size_t>(pick(1, 12)), 3);
    if (request.prompt.size() > 40) request.prompt.resize(40);
    last_prompt_ = request.prompt;
    request.max_tokens = pick(1, 20);
    request.samples.resize(static_cast<std::size_t>(pick(0, 3) == 0 ? pick(2, 3) : 1));
    request.priority = pick(0, 4) > 0 ? -5 : pick(-6, 5);
    open.arrival = ++arrivals_;
    open.usage.prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
    if (scheduler_.objection(request)) {
      open_.pop_back();
      return;
    }
    auto& sequence = *open.sequences.emplace_back(std::make_unique<Sequence>());
    sequence.request = &open;
    sequence.n_samples = static_cast<int>(request.samples.size());
    scheduler_.enqueue(sequence);
  }

  void release(OpenRequest& open) {
    for (const auto& sequence : open.sequences)
      scheduler_.release(*sequence,
                         sequence->rows > 0 ? engine::Scheduler::Release::kDrop : engine::Scheduler::Release::kKeep);
  }

  std::vector<Sequence*> in(SequenceState state) const {
    std::vector<Sequence*> found;
    for (const auto& open : open_) {  // in the order of arrival
      for (const auto& sequence : open->sequences)
        if (sequence->state == state) found.push_back(sequence.get());
    }
    return found;
  }

  // Who is ready now and was not: how long may it take, and how much longer for those behind?
  void note_ready(const std::vector<Sequence*>& ready) {
    const auto following = in(SequenceState::kFollowing);
    const std::int64_t turn = config_.max_passes + 1;
    std::erase_if(waits_, [&](const auto& wait) { return std::ranges::find(ready, wait.first, place) == ready.end(); });
    for (const Sequence* sequence : ready) {
      const Place fresh = place(sequence);
      if (waits_.contains(fresh)) continue;
      const bool counted = std::erase(followers_, fresh) > 0;  // those behind know it as one of the queue
      for (auto& [other, wait] : waits_)
        if (!counted && fresh < other) wait.allowed += turn;
      const auto before = [&](const Place& other) { return other < fresh; };
      waits_[fresh].allowed = turn * (1 + std::ranges::count_if(waits_ | std::views::keys, before) +
                                      std::ranges::count_if(following, before, place));
    }
  }

  void admit(Met& met) {
    const auto ready = in(SequenceState::kReady);
    note_ready(ready);
    never_.clear();
    scheduler_.admit(never_, {});
    const auto admitted = [](const Sequence* s) { return s->admitted(); };
    const std::int64_t n = std::ranges::count_if(ready, admitted);
    const auto followers = in(SequenceState::kFollowing);
    met.followed +=
        std::ranges::count_if(ready, [](const Sequence* s) { return s->state == SequenceState::kFollowing; });
    for (Sequence* s : ready) {
      if (s->state != SequenceState::kReady) {
        waits_.erase(place(s));  // it may be back by the next look
        continue;
      }
      Wait& wait = waits_.at(place(s));
      wait.seen += n;
      EXPECT_LT(wait.seen, wait.allowed) << "arrival " << s->request->arrival << ", max_passes " << config_.max_passes;
    }
    // In which order they were admitted is not seen: where the first arrival is among them, the others may have come first.
    const auto first =
        std::ranges::find_if(ready, [](const Sequence* s) { return s->state != SequenceState::kFollowing; });
    if (first != ready.end()) {
      const bool it_was = admitted(*first);
      const auto more_important = [&](const Sequence* s) {
        return s->state == SequenceState::kReady && s->request->request.priority < (*first)->request->request.priority;
      };
      met.due += it_was && std::ranges::any_of(ready, more_important);
      in_a_row_ = it_was ? 0 : in_a_row_ + n;
      EXPECT_LE(in_a_row_, config_.max_passes);
    }
    for (const auto& never : never_) release(*never.sequence->request);
    followers_.clear();
    for (const Sequence* s : followers) followers_.push_back(place(s));
  }

  void compute() {
    copies_.clear();
    pool_full_.clear();
    lost_.clear();
    scheduler_.plan(copies_, pool_full_, lost_);
    std::vector<Sequence*> sampled;
    for (Sequence* s : scheduler_.running())
      if (s->sampled) sampled.push_back(s);
    scheduler_.computed(lost_);
    EXPECT_TRUE(lost_.empty());
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
    if (std::ssize(s.out) >= s.request->request.max_tokens) scheduler_.release(s, engine::Scheduler::Release::kKeep);
  }

  std::mt19937_64 random_;
  HarnessConfig config_;
  kv::Cache cache_;
  engine::Snapshot figures_;
  engine::Scheduler scheduler_;
  std::vector<std::unique_ptr<OpenRequest>> open_;
  Prompt last_prompt_;
  std::uint64_t arrivals_ = 0;
  std::map<Place, Wait> waits_;
  std::vector<Place> followers_;  ///< after the last admissions
  std::int64_t in_a_row_ = 0;
  std::vector<engine::Scheduler::NeverFits> never_;
  std::vector<kv::CopyOp> copies_;
  std::vector<Sequence*> pool_full_, lost_;
};

using Admission = PerGroups;

TEST_P(Admission, NobodyIsPassedForEver) {
  const auto seed = test_seed(20240603);
  Met met;
  for (std::uint64_t round = 0; round < 100; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Load(GetParam(), seed + round * 1000).run(met);
    if (HasFailure()) return;
  }
  std::cout << met.admissions << " admissions, " << met.preemptions << " preemptions, " << met.passes << " hot passes, "
            << met.followed << " followed, " << met.due << " first arrivals ahead of more important ones\n";
  EXPECT_GE(met.admissions, 3000);
  EXPECT_GE(met.preemptions, 100);
  EXPECT_GE(met.passes, 100);
  EXPECT_GE(met.followed, 100);
  EXPECT_GE(met.due, 100);
}

COPPICE_FOR_ALL_GROUPS(Admission);

}  // namespace
}  // namespace coppice::testing
