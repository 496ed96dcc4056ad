// BlockPool: who holds which block. Counts in one array, a free list, everything O(1); it knows ids, not bytes.
// Not thread safe.
//
// A block has users (sequences and pins, one reference each) and perhaps the tree's reference.
//   free     no users, not in the tree; on the free list
//   cached   no users, in the tree; in the eviction order of its group
//   in use   one user or more
//   shared   two users or more
// Invariant: total() = free() + cached() + in_use(). The null block is none of them and has no count.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kv/eviction_order.h"
#include "kv/types.h"

namespace coppice::kv {

class BlockPool;

/// One user's reference to a block. Move-only; its destructor releases it (at the hot end of the eviction order).
class [[nodiscard]] BlockRef {
 public:
  BlockRef() = default;
  BlockRef(BlockRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), id_(std::exchange(other.id_, kNullBlock)) {}
  BlockRef& operator=(BlockRef&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~BlockRef();

  BlockId id() const { return id_; }

  /// Hands the reference over to the caller, who releases it.
  BlockId take() { return pool_ = nullptr, std::exchange(id_, kNullBlock); }

 private:
  friend class BlockPool;
  friend class BlockTable;
  BlockRef(BlockPool* pool, BlockId id) : pool_(pool), id_(id) {}

  BlockPool* pool_ = nullptr;
  BlockId id_ = kNullBlock;
};

class BlockPool {
 public:
  /// `n_groups`: for the eviction order.
  BlockPool(std::int32_t num_blocks, int n_groups);

  // --- users --------------------------------------------------------------------------------------------------------
  /// A fresh block with one user.
  /// REQUIRES: free() > 0.
  BlockRef allocate();
  /// One more user of a block that somebody holds.
  BlockRef acquire(BlockId id);
  /// A user lets go.
  /// REQUIRES: users(id) > 0.
  void release(BlockId id, Heat heat = Heat::kHot);

  // --- the tree -----------------------------------------------------------------------------------------------------
  /// The tree takes its reference.
  /// REQUIRES: it has none; the block has a user.
  void hold_in_tree(BlockId id, int group);
  /// The tree drops its reference.
  /// REQUIRES: it has one.
  void drop_from_tree(BlockId id);

  /// A block of the tree is kept outside of the pool, too.
  /// REQUIRES: in_tree(id).
  void set_stored(BlockId id, bool stored) { blocks_[index(id)].stored = stored; }
  bool stored(BlockId id) const { return blocks_[index(id)].stored; }

  std::int32_t users(BlockId id) const { return blocks_[index(id)].users; }
  bool in_tree(BlockId id) const { return blocks_[index(id)].group >= 0; }
  /// All references; a block with more than one is forked before it is written.
  std::int32_t ref_count(BlockId id) const { return users(id) + (in_tree(id) ? 1 : 0); }

  std::int64_t total() const { return static_cast<std::int64_t>(blocks_.size()) - 1; }
  std::int64_t free() const { return static_cast<std::int64_t>(free_.size()); }
  std::int64_t cached() const { return total() - free() - in_use_; }
  std::int64_t in_use() const { return in_use_; }
  std::int64_t shared() const { return total() - with_users_[0] - with_users_[1]; }
  std::int64_t max_users() const { return max_users_; }
  std::int64_t peak_in_use() const { return peak_in_use_; }
  std::int64_t references() const { return references_; }  ///< of all users

  EvictionOrder& order() { return order_; }
  const EvictionOrder& order() const { return order_; }

 private:
  struct Count {
    std::int32_t users = 0;
    std::int32_t group : 31 = -1;  // of the tree's reference; -1: the tree has none
    bool stored : 1 = false;
  };
  static std::size_t index(BlockId id) { return static_cast<std::size_t>(id); }
  void change_users(Count& count, int delta);

  std::vector<Count> blocks_;  // by id; [0] unused
  std::vector<BlockId> free_;  // a stack: the block freed last is most likely still in the processor's caches
  EvictionOrder order_;
  std::int64_t in_use_ = 0, peak_in_use_ = 0, references_ = 0;
  std::vector<std::int64_t> with_users_;  // [k]: blocks that have k users
  std::int32_t max_users_ = 0;
};

inline BlockRef::~BlockRef() {
  if (pool_ != nullptr) pool_->release(id_);
}

}  // namespace coppice::kv
