#include "kv/block_pool.h"

#include <algorithm>

#include "check/assert.h"
#include "kv/faults.h"

namespace coppice::kv {

BlockPool::BlockPool(std::int32_t num_blocks, int n_groups)
    : blocks_(static_cast<std::size_t>(num_blocks)), order_(num_blocks, n_groups), with_users_{total(), 0} {
  free_.reserve(blocks_.size() - 1);
  for (BlockId id = num_blocks - 1; id > kNullBlock; --id) free_.push_back(id);
}

void BlockPool::change_users(Count& count, int delta) {
  const auto most = static_cast<std::size_t>(count.users + std::max(delta, 0));
  if (with_users_.size() <= most) with_users_.push_back(0);  // may throw: before anything changes
  --with_users_[static_cast<std::size_t>(count.users)];
  count.users += delta;
  references_ += delta;
  ++with_users_[static_cast<std::size_t>(count.users)];
  max_users_ = std::max(max_users_, count.users);
  while (max_users_ > 0 && with_users_[static_cast<std::size_t>(max_users_)] == 0) --max_users_;
  in_use_ = total() - with_users_[0];
  peak_in_use_ = std::max(peak_in_use_, in_use_);
}

BlockRef BlockPool::allocate() {
  COPPICE_ASSERT(!free_.empty());
  const BlockId id = free_.back();
  change_users(blocks_[index(id)], +1);
  free_.pop_back();
  return {this, id};
}

BlockRef BlockPool::acquire(BlockId id) {
  Count& count = blocks_[index(id)];
  COPPICE_ASSERT(ref_count(id) > 0);
  change_users(count, +1);
  if (count.users == 1) order_.remove(id);
  return {this, id};
}

void BlockPool::release(BlockId id, Heat heat) {
  Count& count = blocks_[index(id)];
  if (check::kFaultBuild && count.users == 0) return;  // a deliberate fault was found already; let the destructors run
  COPPICE_ASSERT(count.users > 0);
  change_users(count, -1);
  if (count.users > 0) return;
  if (count.group >= 0) {
    order_.add(id, count.group, heat);
  } else {
    free_.push_back(id);
  }
}

void BlockPool::hold_in_tree(BlockId id, int group) {
  COPPICE_ASSERT(!in_tree(id) && users(id) > 0);
  blocks_[index(id)].group = group;
}

void BlockPool::drop_from_tree(BlockId id) {
  COPPICE_ASSERT(in_tree(id));
  Count& count = blocks_[index(id)];
  count.group = -1;
  count.stored = false;
  if (count.users > 0) return;
  order_.remove(id);
  free_.push_back(id);
}

}  // namespace coppice::kv
