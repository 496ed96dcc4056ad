// A new reason why a match ends: here, or in engine/make_cache_report.cpp if only the engine knows it; its words in
// words_for() (server/api/base/cache_report_json.cpp); a row in docs/api.md.
#include "kv/explain.h"

#include <algorithm>
#include <iterator>

#include "kv/cache_config.h"
#include "kv/eviction_order.h"
#include "kv/prefix_tree.h"

namespace coppice::kv {

namespace {

constexpr std::size_t kFoundTokens = 16;  // enough to recognise a date or a name

/// Where a walk down the tree ended: `known` tokens agree, the last `own` of them in `node`. Holes don't end it.
struct Walk {
  const TreeNode* node = nullptr;
  std::int32_t own = 0;
  std::int32_t known = 0;
};

Walk walk(const TreeNode& root, TextView tokens) {
  Walk at{&root, 0, 0};
  for (;;) {
    const auto rest = tokens.subspan(at.known);
    if (rest.empty()) return at;
    const TreeNode* child = at.node->best_child(rest).child;
    if (child == nullptr) return at;
    const std::int32_t common = common_prefix(child->tokens, rest);
    at = {child, common, at.known + common};
    if (static_cast<std::size_t>(common) < child->tokens.size() || child->is_partial()) return at;
  }
}

/// The digest that the block with token `known` hangs on: that of the whole block before it, or the root's.
const Digest& parent_digest(const Walk& at, int block_size) {
  const TreeNode& node = *at.node;
  if (node.parent == nullptr) return node.digests.front();
  const std::int32_t own = at.known / block_size - node.first_block;  // whole blocks of this node that agree
  return own > 0 ? node.digests[own - 1] : node.parent->digests.back();
}

/// Looks at the whole blocks of `tokens` from `block` on, the first of which hangs on `parent`. Returns the place after
/// the last one that was evicted lately, or `block`. A digest stands for all blocks before it, too: what lies between
/// was evicted even if it was forgotten.
std::int32_t evicted_until(const EvictionOrder& evicted, const CacheConfig& config, Digest parent, std::int32_t block,
                           TextView tokens) {
  const int bs = config.block_size;
  std::int32_t until = block;
  for (; (block + 1) * bs <= std::ssize(tokens); ++block) {
    parent = block_digest(config.hash, parent, tokens.subspan(block * bs, bs));
    if (evicted.remembers(parent)) until = block + 1;
  }
  return until;
}

}  // namespace

MatchEnd explain(const PrefixTree& tree, const EvictionOrder& evicted, const CacheConfig& config, TextView tokens,
                 const Namespace& ns) {
  const int bs = config.block_size;
  MatchEnd end;
  const auto root = tree.roots().find(ns);
  if (root == tree.roots().end()) {  // it went with its last block, if there ever was one
    const Digest first = root_digest(config.hash, config.model, config.layout, ns);
    end.evicted = bs * evicted_until(evicted, config, first, 0, tokens);
    end.why = end.evicted > 0 ? MatchEnded::kEvicted : MatchEnded::kNamespace;
    return end;
  }
  const PrefixMatch match = tree.match(tokens, ns);
  end.length = match.length;
  if (static_cast<std::size_t>(end.length) == tokens.size()) return end;
  if (match.known > match.length) {
    end.why = MatchEnded::kNoState;
    end.stateless = match.known - match.length;
    return end;
  }

  const Walk at = walk(*root->second, tokens);
  const std::int32_t until = evicted_until(evicted, config, parent_digest(at, bs), at.known / bs, tokens);
  // More may be known than matched: then a window before the end has a hole.
  end.evicted = std::max(at.known, bs * until) - end.length;
  if (end.evicted > 0) {
    end.why = MatchEnded::kEvicted;
    return end;
  }

  TextView found = at.node->tokens.view().subspan(static_cast<std::size_t>(at.own));
  const auto& children = at.node->children;
  if (found.empty() && !children.empty()) {  // no child shares its first token: any of them will do
    const auto next = children.lower_bound(tokens.subspan(at.known));
    found = (next == children.end() ? *std::prev(next) : *next)->tokens;
  }
  end.why = found.empty() ? MatchEnded::kUnknown : MatchEnded::kDiffers;
  end.found = Text(found.first(std::min(found.size(), kFoundTokens)));
  return end;
}

}  // namespace coppice::kv
