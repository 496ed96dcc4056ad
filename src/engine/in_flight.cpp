#include "engine/in_flight.h"

#include <algorithm>
#include <utility>

#include "check/assert.h"
#include "kv/text.h"

namespace coppice::engine {

std::optional<InFlight::LeaderMatch> InFlight::find(const Sequence& sequence, std::int32_t matched) const {
  const auto wanted = sequence.tokens();
  const auto cap = static_cast<std::int32_t>(sequence.matchable().size());
  const auto start = static_cast<std::size_t>(matched);
  std::optional<LeaderMatch> best;
  for (Sequence* leader : leaders_) {
    if (leader->request->request.priority > sequence.request->request.priority) break;  // less important, as all behind
    const auto have = leader->tokens();
    if (leader->request->request.ns != sequence.request->request.ns || have.size() <= start) continue;
    if (leader->request->key() != sequence.request->key() && !is_first_of_key(*leader)) continue;
    // Beyond what matched first: unrelated prompts differ there at once, however long the common past is.
    const std::int32_t common = matched + kv::common_prefix(wanted.subspan(start), have.subspan(start));
    // A part of one more block helps only who needs no state there.
    const std::int32_t most = states_ ? cap / block_size_ : (cap + block_size_ - 1) / block_size_;
    const std::int32_t whole = std::min(common / block_size_, most) * block_size_;
    const std::int32_t needed = useful(wanted, *leader, whole, std::min(common, cap));
    const std::int32_t published = leader->computed / block_size_ * block_size_;
    if (std::min(needed, cap) <= matched || needed <= published || (best && needed <= best->needed)) continue;
    if (wanted.first(start) != have.first(start)) continue;
    best = LeaderMatch{.leader = leader, .needed = needed};
  }
  return best;
}

// How much of `whole` tokens that both have is of use: a medium that can't be cut is, if all of it is there. It may end
// inside a block, within `most` tokens that both have; then its leader's step ends there, or else the block has to be
// full.
std::int32_t InFlight::useful(kv::TextView wanted, const Sequence& leader, std::int32_t whole,
                              std::int32_t most) const {
  for (;;) {
    const std::int32_t end = std::min(whole, most);
    const kv::Cuts cuts = wanted.cuts(end);
    if (cuts.before == end) return whole;
    if (cuts.behind <= most && !states_) {
      if (cuts.behind > leader.planned) return cuts.behind;
      const std::int32_t full = (cuts.behind + block_size_ - 1) / block_size_ * block_size_;
      if (std::cmp_less_equal(full, leader.tokens().size())) return full;
    }
    whole = cuts.before / block_size_ * block_size_;
  }
}

bool InFlight::is_first_of_key(const Sequence& leader) const {
  const auto same = [&](const Sequence* other) { return other->request->key() == leader.request->key(); };
  return *std::ranges::find_if(leaders_, same) == &leader;
}

void InFlight::follow(Sequence& follower, const LeaderMatch& match) {
  COPPICE_ASSERT(follower.leader == nullptr);
  followers_.push_back(&follower);
  follower.leader = match.leader;
  follower.needed = match.needed;
  follower.stage = SequenceStage::kFollowing;
}

template <class Predicate>
void InFlight::wake_if(Predicate predicate) {
  std::erase_if(followers_, [&](Sequence* follower) {
    if (!predicate(*follower)) return false;
    follower->leader = nullptr;
    follower->stage = SequenceStage::kReady;
    return true;
  });
}

void InFlight::unfollow(Sequence& follower) {
  wake_if([&](const Sequence& other) { return &other == &follower; });
}

void InFlight::lead(Sequence& sequence) {
  COPPICE_ASSERT(sequence.stage == SequenceStage::kPrefill && std::ranges::find(leaders_, &sequence) == leaders_.end());
  leaders_.insert(std::ranges::upper_bound(leaders_, &sequence, ByRank{}), &sequence);
}

void InFlight::leave(Sequence& leader) {
  std::erase(leaders_, &leader);
  wake_if([&](const Sequence& follower) { return follower.leader == &leader; });
}

bool InFlight::near() const {
  return std::ranges::any_of(followers_,
                             [](const Sequence* follower) { return follower->needed <= follower->leader->planned; });
}

void InFlight::wake() {
  wake_if([](const Sequence& follower) { return follower.needed <= follower.leader->computed; });
}

}  // namespace coppice::engine
