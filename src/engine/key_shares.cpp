#include "engine/key_shares.h"

#include <algorithm>
#include <utility>

#include "check/assert.h"

namespace coppice::engine {

void KeyShares::come(OpenRequest& open) {
  const auto [own, is_new] = keys_.try_emplace(open.key(), cache_, patience_, looked_at_);
  KeyShare& share = own->second;
  if (is_new) share.served = ++served_;
  ++share.open;
  open.nth_of_key = ++share.came;
  open.share = &share;
}

void KeyShares::leave(OpenRequest& open) {
  KeyShare* const share = std::exchange(open.share, nullptr);
  if (share == nullptr) return;
  // A request that never got in leaves its number to the next: the queue's patience counts those who stayed.
  if (share->came == open.nth_of_key && !open.admitted_before) --share->came;
  if (--share->open > 0) return;
  COPPICE_ASSERT(share->places == 0);
  keys_.erase(open.key());
}

KeyShare* KeyShares::find(std::string_view key) {
  const auto found = keys_.find(key);
  return found == keys_.end() ? nullptr : &found->second;
}

void KeyShares::begin_step() {
  looked_at_ = 0;
  all_wait_ = only_within_ = false;
  for (auto& [key, share] : keys_) {
    share.waits = share.queue.empty();
    share.queue.begin_step();
  }
}

void KeyShares::measure(std::span<Sequence* const> running) {
  for (const Sequence* sequence : running) sequence->request->share->blocks = 0;
  for (const Sequence* sequence : running) sequence->request->share->blocks += cache_.held(sequence->seq);
  const kv::CacheStats stats = cache_.stats();
  to_share_ = static_cast<double>(std::max<std::int64_t>(stats.total - stats.pinned, 1));
}

double KeyShares::holds(const KeyShare& share) const {
  if (share.places == 0) return 0;
  return std::max(static_cast<double>(share.places) / max_batch_, share.blocks / to_share_);
}

KeyShare* KeyShares::next() {
  if (all_wait_) return nullptr;
  if (keys_.size() == 1) return keys_.begin()->second.waits ? nullptr : &keys_.begin()->second;
  KeyShare* next = nullptr;
  std::pair<double, std::uint64_t> least;
  for (auto& [key, share] : keys_) {
    if (share.waits) continue;
    const std::pair own(holds(share), share.served);
    if (next == nullptr || own < least) std::tie(next, least) = std::pair(&share, own);
  }
  return next;
}

// As if nobody but those who run had anything of it.
double KeyShares::blocks_with(const Sequence& sequence) const {
  const kv::TextView tokens = sequence.tokens();
  const std::int64_t all = cache_.blocks_needed(static_cast<std::int32_t>(tokens.size()), sequence.n_samples);
  const std::int32_t in_use = cache_.overlap(sequence.matchable(), sequence.request->request.ns).in_use;
  const std::int64_t in_use_blocks = in_use / cache_.config().block_size;
  const KeyShare& share = *sequence.request->share;
  return (share.places > 0 ? share.blocks : 0) + static_cast<double>(all - in_use_blocks);
}

bool KeyShares::within_part(const Sequence& sequence) const {
  const auto keys = static_cast<double>(keys_.size());
  return (sequence.request->share->places + 1) * keys <= max_batch_ && blocks_with(sequence) * keys <= to_share_;
}

void KeyShares::hold_up(const Sequence& sequence) {
  sequence.request->share->waits = true;
  if (keys_.size() == 1) return;
  const bool within = within_part(sequence);
  all_wait_ |= within;
  only_within_ |= !within;
}

bool KeyShares::may_pass(const Sequence& sequence) const {
  return !only_within_ || within_part(sequence);
}

KeyShare& KeyShares::most_blocks() {
  const auto blocks = [](const auto& key) { return key.second.places > 0 ? key.second.blocks : -1.0; };
  return std::ranges::max_element(keys_, {}, blocks)->second;
}

KeyShare* KeyShares::giver(const Sequence& sequence, What what) {
  KeyShare* most = nullptr;
  for (auto& [key, share] : keys_) {
    if (share.places == 0 || &share == sequence.request->share) continue;
    if (most == nullptr || (what == What::kPlaces ? share.places > most->places : share.blocks > most->blocks))
      most = &share;
  }
  return most;
}

bool KeyShares::may_give(const Sequence& last, const Sequence& sequence, What what) const {
  const KeyShare& own = *sequence.request->share;
  const KeyShare& other = *last.request->share;
  const bool places = what == What::kPlaces;
  const double has = places ? other.places : other.blocks;
  const double gives = places ? last.places : cache_.held(last.seq);
  const double gets = places ? own.places + 1 : blocks_with(sequence);
  const double part = (places ? max_batch_ : to_share_) / static_cast<double>(keys_.size());
  if (gets <= part && has > part && !sequence.request->admitted_before) return true;
  if (gets > has - gives) return false;
  if (gets <= part) return true;
  // More than its part: those who hold more would have to come down to as much, and make enough room by that.
  double others = 0;
  for (const auto& [key, share] : keys_)
    if (&share != &own && share.places > 0) others += std::min<double>(places ? share.places : share.blocks, gets);
  return others + gets <= (places ? max_batch_ : to_share_);
}

}  // namespace coppice::engine
