#include "engine/prefix_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <span>
#include <utility>
#include <vector>

namespace coppice::engine {

namespace {

/// 96 bits of the digest: nobody can find two texts with the same.
std::string id_of(const kv::Digest& digest) {
  std::string id = "prefix_";
  for (const std::uint8_t byte : std::span(digest).first(12)) id += fmt::format("{:02x}", byte);
  return id;
}

PinRefusal refusal_of(kv::NoPin::Why why) {
  switch (why) {
    case kv::NoPin::Why::kNotCached:
      return PinRefusal::kTooShort;
    case kv::NoPin::Why::kOwnersShare:
      return PinRefusal::kOwnersShare;
    case kv::NoPin::Why::kShare:
      return PinRefusal::kShare;
    case kv::NoPin::Why::kPromised:
      break;
  }
  return PinRefusal::kPromised;
}

}  // namespace

PrefixTable::PrefixTable(kv::Cache& cache, const EngineConfig& config) : cache_(cache) {
  const auto part = [total = static_cast<double>(cache.stats().total)](double share) {
    return static_cast<std::int64_t>(share * total);
  };
  most_ = part(config.pin_share);
  most_of_payer_ = part(config.pin_share_of_key);
}

PinOutcome PrefixTable::pin(const Request& request, const PinWish& wish, Clock::time_point now) noexcept try {
  return add(request, wish, now);
} catch (const std::exception&) {
  return {.asked_ttl = wish.ttl, .refusal = PinRefusal::kNoMemory};
}

PinOutcome PrefixTable::add(const Request& request, const PinWish& wish, Clock::time_point now) {
  const std::string& payer = request.pin_payer;
  if (payers_ && !payers_->contains(payer)) return {.asked_ttl = wish.ttl, .refusal = PinRefusal::kRevoked};
  const auto pinned = cache_.pin({.prefix = request.prompt.view().first(static_cast<std::size_t>(wish.tokens)),
                                  .ns = request.ns,
                                  .owner = payer,
                                  .most = most_,
                                  .most_of_owner = payer.empty() ? most_ : most_of_payer_});
  if (!pinned) {
    const kv::NoPin& no = pinned.error();
    return {.asked_ttl = wish.ttl, .prefix = {}, .refusal = refusal_of(no.why), .needed = no.needed, .most = no.most};
  }
  // Until the table has it, an exception would leave a pin that nobody can end.
  struct Guard {
    kv::Cache& cache;
    std::optional<kv::PinId> pin;
    ~Guard() {
      if (pin) cache.unpin(*pin);
    }
  } guard{cache_, pinned->id};

  PinOutcome outcome{.asked_ttl = wish.ttl, .refusal = PinRefusal::kTooMany};
  const Key key{payer, request.ns, id_of(pinned->digest)};
  auto at = entries_.find(key);
  const bool fresh = at == entries_.end();
  if (fresh) {
    if (entries_.size() >= kMost || count_of(payer) >= kMostOfPayer) return outcome;
    at = entries_.emplace(key, Entry{.info = {.id = std::get<2>(key), .since = now}}).first;
  }
  Entry& entry = at->second;
  if (fresh) entry.pin = *std::exchange(guard.pin, std::nullopt);  // else it has these blocks already
  PrefixInfo& info = entry.info;
  info.pinned_tokens = pinned->tokens;
  info.blocks = std::ssize(cache_.state(entry.pin));
  for (std::size_t g = 0; g < cache_.config().groups.size(); ++g)
    info.blocks += std::ranges::count_if(cache_.table(entry.pin, static_cast<int>(g)).blocks,
                                         [](kv::BlockId block) { return block != kv::kNullBlock; });
  if (wish.object || !info.object) {
    info.tokens = wish.tokens;
    info.ttl = wish.object ? wish.ttl : std::max(info.ttl, wish.ttl);
    info.expires = wish.object ? now + wish.ttl : std::max(info.expires, now + wish.ttl);
  }
  if (wish.object) {
    info.object = true;
    info.name = wish.name;
  }
  ++changes_;
  outcome.prefix = info;
  return outcome;
}

// The blocks that the request took don't tell: its last one may agree in part, and be a sibling of the pinned one.
void PrefixTable::count_hits(const Request& request, std::int32_t cached, Clock::time_point now) {
  if (entries_.empty() || cached == 0) return;
  const std::vector<kv::BlockId> known = cache_.whole_blocks(request.prompt, request.ns);
  for (auto& [key, entry] : entries_) {
    if (!begins_with(known, entry)) continue;
    PrefixInfo& info = entry.info;
    ++info.hits;
    info.saved_tokens += std::min(info.pinned_tokens, cached);
    if (!info.object) info.expires = std::max(info.expires, now + info.ttl);
  }
}

bool PrefixTable::begins_with(std::span<const kv::BlockId> known, const Entry& entry) const {
  const auto blocks = cache_.table(entry.pin, 0).blocks;
  return blocks.size() <= known.size() && known[blocks.size() - 1] == blocks.back();
}

bool PrefixTable::give_way(const Request& request, std::int64_t blocks) {
  const std::vector<kv::BlockId> known = cache_.whole_blocks(request.prompt, request.ns);
  using Rank = std::tuple<bool, bool, Clock::time_point>;
  std::vector<std::pair<Rank, Entries::iterator>> order;
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    const PrefixInfo& info = it->second.info;
    order.emplace_back(Rank{begins_with(known, it->second), info.object, info.expires}, it);
  }
  std::ranges::sort(order, {}, &decltype(order)::value_type::first);
  const std::int64_t enough = cache_.stats().pinned - blocks;
  for (const auto& [rank, entry] : order) {
    end(entry);
    ++given_up_;
    if (cache_.stats().pinned <= enough) break;
  }
  return !order.empty();
}

