// StateTable: the states of recurrent layers: which pages each one has, who holds it, and where in the prefix tree it
// stands. Not thread safe.
//
// A state is a unit of `state_pages` pages of the pool: taken, held, evicted and freed whole. One that a sequence alone
// holds is live: its sequence may write it in place. Any other is frozen: who goes on from it reads it, and writes
// another unit.
//
// In the tree a state stands behind a whole block, its anchor, and behind `rest`, fewer tokens than a block (mostly
// none): that is the prefix it remembers.
//
// Invariants (check_integrity() checks them):
//  1. The pages of a unit have the same users, and all of them the tree's reference or none. So the pool's counts and
//     the eviction order need not know units: evicting one page takes the others along.
//  2. The anchor of a state in the tree is a full block in the tree. A block behind it begins with `rest`. No two
//     states stand for one prefix.
//  3. cached() is the number of units that the tree alone holds, in_use() that of the others.
//
// A table without states (state_pages == 0) owns no memory, and every question to it is one comparison.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kv/block_pool.h"
#include "kv/cache_config.h"
#include "kv/faults.h"
#include "kv/text.h"
#include "kv/types.h"

namespace coppice::kv {

class StateTable;

/// Index of a unit in the table.
using UnitId = std::int32_t;
inline constexpr UnitId kNoUnit = -1;

/// One user's reference to a state, or to none. Move-only; its destructor releases it (at the hot end of the eviction
/// order).
class [[nodiscard]] StateRef {
 public:
  StateRef() = default;
  StateRef(StateRef&& other) noexcept
      : table_(std::exchange(other.table_, nullptr)), unit_(std::exchange(other.unit_, kNoUnit)) {}
  StateRef& operator=(StateRef&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(unit_, other.unit_);
    return *this;
  }
  ~StateRef();

  explicit operator bool() const { return table_ != nullptr; }
  UnitId unit() const { return unit_; }
  std::span<const BlockId> pages() const;  ///< [state_pages]; empty without a state
  /// Somebody else holds it, or the tree: it must not be written.
  bool frozen() const;
  StateRef share() const;
  void leak() { table_ = nullptr; }  ///< for a deliberate fault

 private:
  friend class StateTable;
  StateRef(StateTable* table, UnitId unit) : table_(table), unit_(unit) {}

  StateTable* table_ = nullptr;
  UnitId unit_ = kNoUnit;
};

class StateTable {
 public:
  StateTable(const CacheConfig& config, BlockPool& pool);

  bool enabled() const { return config_.state_pages > 0; }

  struct Unit {
    std::vector<BlockId> pages;   // [state_pages]; empty: there is no such unit now
    BlockId anchor = kNullBlock;  // kNullBlock: the tree doesn't hold it
    Text rest;
    UnitId next = kNoUnit;  // behind the same anchor
  };

  // --- holders
  // --------------------------------------------------------------------------------------------------------
  /// A unit of fresh pages, with one user. REQUIRES: state_pages of them, which nobody else holds.
  StateRef make(std::span<BlockRef> pages);
  /// One more user of a unit that somebody holds.
  StateRef acquire(UnitId unit);
  std::int32_t users(UnitId unit) const { return pool_.users(at(unit).pages.front()); }
  std::span<const BlockId> pages(UnitId unit) const { return at(unit).pages; }

  // --- the tree
  // -------------------------------------------------------------------------------------------------------
  /// REQUIRES: owns(page).
  const Unit& unit_of(BlockId page) const { return at(unit_of_[index(page)]); }
  /// Whether this is a page of a state.
  bool owns(BlockId page) const { return enabled() && unit_of_[index(page)] != kNoUnit; }
  /// The state that stands behind `anchor` and exactly these tokens; kNoUnit: there is none.
  UnitId find(BlockId anchor, TextView rest) const;
  /// Of those behind `anchor` and the first of these tokens, the one with most of them among those with fits(how many).
  template <class Fits>
  UnitId longest(BlockId anchor, TextView tokens, Fits&& fits) const;
  bool any_behind(BlockId anchor) const { return enabled() && first_behind_[index(anchor)] != kNoUnit; }
  TextView rest(UnitId unit) const { return at(unit).rest; }
  /// The tree takes its reference. REQUIRES: it has none; find() finds nothing. Throws std::bad_alloc: nothing has
  /// changed.
  void enter(const StateRef& state, BlockId anchor, TextView rest);
  /// The tree lets go of a state.
  void leave(UnitId unit);
  /// ... of the one that this page belongs to.
  void evict(BlockId page) { leave(unit_of_[index(page)]); }
  /// ... of those behind `anchor` whose `rest` meets this.
  template <class Predicate>
  void leave_if(BlockId anchor, Predicate&& predicate);
  /// A request has started on this state: it, and no other on its path, counts as used.
  void count_use(UnitId unit);

  bool was_used(UnitId unit) const { return pool_.order().uses(at(unit).pages.front()) > 1; }

  std::int64_t cached() const { return cached_; }
  std::int64_t in_use() const { return units() - cached_; }

  // For check_integrity(): all units that somebody holds, and others.
  std::span<const Unit> all() const { return units_; }
  UnitId first_behind(BlockId anchor) const { return first_behind_[index(anchor)]; }

 private:
  friend class StateRef;
  static std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }
  Unit& at(UnitId unit) { return units_[index(unit)]; }
  const Unit& at(UnitId unit) const { return units_[index(unit)]; }
  std::int64_t units() const { return std::ssize(units_) - std::ssize(free_); }
  void release(UnitId unit);
  void recycle(UnitId unit);

  const CacheConfig& config_;
  BlockPool& pool_;
  std::vector<Unit> units_;           // as many as the pool has room for
  std::vector<UnitId> free_;          // those without pages
  std::vector<UnitId> unit_of_;       // by page
  std::vector<UnitId> first_behind_;  // by anchor
  std::int64_t cached_ = 0;
};

inline StateRef::~StateRef() {
  if (table_ != nullptr) table_->release(unit_);
}
inline std::span<const BlockId> StateRef::pages() const {
  return table_ == nullptr ? std::span<const BlockId>() : table_->pages(unit_);
}
inline bool StateRef::frozen() const {
  return table_ != nullptr && table_->pool_.ref_count(pages().front()) > 1;
}
inline StateRef StateRef::share() const {
  return table_ == nullptr ? StateRef() : table_->acquire(unit_);
}

template <class Fits>
UnitId StateTable::longest(BlockId anchor, TextView tokens, Fits&& fits) const {
  UnitId best = kNoUnit;
  for (UnitId unit = first_behind(anchor); unit != kNoUnit; unit = at(unit).next) {
    const auto& rest = at(unit).rest;
    const bool longer = best == kNoUnit || rest.size() > at(best).rest.size();
    const bool agrees = rest.size() <= tokens.size() &&
                        (rest.view() == tokens.first(rest.size()) || fault(Fault::kStateBeyondItsTokens));
    if (longer && agrees && fits(static_cast<std::int32_t>(rest.size()))) best = unit;
  }
  return best;
}

template <class Predicate>
void StateTable::leave_if(BlockId anchor, Predicate&& predicate) {
  for (UnitId unit = any_behind(anchor) ? first_behind(anchor) : kNoUnit; unit != kNoUnit;) {
    const UnitId next = at(unit).next;
    if (predicate(at(unit).rest.view())) leave(unit);
    unit = next;
  }
}

}  // namespace coppice::kv
