#include "engine/prefill_shares.h"

#include <algorithm>
#include <tuple>

namespace coppice::engine {

// Takes no memory.
void PrefillShares::order(std::span<Sequence* const> running) {
  claimants_.clear();
  budgets_.clear();
  for (const Sequence* sequence : running) {
    if (!sequence->prefills()) continue;
    const KeyShare* const key = sequence->request->share;
    auto budget = std::ranges::find(budgets_, key, &KeyBudget::key);
    if (budget == budgets_.end()) budget = budgets_.insert(budget, {.key = key, .first_arrived = sequence});
    if (ByArrival{}(sequence, budget->first_arrived)) budget->first_arrived = sequence;
    ++budget->behind;
  }
  std::ranges::sort(budgets_, ByArrival{}, &KeyBudget::first_arrived);
  for (Sequence* sequence : running) {
    if (!sequence->prefills()) continue;
    const auto budget = std::ranges::find(budgets_, sequence->request->share, &KeyBudget::key);
    claimants_.push_back({.budget = static_cast<std::size_t>(budget - budgets_.begin()), .sequence = sequence});
  }
  // Who was held up comes first, by arrival: the step is then as empty as it can be.
  const auto rank = [](const Claimant& p) {
    const OpenRequest& open = *p.sequence->request;
    return std::tuple(!p.sequence->held_up, p.sequence->held_up ? open.arrival : 0, p.budget, open.request.priority,
                      open.arrival, p.sequence->sample);
  };
  std::ranges::sort(claimants_, {}, rank);
}

int PrefillShares::KeyBudget::share(int rest, int of, int block_size) const {
  const int kept_back = behind > 0 ? std::min(rest / 4, rest - std::min(rest, block_size)) : 0;
  return rest - std::max(kept_back, kept_for_first(of, block_size));
}

// That the cache has slots for in this step, with so many rows that are scored.
int PrefillShares::most_rows(const Sequence& sequence, int scored) const {
  const auto rest = static_cast<int>(sequence.tokens().size()) - sequence.planned;
  // A step ends where a state is kept, or a tail that others wait for.
  const int to_stop = cache_.next_stop(sequence.seq) - sequence.planned;
  const int slots = cache_.config().max_extend - (sequence.planned - sequence.computed);
  return std::min({rest, slots, to_stop, sequence.rows_with_scored(scored)});
}

// Up to `share` of them; of a medium that can't be cut all, if there is `room`.
int PrefillShares::rows_of(const Sequence& sequence, int share, int scored, int room) const {
  const int chunk = std::max(cache_.config().max_extend / steps_in_hand_, 1);
  const int most = most_rows(sequence, scored), some = std::min({most, chunk, share});
  if (some <= 0) return 0;
  const kv::TextView tokens = sequence.tokens();
  const int rows = tokens.cuts(sequence.planned + some).before - sequence.planned;
  if (rows > 0) return rows;
  const int whole = tokens.cuts(sequence.planned + some).behind - sequence.planned;
  return whole <= std::min(most, room) ? whole : 0;
}

void PrefillShares::grant(std::span<Sequence* const> running, int budget, int limit) {
  const int block_size = cache_.config().block_size;
  order(running);
  int left = budget, left_scored = scored_rows_, room = limit;
  auto keys = static_cast<int>(budgets_.size());  // that have no part yet
  const auto next_part = [&](int of) { return (of + keys - 1) / keys; };
  for (const auto& [nth, sequence] : claimants_) {
    KeyBudget& own = budgets_[nth];
    if (own.all < 0) {
      own.all = own.left = next_part(left);
      own.all_scored = own.left_scored = next_part(left_scored);
      --keys;
    }
    own.before_first &= sequence != own.first_arrived;
    --own.behind;
    const int kept = own.kept_for_first(own.all, block_size);
    sequence->rows = rows_of(*sequence, std::min({own.share(own.left, own.all, block_size), left, room}),
                             own.share(own.left_scored, own.all_scored, block_size), room - kept);
    const int scored = sequence->scored_in(sequence->rows).n;
    own.left = std::max(own.left - sequence->rows, kept);
    own.left_scored -= scored;
    left = std::max(left - sequence->rows, kept);
    left_scored -= scored;
    room -= sequence->rows;
  }
  for (const auto& [nth, sequence] : claimants_) {
    if (left > 0) {
      const int had = sequence->rows, had_scored = sequence->scored_in(had).n;
      sequence->rows = rows_of(*sequence, had + left, left_scored + had_scored, had + room);
      left = std::max(left - (sequence->rows - had), 0);
      room -= sequence->rows - had;
      left_scored -= sequence->scored_in(sequence->rows).n - had_scored;
    }
    sequence->held_up = sequence->rows == 0 && !sequence->tokens().may_be_cut(sequence->planned + 1);
  }
}

}  // namespace coppice::engine
