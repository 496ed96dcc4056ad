#include "kv/pin_table.h"

#include <algorithm>
#include <utility>

#include "kv/faults.h"

namespace coppice::kv {

std::expected<Pinned, NoPin> PinTable::add(const PinRequest& request) {
  using enum NoPin::Why;
  const auto refuse = [](NoPin::Why why, std::int64_t needed = 0, std::int64_t most = 0) {
    return std::unexpected(NoPin{why, needed, most});
  };
  if (!config_.share) return refuse(kNotCached);
  const PrefixMatch match = whole_match(request);
  if (match.rows.empty()) return refuse(kNotCached);
  const Growth growth = this->growth(match, request.owner);
  if (growth.of_owner > request.most_of_owner) return refuse(kOwnersShare, growth.of_owner, request.most_of_owner);
  if (blocks_ + growth.blocks > request.most) return refuse(kShare, blocks_ + growth.blocks, request.most);
  if (growth.cached > budget_.available(0)) return refuse(kPromised, growth.cached, budget_.available(0));

  Pin pin{.owner = std::string(request.owner)};
  for (int g = 0; g < config_.n_groups(); ++g) pin.tables.emplace_back(pool_);
  for_each_block(match, [&](int g, BlockId id) {
    BlockTable& table = pin.tables[static_cast<std::size_t>(g)];
    id == kNullBlock ? table.push_null() : table.push(pool_.acquire(id));
  });
  if (fault(Fault::kPinOneShort)) pin.tables[0].drop(match.rows.size() - 1, Heat::kHot);
  if (match.state != kNoUnit) pin.state = states_.acquire(match.state);
  const PinId id{++last_id_};
  const Pin& held = pins_.emplace(id, std::move(pin)).first->second;
  // Nothing throws from here on.
  held.for_each_held([this](BlockId block) { blocks_ += ++pins_of_[static_cast<std::size_t>(block)] == 1; });
  const PrefixTree::Place end = tree_.place(match.rows.back()[0]);
  return Pinned{
      .id = id,
      .tokens = match.length,
      .digest = end.node->digests[static_cast<std::size_t>(end.block - end.node->first_block)],
  };
}

void PinTable::remove(PinId id) {
  const auto pin = pins_.find(id);
  pin->second.for_each_held([this](BlockId block) { blocks_ -= --pins_of_[static_cast<std::size_t>(block)] == 0; });
  pins_.erase(pin);
}

// The longest match that ends with a whole block. A shorter one has other windows and another state, and may meet other
// holes.
PrefixMatch PinTable::whole_match(const PinRequest& request) const {
  const auto bs = static_cast<std::size_t>(config_.block_size);
  PrefixMatch match;
  for (std::size_t length = request.prefix.size() / bs * bs; length > 0;) {
    match = tree_.match(request.prefix.first(length), request.ns);
    const std::size_t whole = static_cast<std::size_t>(match.length) / bs * bs;
    if (whole == length) return match;
    length = whole;
  }
  return {};
}

template <class F>
void PinTable::for_each_block(const PrefixMatch& match, F&& f) const {
  for (int g = 0; g < config_.n_groups(); ++g) {
    const std::int32_t begin = config_.first_kept_block(g, match.length);
    for (std::int32_t b = 0; const BlockId* row : match.rows) {
      f(g, b++ >= begin ? row[g] : kNullBlock);
    }
  }
}

PinTable::Growth PinTable::growth(const PrefixMatch& match, std::string_view owner) const {
  Growth sum;
  std::vector<bool> owned(pins_of_.size());
  const auto count = [&](BlockId id) {
    if (owned[static_cast<std::size_t>(id)]) return;
    owned[static_cast<std::size_t>(id)] = true;
    ++sum.of_owner;
  };
  for (const auto& [id, pin] : pins_) {
    if (pin.owner == owner) pin.for_each_held(count);
  }
  const auto add = [&](BlockId id) {
    count(id);
    sum.blocks += this->count(id) == 0;
    sum.cached += pool_.users(id) == 0;
  };
  for_each_block(match, [&](int, BlockId id) {
    if (id != kNullBlock) add(id);
  });
  if (match.state != kNoUnit) std::ranges::for_each(states_.pages(match.state), add);
  return sum;
}

}  // namespace coppice::kv
