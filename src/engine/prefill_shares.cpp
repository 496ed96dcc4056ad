#include "engine/prefill_shares.h"

#include <algorithm>
#include <utility>

namespace coppice::engine {

/// Each time in rank. Takes no memory.
void PrefillShares::order(std::span<Sequence* const> running) {
  places_.clear();
  for (Sequence* sequence : running) {
    if (!sequence->prefills()) continue;
    const OpenRequest& open = *sequence->request;
    const auto before = std::ranges::count_if(
        places_, [&](const Place& other) { return other.sequence->request->key() == open.key(); });
    places_.push_back(
        {.nth = static_cast<int>(before), .place = static_cast<int>(places_.size()), .sequence = sequence});
  }
  std::ranges::sort(places_, {}, [](const Place& p) { return std::pair(p.nth, p.place); });
}

void PrefillShares::grant(std::span<Sequence* const> running, int budget) {
  const int max_extend = cache_.config().max_extend;
  const int chunk = std::max(max_extend / steps_in_hand_, 1);
  const int block_size = cache_.config().block_size;
  const auto wanted = [&](const Sequence& sequence, int scored) {
    const auto rest = static_cast<int>(sequence.tokens().size()) - sequence.planned;
    // A step ends where a state is kept.
    const int to_state = cache_.config().state_pages > 0 ? cache_.next_state(sequence.seq) - sequence.planned : rest;
    const int slots = max_extend - (sequence.planned - sequence.computed);
    return std::min({rest, chunk, slots, to_state, sequence.rows_with_scored(scored)});
  };
  order(running);
  auto behind = std::ssize(places_);
  const Sequence* first_arrived = nullptr;
  for (const auto& [nth, place, sequence] : places_) {
    if (first_arrived == nullptr || ByArrival{}(sequence, first_arrived)) first_arrived = sequence;
  }
  bool before_first = true;
  auto keys = std::ranges::count(places_, 0, &Place::nth);  // whose first has had none yet
  const auto part = [&](int left, int all) {
    int kept_back = behind > 0 ? std::min(left / 4, left - std::min(left, block_size)) : 0;
    if (keys > 0) kept_back = std::max(kept_back, static_cast<int>(left * keys / (keys + 1)));
    return left - std::max(kept_back, before_first ? std::min(block_size, (all + 3) / 4) : 0);
  };
  int left = budget, left_scored = scored_rows_;
  for (const auto& [nth, place, sequence] : places_) {
    before_first &= sequence != first_arrived;
    --behind;
    keys -= nth == 0 ? 1 : 0;
    sequence->rows = std::min(wanted(*sequence, part(left_scored, scored_rows_)), part(left, budget));
    left -= sequence->rows;
    left_scored -= sequence->scored_in(sequence->rows);
  }
  for (const auto& [nth, place, sequence] : places_) {
    if (left == 0) break;
    const int had = sequence->rows, had_scored = sequence->scored_in(had);
    sequence->rows = std::min(wanted(*sequence, left_scored + had_scored), had + left);
    left -= sequence->rows - had;
    left_scored -= sequence->scored_in(sequence->rows) - had_scored;
  }
}

}  // namespace coppice::engine
