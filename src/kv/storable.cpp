#include "kv/storable.h"

#include <algorithm>
#include <tuple>

namespace coppice::kv {

// REQUIRES: a full block of the tree's full group.
Storable Storables::describe(BlockId id) const {
  const PrefixTree::Place at = tree_.place(id);
  const std::int32_t i = at.block - at.node->first_block;
  const TreeNode* root = at.node;
  while (root->parent != nullptr) root = root->parent;
  return {.group = 0,
          .pages = at.node->row(i).first(1),
          .digest = at.node->digests[static_cast<std::size_t>(i)],
          .parent = at.node->digest_before(i),
          .is_first = at.block == 0,
          .text = at.node->block_tokens(i),
          .ns = root->ns,
          .uses = pool_.order().uses(id)};
}

std::optional<Digest> Storables::digest_of(BlockId id) const {
  const PrefixTree::Place at = tree_.place(id);
  if (at.node == nullptr) return {};
  const std::int32_t i = at.block - at.node->first_block;
  const bool full = std::ssize(at.node->block_tokens(i)) == config_.block_size;
  if (!full || at.node->row(i)[0] != id) return {};
  return at.node->digests[static_cast<std::size_t>(i)];
}

void Storables::at(BlockId id, bool all, const OnStorable& f) const {
  if (!digest_of(id)) return;
  const PrefixTree::Place at = tree_.place(id);
  const auto row = std::as_const(*at.node).row(at.block - at.node->first_block);
  Storable one = describe(id);
  for (int g = 0; g < (all ? config_.n_groups() : 1); ++g) {
    one.group = g;
    one.pages = row.subspan(static_cast<std::size_t>(g), 1);
    if (one.pages[0] != kNullBlock && !pool_.stored(one.pages[0])) f(one);
  }
  if (all) state_behind(id, f);
}

void Storables::state_behind(BlockId anchor, const OnStorable& f) const {
  const UnitId unit = states_.find(anchor, {});
  if (unit == kNoUnit || pool_.stored(states_.pages(unit).front())) return;
  Storable one = describe(anchor);
  one.group = config_.n_groups();
  one.pages = states_.pages(unit);
  one.uses = pool_.order().uses(one.pages.front());
  f(one);
}

bool Storables::all_marked(std::span<const BlockId> row) const {
  const auto marked = [&](BlockId page) { return page == kNullBlock || pool_.stored(page); };
  if (!std::ranges::all_of(row, marked)) return false;
  const UnitId state = states_.find(row[0], {});
  return state == kNoUnit || marked(states_.pages(state).front());
}

void Storables::before_eviction(BlockId id, const OnStorable& f) const {
  if (states_.owns(id)) {
    const StateTable::Unit& unit = states_.unit_of(id);
    if (unit.rest.empty()) state_behind(unit.anchor, f);
    return;
  }
  at(id, /*all=*/true, f);  // nothing, unless it is of the full group
}

std::vector<BlockId> Storables::hottest(std::uint32_t uses) const {
  struct Found {
    BlockId id;
    std::uint32_t uses;
    double last_used;
    std::int32_t block;
  };
  std::vector<Found> found;
  const auto visit = [&](const TreeNode& node, const auto& self) -> void {
    for (std::int32_t i = 0; i < node.n_blocks(); ++i) {
      const BlockId id = node.row(i)[0];
      const bool full = std::ssize(node.block_tokens(i)) == config_.block_size;
      const std::uint32_t n = pool_.order().uses(id);
      if (full && n >= uses && !all_marked(node.row(i))) found.push_back({id, n, node.last_used, node.first_block + i});
    }
    for (const auto& child : node.children) self(*child, self);
  };
  for (const auto& [ns, root] : tree_.roots()) visit(*root, visit);
  std::ranges::sort(found, [](const Found& a, const Found& b) {
    return std::tuple(b.uses, b.last_used, a.block, a.id) < std::tuple(a.uses, a.last_used, b.block, b.id);
  });
  std::vector<BlockId> ids;
  ids.reserve(found.size());
  for (const Found& each : found) ids.push_back(each.id);
  return ids;
}

std::int32_t Storables::whole_until(std::span<const BlockId> full_group, std::int32_t len) const {
  std::int32_t blocks = len / config_.block_size;
  if (states_.enabled()) {
    const auto stands = [&](std::int32_t b) {
      const BlockId anchor = full_group[static_cast<std::size_t>(b - 1)];
      return states_.find(anchor, {}) != kNoUnit;
    };
    while (blocks > 0 && !stands(blocks)) --blocks;
  }
  return blocks * config_.block_size;
}

}  // namespace coppice::kv
