#include "kv/tree_node.h"

#include <algorithm>
#include <iterator>

#include "kv/reserve_more.h"

namespace coppice::kv {

namespace {

template <class T>
void append(std::vector<T>& to, std::span<const T> from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <class T>
void move_tail_of(std::vector<T>& from, std::ptrdiff_t begin, std::vector<T>& to) {
  to.assign(from.begin() + begin, from.end());
  from.resize(begin);
}

}  // namespace

bool TreeNode::Less::operator()(const std::unique_ptr<TreeNode>& a, const std::unique_ptr<TreeNode>& b) const {
  return a->block_tokens(0) < b->block_tokens(0);
}
bool TreeNode::Less::operator()(const std::unique_ptr<TreeNode>& a, TextView b) const {
  return a->block_tokens(0) < b;
}
bool TreeNode::Less::operator()(TextView a, const std::unique_ptr<TreeNode>& b) const {
  return a < b->block_tokens(0);
}

TextView TreeNode::first_block_of(TextView text) const {
  return text.first(std::min<std::size_t>(text.size(), block_size));
}

TextView TreeNode::block_tokens(std::int32_t i) const {
  return first_block_of(tokens.view().subspan(i * block_size));
}

TreeNode::Candidate TreeNode::best_child(TextView text, bool whole) const {
  const auto wanted = first_block_of(text);
  const auto common = [&](Children::const_iterator it) { return common_prefix((*it)->block_tokens(0), wanted); };
  // Outwards from the place where the wanted tokens would stand: what siblings share with them only gets less.
  auto after = children.lower_bound(wanted);
  auto before = after;
  for (;;) {
    const std::int32_t right = after == children.end() ? 0 : common(after);
    const std::int32_t left = before == children.begin() ? 0 : common(std::prev(before));
    if (std::max(left, right) == 0) return {};
    TreeNode* child = (right >= left ? *after++ : *--before).get();
    if (!whole || std::ranges::count(child->row(0), kNullBlock) == 0) return {child, std::max(left, right)};
  }
}

void TreeNode::make_room(std::int32_t blocks, TextView text) {
  tokens.make_room(static_cast<std::size_t>(blocks * block_size), text.n_spans());
  reserve_more(ids, blocks * n_groups);
  reserve_more(digests, blocks);
}

void TreeNode::push_block(TextView block_tokens, std::span<const BlockId> block_ids, const Digest& digest) {
  tokens.append(block_tokens);
  append(ids, block_ids);
  digests.push_back(digest);
}

void TreeNode::pop_block() {
  ids.resize(ids.size() - n_groups);
  tokens.truncate(static_cast<std::size_t>(n_blocks() * block_size));
  digests.pop_back();
}

void TreeNode::move_tail(std::int32_t blocks, TreeNode& lower) {
  lower.parent = this;
  lower.first_block = first_block + blocks;
  lower.hits = hits;
  lower.last_used = last_used;
  lower.tokens.append(tokens.view().subspan(static_cast<std::size_t>(blocks * block_size)));
  tokens.truncate(static_cast<std::size_t>(blocks * block_size));
  move_tail_of(ids, blocks * n_groups, lower.ids);
  move_tail_of(digests, blocks, lower.digests);
  lower.children = std::move(children);
  children.clear();
  for (const auto& child : lower.children) child->parent = &lower;
}

void TreeNode::take_in(TreeNode& child) {
  tokens.append(child.tokens);
  append(ids, std::span<const BlockId>(child.ids));
  append(digests, std::span<const Digest>(child.digests));
  last_used = std::max(last_used, child.last_used);
  children = std::move(child.children);
  for (const auto& grandchild : children) grandchild->parent = this;
}

}  // namespace coppice::kv
