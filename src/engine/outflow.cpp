#include "engine/outflow.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "engine/piece_names.h"
#include "kv/block_bytes.h"
#include "tier/piece.h"

namespace coppice::engine {

namespace {

constexpr std::size_t kMostWorth = 1 << 16;  // blocks that wait for their turn: more than that are not soon stored
constexpr double kPart = 0.02;               // of the steps' time that goes into copies
constexpr double kCopied = 4e9;              // bytes a second: what a copy gives at least
constexpr double kMostCredit = 16 << 20;     // bytes: in one step
constexpr std::uint32_t kSecondUse = 2;

}  // namespace

void Outflow::keep(kv::SeqId seq, std::int32_t len) {
  if (config_.store == nullptr || !config_.lasting) return;
  const std::span<const kv::BlockId> full_group = cache_.table(seq, 0).blocks;
  const kv::CacheConfig& config = cache_.config();
  const kv::Storables& storables = cache_.storables();
  const std::int32_t blocks = storables.whole_until(full_group, len) / config.block_size;
  // Of groups that forget, only what is seen from the end.
  std::int32_t window = config.state_pages > 0 ? blocks - 1 : blocks;
  for (int g = 1; g < config.n_groups(); ++g)
    window = std::min(window, config.first_needed_block(g, blocks * config.block_size));
  for (std::int32_t b = 0; b < blocks && worth_.size() < kMostWorth; ++b) {
    const kv::BlockId id = full_group[static_cast<std::size_t>(b)];
    const bool all = b >= window;
    const auto digest = all || !cache_.stored(id) ? storables.digest_of(id) : std::nullopt;
    if (digest) worth_.push_back({.block = id, .digest = *digest, .all = all});
  }
}

void Outflow::keep_all() {
  if (config_.store == nullptr || !config_.lasting) return;
  worth_.clear();
  for (const kv::BlockId id : cache_.storables().hottest())
    worth_.push_back({.block = id, .digest = *cache_.storables().digest_of(id), .all = true});
}

void Outflow::evicted(const kv::Storable& one) noexcept {
  if ((one.uses < kSecondUse && !config_.all_evicted) || is_refused(one)) return;
  try {
    leave(one, evicted_, false);
  } catch (const std::exception&) {  // memory is short: a dropped write
  }
}

bool Outflow::is_refused(const kv::Storable& one) const {
  return !refused_.empty() && refused_.contains(one.ns->owner());
}

bool Outflow::ready() const {
  if (!evicted_.empty()) return true;
  return config_.store != nullptr && !worth_.empty() && config_.stores->free() > 0;
}

// False: there is no buffer.
bool Outflow::leave(const kv::Storable& one, std::vector<Leaving>& to, bool cached) {
  const std::vector<std::byte> text = kv::spell(one.text);
  std::vector<std::byte> origin;  // of one group and no state: what routers are told
  if (config_.origins && one.group == 0) origin = kv::spell(kv::BlockOrigin{one.parent, one.is_first, *one.ns});
  if (origin.size() > tier::kMostOrigin) origin.clear();
  const std::size_t payload = info_.outside_bytes(one.group) * one.pages.size();
  const std::size_t size = tier::piece_size(text.size(), config_.about.size(), payload, origin.size());
  tier::Buffer buffer = config_.stores->take();
  if (!buffer || size > buffer.memory().size()) {
    figures_.unbuffered += cached ? 0 : 1;  // else it is put off
    return false;
  }
  buffer.set_size(size);
  const tier::Name name = piece_name(config_.model, space_name(*one.ns), one.digest, one.group);
  tier::begin_piece(buffer.bytes(), name, text, config_.about, payload, origin);
  to.push_back({name,
                std::move(buffer),
                {one.pages.begin(), one.pages.end()},
                one.group,
                cached,
                !cached && one.uses < kSecondUse});
  if (cached) cache_.set_stored(one.pages, true);
  return true;
}

// False: it has to wait.
bool Outflow::store_next(std::vector<Leaving>& to) {
  const Worth next = worth_.front();
  bool all_left = true;
  std::vector<kv::Storable> found;  // marks change what is told
  if (cache_.storables().digest_of(next.block) == next.digest)
    cache_.storables().at(next.block, next.all, [&](const kv::Storable& one) {
      if (!is_refused(one)) found.push_back(one);
    });
  for (const kv::Storable& one : found) {
    all_left = all_left && leave(one, to, true);
    if (!all_left) break;
    credit_ -= static_cast<double>(to.back().buffer.size());
    worth_.front().begun = true;
  }
  if (all_left) worth_.pop_front();
  return all_left;
}

void Outflow::add_stores(std::uint64_t step, std::vector<kv::BlockOp>& ops, std::vector<std::span<std::byte>>& outside,
                         bool rests) {
  if (config_.store == nullptr) return;
  if (rests) credit_ = kMostCredit;
  steps_.push_back({.number = step, .leaving = std::exchange(evicted_, {})});
  std::vector<Leaving>& leaving = steps_.back().leaving;
  while (!worth_.empty() && credit_ > 0 && store_next(leaving)) {
  }
  std::vector<kv::BlockOp> stores;
  for (const Leaving& each : leaving) {
    const std::size_t bytes = info_.outside_bytes(each.group);
    const auto payload = each.buffer.bytes().last(bytes * each.pages.size());
    for (std::size_t i = 0; i < each.pages.size(); ++i) {
      stores.push_back({.kind = kv::BlockOp::Kind::kStore,
                        .src = each.pages[i],
                        .n_slots = info_.block_size,
                        .group = each.group,
                        .outside = outside.size()});
      outside.push_back(payload.subspan(i * bytes, bytes));
    }
  }
  ops.insert(ops.begin(), stores.begin(), stores.end());
  if (leaving.empty()) steps_.pop_back();
}

std::vector<Outflow::Leaving> Outflow::taken(std::uint64_t step) {
  const auto found = std::ranges::find(steps_, step, &Step::number);
  if (found == steps_.end()) return {};
  std::vector<Leaving> leaving = std::move(found->leaving);
  steps_.erase(found);
  return leaving;
}

void Outflow::give_up(const Leaving& each) {
  if (each.cached) cache_.set_stored(each.pages, false);  // its next use offers it again
}

void Outflow::stored(std::uint64_t step, double seconds) {
  credit_ = std::min(credit_ + kPart * kCopied * seconds, kMostCredit);
  for (Leaving& each : taken(step)) {
    tier::Store& store = *config_.store;
    if (each.once ? store.offer_once(each.name, std::move(each.buffer))
                  : store.offer(each.name, std::move(each.buffer))) {
      ++figures_.stored;
      continue;
    }
    ++figures_.refused;
    give_up(each);
    // The rest of it is of no use alone; and a store that takes nothing would be offered its first part for ever.
    if (each.cached && !worth_.empty() && worth_.front().begun) worth_.pop_front();
  }
}

void Outflow::failed(std::uint64_t step) {
  for (const Leaving& each : taken(step)) {
    ++figures_.unbuffered;
    give_up(each);
  }
  evicted_.clear();  // their blocks may be written by then
}

}  // namespace coppice::engine
