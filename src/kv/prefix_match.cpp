#include "kv/prefix_match.h"

#include <algorithm>
#include <utility>

#include "kv/faults.h"

namespace coppice::kv {

namespace {

// The longest path of equal tokens.
PrefixMatch match_tokens(const TreeNode& root, TextView tokens, const CacheConfig& config) {
  const int bs = config.block_size;
  PrefixMatch match;
  match.rows.reserve(tokens.size() / bs + 1);
  const TreeNode* node = &root;
  auto rest = tokens;
  while (!rest.empty()) {
    TreeNode::Candidate best = node->best_child(rest);
    if (best.child == nullptr) break;
    if (best.common < bs && config.n_groups() > 1) {  // ends inside this block: then it must have no hole
      if (const auto whole = node->best_child(rest, /*whole=*/true); whole.child != nullptr) best = whole;
    }
    const TreeNode* child = best.child;
    const std::int32_t common = common_prefix(child->tokens, rest);
    for (std::int32_t i = 0; i * bs < common; ++i) match.rows.push_back(child->row(i).data());
    match.length += common;
    if (static_cast<std::size_t>(common) < child->tokens.size() || child->is_partial()) break;
    rest = rest.subspan(common);
    node = child;
  }
  return match;
}

// The longest length, up to `length`, before whose end no window has a hole.
std::int32_t without_holes(std::int32_t length, const std::vector<const BlockId*>& rows, const CacheConfig& config) {
  if (fault(Fault::kIgnoreHole)) return length;
  for (bool shorter = true; shorter && length > 0;) {
    shorter = false;
    for (int g = 1; g < config.n_groups(); ++g) {
      const std::int32_t begin = config.first_needed_block(g, length);
      for (std::int32_t b = (length - 1) / config.block_size; b >= begin && length > 0; --b) {
        if (rows[b][g] != kNullBlock) continue;
        length = b * config.block_size;
        shorter = true;
        break;
      }
    }
  }
  return length;
}

// The longest length, up to `length`, that a match may have: the text may be cut there, and no window before has a
// hole.
std::int32_t usable(std::int32_t length, TextView tokens, const std::vector<const BlockId*>& rows,
                    const CacheConfig& config) {
  for (;;) {
    length = without_holes(length, rows, config);
    const std::int32_t cut = fault(Fault::kCutInMedium) ? length : tokens.cuts(length).before;
    if (cut == length) return length;
    length = cut;
  }
}

// Shortens a match to the longest state whose windows have no hole. Without one, nothing matches.
void shorten_to_state(PrefixMatch& match, TextView tokens, const StateTable& states, const CacheConfig& config) {
  if (fault(Fault::kNoStateNeeded)) return;
  const int bs = config.block_size;
  const std::int32_t length = std::exchange(match.length, 0);
  for (std::int32_t b = length / bs; b > 0 && match.state == kNoUnit; --b) {
    const BlockId anchor = match.rows[b - 1][0];
    if (!states.any_behind(anchor)) continue;
    const std::int32_t more = std::min(length - b * bs, bs - 1);
    match.state = states.longest(anchor, tokens.subspan(b * bs, more), [&](std::int32_t rest) {
      return usable(b * bs + rest, tokens, match.rows, config) == b * bs + rest;
    });
    if (match.state == kNoUnit) continue;
    match.length = b * bs + static_cast<std::int32_t>(states.rest(match.state).size());
    match.state_page = states.pages(match.state).front();
  }
}

}  // namespace

PrefixMatch longest_match(const TreeNode& root, TextView tokens, const StateTable& states, const CacheConfig& config) {
  PrefixMatch match = match_tokens(root, tokens, config);
  match.length = match.known = usable(match.length, tokens, match.rows, config);
  if (states.enabled()) shorten_to_state(match, tokens, states, config);
  match.rows.resize(config.blocks_for(match.length));
  if (fault(Fault::kMatchOneLong) && match.length % config.block_size != 0 &&
      static_cast<std::size_t>(match.length) < tokens.size()) {
    ++match.length;
  }
  return match;
}

std::int32_t blocks_in_use(const PrefixMatch& match, const BlockPool& pool) {
  const auto held = [&](const BlockId* row) { return pool.users(row[0]) > 0; };
  return static_cast<std::int32_t>(std::ranges::partition_point(match.rows, held) - match.rows.begin());
}

}  // namespace coppice::kv
