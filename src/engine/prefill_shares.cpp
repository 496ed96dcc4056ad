#include "engine/prefill_shares.h"

#include <algorithm>
#include <tuple>

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
  // Who was held up comes first, by arrival: the step is then as empty as it can be.
  const auto rank = [](const Place& p) {
    const Sequence& sequence = *p.sequence;
    return std::tuple(!sequence.held_up, sequence.held_up ? sequence.request->arrival : 0, p.nth, p.place);
  };
  std::ranges::sort(places_, {}, rank);
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
  auto behind = std::ssize(places_);
  const Sequence* first_arrived = nullptr;
  for (const auto& [nth, place, sequence] : places_) {
    if (first_arrived == nullptr || ByArrival{}(sequence, first_arrived)) first_arrived = sequence;
  }
  bool before_first = true;
  const auto kept_for_first = [&](int all) { return before_first ? std::min(block_size, (all + 3) / 4) : 0; };
  auto keys = std::ranges::count(places_, 0, &Place::nth);  // whose first has had none yet
  const auto part = [&](int left, int all) {
    int kept_back = behind > 0 ? std::min(left / 4, left - std::min(left, block_size)) : 0;
    if (keys > 0) kept_back = std::max(kept_back, static_cast<int>(left * keys / (keys + 1)));
    return left - std::max(kept_back, kept_for_first(all));
  };
  int left = budget, left_scored = scored_rows_, room = limit;
  for (const auto& [nth, place, sequence] : places_) {
    before_first &= sequence != first_arrived;
    --behind;
    keys -= nth == 0 ? 1 : 0;
    const int kept = kept_for_first(budget);
    sequence->rows = rows_of(*sequence, part(left, budget), part(left_scored, scored_rows_), room - kept);
    left = std::max(left - sequence->rows, kept);
    room -= sequence->rows;
    left_scored -= sequence->scored_in(sequence->rows).n;
  }
  for (const auto& [nth, place, sequence] : places_) {
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
