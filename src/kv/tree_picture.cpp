#include "kv/tree_picture.h"

#include <algorithm>
#include <queue>
#include <tuple>

#include "kv/block_pool.h"
#include "kv/prefix_tree.h"

namespace coppice::kv {

namespace {

struct Candidate {
  const TreeNode* node = nullptr;
  std::int32_t parent = -1;  // index of a shown node
  int depth = 1;
  std::int32_t holders = 0;
  std::int32_t common = 0;

  /// The least lively first. Ties go by the place in the text, so that equal trees give equal pictures.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    const auto rank = [](const Candidate& c) { return std::tuple(c.holders, c.node->last_used, c.node->serial); };
    return rank(a) < rank(b);
  }
};

class Painter {
 public:
  Painter(const PrefixTree& tree, const BlockPool& pool, const PictureLimits& limits)
      : tree_(tree), pool_(pool), limits_(limits) {}

  TreePicture paint(const Namespace& ns) {
    const auto root = tree_.roots().find(ns);
    if (root == tree_.roots().end()) return {};
    open(*root->second, -1, 1);
    while (!candidates_.empty() && std::cmp_less(shown_.size(), limits_.nodes)) {
      const Candidate next = candidates_.top();
      candidates_.pop();
      shown_.push_back(next);
      if (next.depth < limits_.depth) open(*next.node, static_cast<std::int32_t>(shown_.size()) - 1, next.depth + 1);
    }
    return in_order(*root->second);
  }

 private:
  /// Siblings are in the order of their tokens: what one has in common with any other it has with a neighbour.
  void open(const TreeNode& node, std::int32_t index, int depth) {
    std::int32_t common_before = 0;
    for (auto at = node.children.begin(); at != node.children.end() && looked_ < kMostLooked; ++looked_) {
      const TreeNode& child = **at;
      const TreeNode* next = ++at == node.children.end() ? nullptr : at->get();
      const std::int32_t common_next =
          next == nullptr ? 0 : common_prefix(child.block_tokens(0), next->block_tokens(0));
      candidates_.push({.node = &child,
                        .parent = index,
                        .depth = depth,
                        .holders = pool_.users(child.ids.front()),
                        .common = std::max(common_before, common_next)});
      common_before = common_next;
    }
  }

  PictureNode portray(const Candidate& shown, std::int32_t parent, int block_size) const {
    const TreeNode& node = *shown.node;
    const auto n = static_cast<std::size_t>(shown.common) + static_cast<std::size_t>(limits_.head_tokens);
    const TextView head = node.tokens.view().first(std::min(node.tokens.size(), n));
    return {.serial = node.serial,
            .parent = parent,
            .begin = node.first_block * block_size,
            .tokens = static_cast<std::int32_t>(node.tokens.size()),
            .common = shown.common,
            .head = Text(head),
            .stored = stored_tokens(node),
            .holders = shown.holders,
            .hits = node.hits,
            .last_used = node.last_used,
            .left_out = static_cast<std::int32_t>(node.children.size())};
  }

  std::int32_t stored_tokens(const TreeNode& node) const {
    std::int32_t sum = 0;
    for (std::int32_t i = 0; i < node.n_blocks(); ++i) {
      if (pool_.stored(node.row(i)[0])) sum += static_cast<std::int32_t>(node.block_tokens(i).size());
    }
    return sum;
  }

  /// They were shown in the order of their liveliness. Siblings are to stand by their tokens, so that they keep their
  /// places.
  TreePicture in_order(const TreeNode& root) const {
    std::vector<std::int32_t> order(shown_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    const auto by_text = [this](std::int32_t a, std::int32_t b) {
      const Candidate &x = shown_[static_cast<std::size_t>(a)], &y = shown_[static_cast<std::size_t>(b)];
      if (x.depth != y.depth) return x.depth < y.depth;
      if (x.parent != y.parent) return x.parent < y.parent;
      return x.node->block_tokens(0) < y.node->block_tokens(0);
    };
    std::ranges::sort(order, by_text);
    TreePicture result{.nodes = {}, .left_out = static_cast<std::int32_t>(root.children.size())};
    std::vector<std::int32_t> place(shown_.size());
    for (const std::int32_t i : order) {
      const Candidate& shown = shown_[static_cast<std::size_t>(i)];
      const std::int32_t parent = shown.parent < 0 ? -1 : place[static_cast<std::size_t>(shown.parent)];
      --(parent < 0 ? result.left_out : result.nodes[static_cast<std::size_t>(parent)].left_out);
      place[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(result.nodes.size());
      result.nodes.push_back(portray(shown, parent, root.block_size));
    }
    return result;
  }

  const PrefixTree& tree_;
  const BlockPool& pool_;
  const PictureLimits& limits_;
  std::priority_queue<Candidate> candidates_;
  std::vector<Candidate> shown_;
  std::size_t looked_ = 0;
};

}  // namespace

TreePicture picture(const PrefixTree& tree, const BlockPool& pool, const Namespace& ns, const PictureLimits& limits) {
  return Painter(tree, pool, limits).paint(ns);
}

}  // namespace coppice::kv
