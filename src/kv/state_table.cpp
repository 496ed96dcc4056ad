#include "kv/state_table.h"

#include <algorithm>

#include "check/assert.h"

namespace coppice::kv {

StateTable::StateTable(const CacheConfig& config, BlockPool& pool) : config_(config), pool_(pool) {
  if (!enabled()) return;
  units_.resize(static_cast<std::size_t>(pool.total() / config.state_pages));
  free_.reserve(units_.size());
  for (auto unit = static_cast<UnitId>(units_.size()); unit-- > 0;) free_.push_back(unit);
  unit_of_.resize(static_cast<std::size_t>(config.num_blocks), kNoUnit);
  first_behind_.resize(static_cast<std::size_t>(config.num_blocks), kNoUnit);
}

// --- holders --------------------------------------------------------------------------------------------------------

StateRef StateTable::make(std::span<BlockRef> pages) {
  COPPICE_ASSERT(std::ssize(pages) == config_.state_pages && !free_.empty());
  const UnitId unit = free_.back();
  at(unit).pages.reserve(pages.size());  // may throw: before anything changes
  free_.pop_back();
  for (BlockRef& page : pages) {
    unit_of_[index(page.id())] = unit;
    at(unit).pages.push_back(page.take());
  }
  return {this, unit};
}

StateRef StateTable::acquire(UnitId unit) {
  if (users(unit) == 0) --cached_;
  for (const BlockId page : at(unit).pages) pool_.acquire(page).take();
  return {this, unit};
}

void StateTable::release(UnitId unit) {
  for (const BlockId page : at(unit).pages) pool_.release(page);
  if (users(unit) > 0) return;
  if (at(unit).anchor != kNullBlock) {
    ++cached_;
  } else {
    recycle(unit);
  }
}

void StateTable::recycle(UnitId unit) {
  for (const BlockId page : at(unit).pages) unit_of_[index(page)] = kNoUnit;
  at(unit).pages.clear();
  free_.push_back(unit);  // there is room for all units
}

// --- the tree -------------------------------------------------------------------------------------------------------

UnitId StateTable::find(BlockId anchor, TextView rest) const {
  for (UnitId unit = any_behind(anchor) ? first_behind(anchor) : kNoUnit; unit != kNoUnit; unit = at(unit).next) {
    if (at(unit).rest.view() == rest) return unit;
  }
  return kNoUnit;
}

void StateTable::enter(const StateRef& state, BlockId anchor, TextView rest) {
  Unit& unit = at(state.unit());
  COPPICE_ASSERT(unit.anchor == kNullBlock && find(anchor, rest) == kNoUnit);
  unit.rest = Text(rest);  // may throw
  unit.anchor = anchor;
  unit.next = std::exchange(first_behind_[index(anchor)], state.unit());
  for (const BlockId page : unit.pages) {
    pool_.hold_in_tree(page, config_.n_groups());
    pool_.order().enter_aside(page);
  }
}

void StateTable::leave(UnitId id) {
  Unit& unit = at(id);
  UnitId* link = &first_behind_[index(unit.anchor)];
  while (*link != id) link = &at(*link).next;
  *link = std::exchange(unit.next, kNoUnit);
  unit.anchor = kNullBlock;
  unit.rest.clear();
  const bool unused = users(id) == 0;
  for (const BlockId page : unit.pages) pool_.drop_from_tree(page);
  if (!unused) return;
  --cached_;
  recycle(id);
}

void StateTable::count_use(UnitId unit) {
  for (const BlockId page : at(unit).pages) pool_.order().use(page, /*came_back=*/false);
}

}  // namespace coppice::kv
