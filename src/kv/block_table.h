// BlockTable: a sequence's references for one group, by absolute position. Not thread safe.
//
// Invariants:
//  1. Each entry is a reference, or the null block where the window has passed.
//  2. References are released deepest first, so that the eviction order of the full group is leaf first.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "kv/block_pool.h"
#include "kv/reserve_more.h"

namespace coppice::kv {

class BlockTable {
 public:
  explicit BlockTable(BlockPool& pool) : pool_(&pool) {}
  BlockTable(BlockTable&& other) noexcept : pool_(other.pool_), ids_(std::exchange(other.ids_, {})) {}
  BlockTable& operator=(BlockTable&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(ids_, other.ids_);
    return *this;
  }
  ~BlockTable() { resize_down(0); }

  std::size_t size() const { return ids_.size(); }
  BlockId operator[](std::size_t i) const { return ids_[i]; }
  BlockId back() const { return ids_.back(); }
  std::span<const BlockId> ids() const { return ids_; }

  /// Room for `size` entries in all, so that push() cannot fail.
  void reserve(std::size_t size) {
    if (size > ids_.size()) reserve_more(ids_, size - ids_.size());
  }
  void push(BlockRef ref) {
    ids_.push_back(ref.id());
    ref.take();
  }
  void push_null() { ids_.push_back(kNullBlock); }

  /// Repoints an entry: a fork, or a merge with the tree's copy. Returns the old reference.
  BlockRef replace(std::size_t i, BlockRef ref) { return {pool_, std::exchange(ids_[i], ref.take())}; }

  /// Lets go of an entry that left the window.
  void drop(std::size_t i, Heat heat) {
    const BlockId id = std::exchange(ids_[i], kNullBlock);
    if (id != kNullBlock) pool_->release(id, heat);
  }

  /// Lets go of the entries from `size` on, deepest first.
  void resize_down(std::size_t size) {
    while (ids_.size() > size) {
      if (ids_.back() != kNullBlock) pool_->release(ids_.back());
      ids_.pop_back();
    }
  }

  /// A second table on the same blocks: one more reference each, no bytes copied.
  BlockTable share() const {
    BlockTable copy(*pool_);
    copy.ids_.reserve(ids_.size() + 1);
    for (const BlockId id : ids_) id == kNullBlock ? copy.push_null() : copy.push(pool_->acquire(id));
    return copy;
  }

 private:
  BlockPool* pool_;
  std::vector<BlockId> ids_;
};

}  // namespace coppice::kv
