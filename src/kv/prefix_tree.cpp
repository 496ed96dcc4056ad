#include "kv/prefix_tree.h"

#include <algorithm>
#include <utility>

#include "check/assert.h"
#include "kv/faults.h"

namespace coppice::kv {

namespace {

const Namespace& space_of(const TreeNode& node) {
  const TreeNode* root = &node;
  while (root->parent != nullptr) root = root->parent;
  return *root->ns;
}

}  // namespace

PrefixTree::PrefixTree(BlockPool& pool, StateTable& states, const CacheConfig& config)
    : pool_(pool),
      states_(states),
      config_(config),
      bs_(config.block_size),
      n_groups_(config.n_groups()),
      places_(static_cast<std::size_t>(pool.total() + 1)) {}

// --- matching -------------------------------------------------------------------------------------------------------

PrefixMatch PrefixTree::match(TextView tokens, const Namespace& ns) const {
  const auto root = roots_.find(fault(Fault::kIgnoreSalt) ? Namespace{} : ns);
  return root == roots_.end() ? PrefixMatch{} : longest_match(*root->second, tokens, states_, config_);
}

std::vector<BlockId> PrefixTree::whole_blocks(TextView tokens, const Namespace& ns) const {
  std::vector<BlockId> ids;
  const auto root = roots_.find(ns);
  const TreeNode* node = root == roots_.end() ? nullptr : root->second.get();
  while (node != nullptr && tokens.size() >= static_cast<std::size_t>(bs_)) {
    const auto child = node->children.find(tokens.first(bs_));
    if (child == node->children.end()) break;
    node = child->get();
    const std::int32_t whole = common_prefix(node->tokens, tokens) / bs_;
    for (std::int32_t i = 0; i < whole; ++i) ids.push_back(node->row(i)[0]);
    if (whole < node->n_blocks()) break;
    tokens = tokens.subspan(static_cast<std::size_t>(whole) * bs_);
  }
  return ids;
}

void PrefixTree::count_hit(const PrefixMatch& match) {
  if (match.rows.empty()) return;
  for (TreeNode* node = place(match.rows.back()[0]).node; node != nullptr; node = node->parent) {
    ++node->hits;
    node->last_used = now_;
  }
}

// --- publishing -----------------------------------------------------------------------------------------------------

std::unique_ptr<TreeNode> PrefixTree::make_node() {
  auto node = std::make_unique<TreeNode>(bs_, n_groups_);
  node->serial = ++last_serial_;
  return node;
}

// A node that is in no set yet, but has the memory to be put into one.
TreeNode::Children::node_type PrefixTree::make_child() {
  TreeNode::Children one;
  one.insert(make_node());
  return one.extract(one.begin());
}

PrefixTree::Cursor PrefixTree::root(const Namespace& wanted) {
  const Namespace& ns = fault(Fault::kIgnoreSalt) ? Namespace{} : wanted;
  auto it = roots_.find(ns);
  if (it == roots_.end()) {
    auto node = make_node();
    node->digests.push_back(root_digest(config_.hash, config_.model, config_.layout, ns));
    it = roots_.emplace(ns, std::move(node)).first;
    it->second->ns = &it->first;
    ++node_count_;
  }
  return {it->second.get(), 0};
}

PrefixTree::Cursor PrefixTree::after(BlockId id) const {
  const Place at = place(id);
  COPPICE_ASSERT(at.node != nullptr);
  return {at.node, at.block - at.node->first_block + 1};
}

PrefixTree::Cursor PrefixTree::publish(Cursor at, TextView tokens, std::span<BlockId> ids) {
  try {
    return publish_block(at, tokens, ids);
  } catch (...) {
    if (at.node->ns != nullptr && at.node->children.empty()) remove_root(*at.node);  // made for this block
    throw;
  }
}

PrefixTree::Cursor PrefixTree::publish_block(Cursor at, TextView tokens, std::span<BlockId> ids) {
  const auto size = static_cast<std::int32_t>(tokens.size());
  COPPICE_ASSERT(size > 0 && size <= config_.block_size);
  TreeNode& node = *at.node;

  // Where the tree goes on here: in this node, or in the child that shares the most.
  const bool inside = at.blocks < node.n_blocks();
  TreeNode* next = &node;
  std::int32_t common = 0;
  if (inside) {
    common = common_prefix(node.block_tokens(at.blocks), tokens);
  } else {
    const TreeNode::Candidate best = node.best_child(tokens);
    next = best.child;
    common = best.common;
  }
  const std::int32_t i = inside ? at.blocks : 0;
  if (next != nullptr && common == size) return size == bs_ ? merge(*next, i, ids) : at;

  Block block{tokens, ids, {}};
  if (size == bs_) {  // a partial block has no identity yet: it can be found by tokens only
    block.digest = block_digest(config_.hash, node.digests[std::max(at.blocks - 1, 0)], tokens);
  }
  if (next != nullptr && static_cast<std::size_t>(common) == next->block_tokens(i).size()) {
    replace_partial(*next, block);
    return {next, i + 1};
  }
  if (!inside && node.children.empty() && node.parent != nullptr) {
    append(node, block);
    return {&node, at.blocks + 1};
  }
  auto child = make_child();
  child.value()->make_room(1, tokens);
  if (inside) split(node, at.blocks);
  add_child(node, std::move(child), block);
  return after(ids[0]);
}

// The tree has the publisher's tokens at block `i` of `node`: the publisher gets the tree's ids, a hole gets the
// publisher's.
PrefixTree::Cursor PrefixTree::merge(TreeNode& node, std::int32_t i, std::span<BlockId> ids) {
  for (int g = 0; g < n_groups_; ++g) {
    BlockId& mine = ids[g];
    BlockId& theirs = node.row(i)[g];
    if (mine == kNullBlock || mine == theirs) continue;
    if (theirs != kNullBlock) {
      mine = theirs;
    } else {
      theirs = mine;
      pool_.hold_in_tree(mine, g);
      pool_.order().enter_aside(mine);
      places_[mine] = {&node, node.first_block + i};
    }
  }
  return {&node, i + 1};
}

void PrefixTree::append(TreeNode& leaf, const Block& block) {
  leaf.make_room(1, block.tokens);
  leaf.push_block(block.tokens, block.ids, block.digest);
  leaf.last_used = now_;
  for (int g = 0; g < n_groups_; ++g) {
    if (block.ids[g] != kNullBlock) pool_.hold_in_tree(block.ids[g], g);
  }
  set_places(leaf, leaf.n_blocks() - 1);
  const bool sample = !leaf.is_partial() && EvictionOrder::is_sample(leaf.end_block() - 1);
  const std::uint32_t uses = pool_.order().enter(block.ids, sample ? &block.digest : nullptr);
  if (uses > 1) raise_before(block.ids[0], uses);
  if (observer_ != nullptr && !leaf.is_partial()) tell_entered(leaf, leaf.n_blocks() - 1, space_of(leaf));
}

// A block of an evicted path is back, and its uses are remembered. What stands before it was used as often.
void PrefixTree::raise_before(BlockId id, std::uint32_t uses) {
  do {
    id = block_before(id);
  } while (id != kNullBlock && pool_.order().raise(id, uses));
}

// REQUIRES: `child` is new and has room for the block.
void PrefixTree::add_child(TreeNode& parent, TreeNode::Children::node_type child, const Block& block) {
  TreeNode& node = *child.value();
  node.parent = &parent;
  node.first_block = parent.end_block();
  append(node, block);
  parent.children.insert(std::move(child));
  ++node_count_;
  warm_last_window(parent);
}

// The last block of `leaf` is partial, and the new one continues it.
void PrefixTree::replace_partial(TreeNode& leaf, const Block& block) {
  leaf.make_room(1, block.tokens);
  // The order of siblings looks at first blocks: take the leaf out while its own may change.
  TreeNode::Children& siblings = leaf.parent->children;
  auto handle = siblings.extract(siblings.find(leaf.block_tokens(0)));
  drop_last_block(leaf);
  append(leaf, block);
  siblings.insert(std::move(handle));
}

// Cuts a node in two: it keeps its first `blocks`, a new only child gets the rest. The caller adds another child.
void PrefixTree::split(TreeNode& node, std::int32_t blocks) {
  COPPICE_ASSERT(blocks > 0 && blocks < node.n_blocks());
  auto handle = make_child();
  TreeNode& lower = *handle.value();
  lower.make_room(node.n_blocks() - blocks, node.tokens);
  node.move_tail(blocks, lower);
  set_places(lower, 0);
  node.children.insert(std::move(handle));
  ++node_count_;
}

// `node` has just become a branch point: the sliding blocks in the last window before its end are worth keeping. The
// window may begin above the node.
void PrefixTree::warm_last_window(const TreeNode& node) {
  for (int g = 1; g < n_groups_; ++g) {
    const std::int32_t begin = config_.first_needed_block(g, node.end_block() * bs_);
    const TreeNode* at = &node;
    for (std::int32_t b = node.end_block() - 1; b >= begin; --b) {
      while (b < at->first_block) at = at->parent;
      const BlockId id = at->row(b - at->first_block)[g];
      if (id != kNullBlock && pool_.users(id) == 0) pool_.order().touch(id);
    }
  }
}

// --- evicting -------------------------------------------------------------------------------------------------------

int PrefixTree::evict(BlockId id) {
  const std::int64_t free = pool_.free();
  const Place at = place(id);
  if (states_.owns(id)) {
    states_.evict(id);
  } else if (const auto row = at.node->row(at.block - at.node->first_block); row[0] != id) {
    make_hole(row, static_cast<int>(std::ranges::find(row, id) - row.begin()));
  } else {
    COPPICE_ASSERT(at.node->children.empty() && at.block == at.node->end_block() - 1);
    evict_last_block(*at.node);
  }
  return static_cast<int>(pool_.free() - free);
}

void PrefixTree::evict_last_block(TreeNode& leaf) {
  const BlockId id = leaf.row(leaf.n_blocks() - 1)[0];
  const BlockId before = states_.enabled() ? block_before(id) : kNullBlock;
  if (!leaf.is_partial()) {
    pool_.order().remember(id, leaf.digests.back(), EvictionOrder::is_sample(leaf.end_block() - 1));
  }
  if (leaf.n_blocks() > 1) {
    drop_last_block(leaf);
  } else {
    remove_leaf(leaf);
  }
  if (before != kNullBlock) drop_unfounded_states(before);
}

// Lets go of the states behind `anchor` whose own tokens no block has any more.
void PrefixTree::drop_unfounded_states(BlockId anchor) {
  states_.leave_if(anchor, [&](TextView rest) {
    if (rest.empty()) return false;
    const Cursor at = after(anchor);
    const std::int32_t common = at.blocks < at.node->n_blocks() ? common_prefix(at.node->block_tokens(at.blocks), rest)
                                                                : at.node->best_child(rest).common;
    return std::cmp_less(common, rest.size());
  });
}

Cleared PrefixTree::clear() {
  Cleared cleared;
  for (BlockId next; (next = pool_.order().next()) != kNullBlock;) {
    if (states_.owns(next)) {
      cleared.blocks += evict(next);
      continue;
    }
    const Place at = place(next);
    const std::int32_t i = at.block - at.node->first_block;
    if (at.node->row(i)[0] == next) cleared.tokens += std::ssize(at.node->block_tokens(i));
    cleared.blocks += evict(next);
  }
  return cleared;
}

// Groups of one window go together: without one of them the others are worth nothing.
void PrefixTree::make_hole(std::span<BlockId> row, int group) {
  for (int g = 1; g < n_groups_; ++g) {
    if (row[g] == kNullBlock || !config_.groups[g].keeps_as(config_.groups[group])) continue;
    if (fault(Fault::kHoleInOneGroup) && g != group) continue;
    const BlockId id = std::exchange(row[g], kNullBlock);
    places_[id] = {};
    pool_.drop_from_tree(id);
  }
}

bool PrefixTree::before_branch(BlockId id, const GroupSpec& group) const {
  const Place at = place(id);
  if (at.node == nullptr || at.node->children.empty()) return false;
  return (at.block + 1) * bs_ > group.first_needed(at.node->end_block() * bs_);
}

void PrefixTree::drop_last_block(TreeNode& leaf) {
  if (observer_ != nullptr && !leaf.is_partial()) observer_->left(leaf.digests.back(), space_of(leaf));
  if (!leaf.is_partial() && !fault(Fault::kStateOutlivesBlock)) {
    states_.leave_if(leaf.row(leaf.n_blocks() - 1)[0], [](TextView) { return true; });
  }
  for (const BlockId id : leaf.row(leaf.n_blocks() - 1)) {
    if (id == kNullBlock) continue;
    places_[id] = {};
    pool_.drop_from_tree(id);
  }
  leaf.pop_block();
}

void PrefixTree::remove_leaf(TreeNode& leaf) {
  TreeNode& parent = *leaf.parent;
  if (parent.parent != nullptr && parent.children.size() == 2) {  // it will take the other one in
    const TreeNode& first = **parent.children.begin();
    const TreeNode& other = &first == &leaf ? **parent.children.rbegin() : first;
    parent.make_room(other.n_blocks(), other.tokens);
  }
  const auto handle = parent.children.extract(parent.children.find(leaf.block_tokens(0)));
  drop_last_block(leaf);
  --node_count_;
  if (parent.parent == nullptr) {
    if (parent.children.empty()) remove_root(parent);
  } else if (parent.children.size() == 1) {
    absorb_only_child(parent);
  }
}

void PrefixTree::remove_root(TreeNode& root) {
  --node_count_;
  roots_.erase(roots_.find(*root.ns));
}

// An inner node that is left with one child takes it in (invariant 2).
void PrefixTree::absorb_only_child(TreeNode& node) {
  const auto handle = node.children.extract(node.children.begin());
  const std::int32_t blocks = node.n_blocks();
  node.take_in(*handle.value());
  set_places(node, blocks);
  --node_count_;
}

// --- who watches ----------------------------------------------------------------------------------------------------

// REQUIRES: a full block.
void PrefixTree::tell_entered(const TreeNode& node, std::int32_t i, const Namespace& ns) const {
  observer_->entered({.digest = node.digests[static_cast<std::size_t>(i)],
                      .parent = node.digest_before(i),
                      .is_first = node.first_block + i == 0,
                      .text = node.block_tokens(i),
                      .ns = &ns});
}

void PrefixTree::tell_all() const {
  if (observer_ == nullptr || !observer_->wants_all()) return;
  observer_->begin_all();
  for (const auto& [ns, root] : roots_) {
    std::vector<const TreeNode*> rest{root.get()};
    while (!rest.empty()) {
      const TreeNode& node = *rest.back();
      rest.pop_back();
      const std::int32_t full = node.n_blocks() - (node.is_partial() ? 1 : 0);
      for (std::int32_t i = 0; i < full; ++i) tell_entered(node, i, ns);
      for (const auto& child : node.children) rest.push_back(child.get());
    }
  }
  observer_->end_all();
}

// --- places ---------------------------------------------------------------------------------------------------------

BlockId PrefixTree::block_before(BlockId id) const {
  const Place at = place(id);
  if (at.block == 0) return kNullBlock;
  const TreeNode& node = at.block > at.node->first_block ? *at.node : *at.node->parent;
  return node.row(at.block - 1 - node.first_block)[0];
}

void PrefixTree::set_places(TreeNode& node, std::int32_t from_block) {
  for (std::int32_t b = from_block; b < node.n_blocks(); ++b) {
    for (const BlockId id : node.row(b)) {
      if (id != kNullBlock) places_[id] = {&node, node.first_block + b};
    }
  }
}

}  // namespace coppice::kv
