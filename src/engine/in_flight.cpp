#include "engine/in_flight.h"

#include <algorithm>
#include <cassert>

namespace coppice::engine {

std::optional<InFlight::Place> InFlight::find(const Sequence& sequence, std::int32_t matched) const {
  const auto wanted = sequence.tokens();
  const auto cap = static_cast<std::int32_t>(wanted.size()) - 1;  // the last token is computed in any case
  const auto start = static_cast<std::size_t>(matched);
  std::optional<Place> best;
  for (Sequence* leader : leaders_) {
    if (leader->request->request.priority > sequence.request->request.priority) break;  // less important, as all behind
    const auto have = leader->tokens();
    if (leader->request->ns != sequence.request->ns || have.size() <= start) continue;
    // Beyond what matched first: unrelated prompts differ there at once, however long the common past is.
    const auto ends = std::ranges::mismatch(wanted.subspan(start), have.subspan(start));
    const auto common = static_cast<std::int32_t>(ends.in1 - wanted.begin());
    const std::int32_t needed = common / block_size_ * block_size_;
    const std::int32_t published = leader->computed / block_size_ * block_size_;
    if (std::min(needed, cap) <= matched || needed <= published || (best && needed <= best->needed)) continue;
    if (!std::ranges::equal(wanted.first(start), have.first(start))) continue;
    best = Place{.leader = leader, .needed = needed};
  }
  return best;
}

void InFlight::follow(Sequence& follower, const Place& place) {
  assert(follower.leader == nullptr);
  follower.place = place.leader->followers.emplace(place.needed, &follower);
  follower.leader = place.leader;
  follower.state = SequenceState::kFollowing;
  ++followers_;
}

void InFlight::unfollow(Sequence& follower) {
  follower.leader->followers.erase(follower.place);
  follower.leader = nullptr;
  follower.state = SequenceState::kReady;
  --followers_;
}

void InFlight::lead(Sequence& sequence) {
  leaders_.insert(std::ranges::upper_bound(leaders_, &sequence, ByRank{}), &sequence);
}

void InFlight::wake(Sequence& follower, std::vector<Sequence*>& woken) {
  unfollow(follower);
  woken.push_back(&follower);
}

void InFlight::published(Sequence& leader, std::vector<Sequence*>& woken) {
  while (!leader.followers.empty() && leader.followers.begin()->first <= leader.computed) {
    wake(*leader.followers.begin()->second, woken);
  }
}

void InFlight::leave(Sequence& leader, std::vector<Sequence*>& woken) {
  std::erase(leaders_, &leader);
  while (!leader.followers.empty()) wake(*leader.followers.begin()->second, woken);
}

}  // namespace coppice::engine
