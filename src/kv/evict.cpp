// PrefixTree::evict(): how the tree lets go of blocks, from its leaves upwards, and closes up behind them.
#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "kv/prefix_tree.h"

namespace coppice::kv {

namespace {

template <class T>
void append_all(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

int PrefixTree::evict(BlockId id) {
  const Place at = place(id);
  Node& node = *at.node;
  const auto i = static_cast<std::size_t>((at.block - node.first_block) * n_groups_);
  if (node.ids[i] != id) {  // a sliding group's: leaves a hole
    *std::find(node.ids.begin() + static_cast<std::ptrdiff_t>(i), node.ids.end(), id) = kNullBlock;
    places_[static_cast<std::size_t>(id)] = {};
    pool_.drop_from_tree(id);
    return 1;
  }
  assert(node.children.empty() && at.block == node.first_block + n_blocks(node) - 1);
  const auto freed = std::count_if(node.ids.end() - n_groups_, node.ids.end(),
                                   [&](BlockId b) { return b != kNullBlock && pool_.users(b) == 0; });
  if (!is_partial(node)) pool_.order().remember(id, node.digests.back(), EvictionOrder::is_sample(at.block));
  if (n_blocks(node) > 1) {
    pop_last_block(node);
  } else {
    remove_leaf(node);
  }
  return static_cast<int>(freed);
}

void PrefixTree::pop_last_block(Node& leaf) {
  for (std::size_t i = leaf.ids.size() - static_cast<std::size_t>(n_groups_); i < leaf.ids.size(); ++i) {
    const BlockId id = leaf.ids[i];
    if (id == kNullBlock) continue;
    places_[static_cast<std::size_t>(id)] = {};
    pool_.drop_from_tree(id);
  }
  leaf.ids.resize(leaf.ids.size() - static_cast<std::size_t>(n_groups_));
  leaf.tokens.resize(static_cast<std::size_t>(n_blocks(leaf) * bs_));
  leaf.digests.pop_back();
}

void PrefixTree::remove_leaf(Node& leaf) {
  Node& parent = *leaf.parent;
  if (parent.parent != nullptr && parent.children.size() == 2) {  // it will take the other one in
    const Node& first = **parent.children.begin();
    const Node& other = &first == &leaf ? **parent.children.rbegin() : first;
    make_room(parent, static_cast<std::size_t>(n_blocks(other)));
  }
  const auto handle = parent.children.extract(parent.children.find(block_tokens(leaf, 0)));
  pop_last_block(leaf);
  --node_count_;
  if (parent.parent == nullptr) {
    if (parent.children.empty()) remove_root(parent);
  } else if (parent.children.size() == 1) {
    absorb_only_child(parent);
  }
}

void PrefixTree::remove_root(Node& root) {
  --node_count_;
  roots_.erase(roots_.find(*root.ns));
}

void PrefixTree::absorb_only_child(Node& node) {
  const auto handle = node.children.extract(node.children.begin());
  Node& child = *handle.value();
  const std::int32_t blocks = n_blocks(node);
  append_all(node.tokens, child.tokens);
  append_all(node.ids, child.ids);
  append_all(node.digests, child.digests);
  node.children = std::move(child.children);
  for (const auto& grandchild : node.children) grandchild->parent = &node;
  set_places(node, blocks);
  --node_count_;
}

bool PrefixTree::before_branch(BlockId id, int window) const {
  const Place at = place(id);
  if (at.node == nullptr || at.node->children.empty()) return false;
  const std::int32_t end = at.node->first_block + n_blocks(*at.node);
  return (at.block + 1) * bs_ > end * bs_ - window;
}

}  // namespace coppice::kv
