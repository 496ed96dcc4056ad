// PrefixTree::explain(): the same walk as match(), at leisure: it may hash and allocate.
#include <algorithm>

#include "kv/prefix_tree.h"

namespace coppice::kv {

namespace {
constexpr std::size_t kFoundTokens = 16;  // enough to recognise a date or a name
}

// A walk down the tree, holes not minded: `known` tokens agree, the last `own` of them in `node`.
struct PrefixTree::Walk {
  const Node* node = nullptr;
  std::int32_t own = 0;
  std::int32_t known = 0;
};

PrefixTree::Walk PrefixTree::walk(const Node& root, std::span<const Token> tokens) const {
  Walk at{&root, 0, 0};
  for (;;) {
    const auto rest = tokens.subspan(static_cast<std::size_t>(at.known));
    if (rest.empty()) return at;
    const Candidate best = best_child(*at.node, rest);
    if (best.child == nullptr) return at;
    const auto ends = std::ranges::mismatch(best.child->tokens, rest);
    const auto common = static_cast<std::int32_t>(ends.in1 - best.child->tokens.begin());
    at = {best.child, common, at.known + common};
    if (ends.in1 != best.child->tokens.end() || is_partial(*best.child)) return at;
  }
}

// The digest that the block with token `known` hangs on: that of the whole block before it, or the root's.
const Digest& PrefixTree::parent_digest(const Walk& at) const {
  const Node& node = *at.node;
  if (node.parent == nullptr) return node.digests.front();
  const std::int32_t own = at.known / bs_ - node.first_block;  // whole blocks of this node that agree
  return own > 0 ? node.digests[static_cast<std::size_t>(own - 1)] : node.parent->digests.back();
}

// Of the whole blocks of `tokens` from `block` on: the place after the last that was evicted lately, or `block`. A digest
// stands for all blocks before it, too, so that one of them may have been forgotten.
std::int32_t PrefixTree::evicted_until(Digest parent, std::int32_t block, std::span<const Token> tokens) const {
  std::int32_t until = block;
  for (; static_cast<std::size_t>((block + 1) * bs_) <= tokens.size(); ++block) {
    const auto begin = static_cast<std::size_t>(block * bs_);
    parent = block_digest(config_.hash, parent, tokens.subspan(begin, static_cast<std::size_t>(bs_)));
    if (pool_.order().remembers(parent)) until = block + 1;
  }
  return until;
}

MatchEnd PrefixTree::explain(std::span<const Token> tokens, const Namespace& ns) const {
  MatchEnd end;
  const auto root = roots_.find(ns);
  if (root == roots_.end()) {  // it went with its last block, if there ever was one
    end.evicted = bs_ * evicted_until(root_digest(config_.hash, config_.model, config_.layout, ns), 0, tokens);
    end.why = end.evicted > 0 ? MatchStop::kEvicted : MatchStop::kNamespace;
    return end;
  }
  end.length = match(tokens, ns).length;
  if (static_cast<std::size_t>(end.length) == tokens.size()) return end;
  const Walk at = walk(*root->second, tokens);
  // More is known than matched: a window before the end has a hole.
  const std::int32_t until = std::max(at.known, bs_ * evicted_until(parent_digest(at), at.known / bs_, tokens));
  if (until > end.length) {
    end.why = MatchStop::kEvicted;
    end.evicted = until - end.length;
    return end;
  }
  std::span<const Token> found = std::span(at.node->tokens).subspan(static_cast<std::size_t>(at.own));
  if (found.empty() && !at.node->children.empty()) {  // no child shares its first token: any of them will do
    const auto next = at.node->children.lower_bound(tokens.subspan(static_cast<std::size_t>(at.known)));
    found = (next == at.node->children.end() ? *std::prev(next) : *next)->tokens;
  }
  end.why = found.empty() ? MatchStop::kUnknown : MatchStop::kDiffers;
  found = found.first(std::min(found.size(), kFoundTokens));
  end.found.assign(found.begin(), found.end());
  return end;
}

}  // namespace coppice::kv