bool PrefixTable::expire(Clock::time_point now) {
  bool any = false;
  for (auto it = entries_.begin(); it != entries_.end();) {
    const bool over = it->second.info.expires <= now;
    any |= over;
    it = over ? end(it) : std::next(it);
  }
  return any;
}

std::optional<Clock::time_point> PrefixTable::next_expiry() const {
  std::optional<Clock::time_point> first;
  for (const auto& [key, entry] : entries_) first = std::min(first.value_or(entry.info.expires), entry.info.expires);
  return first;
}

PrefixAnswer PrefixTable::obey(PrefixCommand&& command) {
  PrefixAnswer answer;
  if (command.kind == PrefixCommand::Kind::kReset) {
    answer.ended = static_cast<std::int64_t>(entries_.size());
    for (auto it = entries_.begin(); it != entries_.end();) it = end(it);
    const kv::Cleared cleared = cache_.clear();
    ++changes_;
    answer.blocks = cleared.blocks;
    answer.tokens = cleared.tokens;
    return answer;
  }
  if (command.kind == PrefixCommand::Kind::kKeepPayers) {
    payers_ = std::move(command.payers);
    for (auto it = entries_.begin(); it != entries_.end();)
      it = payers_->contains(std::get<0>(it->first)) ? std::next(it) : end(it);
    return answer;
  }
  const auto& [payer, ns] = command.owner;
  for (auto it = entries_.lower_bound({payer, ns, command.prefix}); it != entries_.end();) {
    const auto& [its_payer, its_ns, id] = it->first;
    if (its_payer != payer || its_ns != ns || (!command.prefix.empty() && id != command.prefix)) break;
    answer.prefixes.push_back(it->second.info);
    it = command.kind == PrefixCommand::Kind::kEnd ? end(it) : std::next(it);
  }
  return answer;
}

std::size_t PrefixTable::count_of(const std::string& payer) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(entries_, [&](const auto& entry) { return std::get<0>(entry.first) == payer; }));
}

PrefixTable::Entries::iterator PrefixTable::end(Entries::iterator entry) {
  cache_.unpin(entry->second.pin);
  ++changes_;
  return entries_.erase(entry);
}

}  // namespace coppice::engine
