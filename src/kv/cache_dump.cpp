#include "kv/cache_dump.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace coppice::kv {

namespace {

/// A node and what continues it.
void add_lines(std::string& out, const CacheView& cache, const TreeNode& node, std::size_t depth) {
  out.append(2 * depth, ' ');
  for (std::int32_t b = 0; b < node.n_blocks(); ++b) {
    out += fmt::format("[{}", fmt::join(node.block_tokens(b).bits(), " "));
    for (const BlockId id : node.row(b)) {
      out += id == kNullBlock ? " |hole" : fmt::format(" |{}x{}", id, cache.pool.users(id));
    }
    out += "] ";
  }
  out += '\n';
  for (const auto& child : node.children) add_lines(out, cache, *child, depth + 1);
}

}  // namespace

std::string dump(const CacheView& cache) {
  std::string out;
  for (const auto& [ns, root] : cache.tree.roots()) {
    out += fmt::format("root salt='{}' adapter='{}'\n", ns.salt, ns.adapter);
    for (const auto& child : root->children) add_lines(out, cache, *child, 1);
  }
  for (const auto& [id, seq] : cache.sequences) {
    out += fmt::format("sequence {}: {} cached, {} computed of [{}], {} reserved", static_cast<std::uint64_t>(id),
                       seq.cached_len, seq.computed_len(), fmt::join(seq.tokens.view().bits(), " "), seq.reserved);
    for (const BlockTable& table : seq.tables) out += fmt::format(" |{}", fmt::join(table.ids(), " "));
    out += '\n';
  }
  for (const StateTable::Unit& unit : cache.states.all()) {
    if (unit.pages.empty()) continue;
    out += fmt::format("state {} x{} behind block {} and [{}]\n", fmt::join(unit.pages, " "),
                       cache.pool.users(unit.pages.front()), unit.anchor, fmt::join(unit.rest.view().bits(), " "));
  }
  for (const auto& [id, pin] : cache.pins.pins()) {
    out += fmt::format("pin {} of '{}':", static_cast<std::uint64_t>(id), pin.owner);
    for (const BlockTable& table : pin.tables) out += fmt::format(" |{}", fmt::join(table.ids(), " "));
    out += '\n';
  }
  return out;
}

}  // namespace coppice::kv
