#include "events/changes.h"

namespace coppice::events {

namespace {

std::uint32_t place_of(const kv::Namespace& ns, std::vector<kv::Namespace>& spaces) {
  if (spaces.empty() || spaces.back() != ns) spaces.push_back(ns);
  return static_cast<std::uint32_t>(spaces.size() - 1);
}

}  // namespace

void Changes::add_entered(Medium medium, const kv::TreeBlock& block) {
  const auto own = block.text.spans();
  const auto bits = block.text.bits();
  const std::uint32_t space = place_of(*block.ns, spaces);
  symbols.insert(symbols.end(), bits.begin(), bits.end());
  spans.insert(spans.end(), own.begin(), own.end());
  list.push_back({.medium = medium,
                  .entered = true,
                  .is_first = block.is_first,
                  .space = space,
                  .n_spans = static_cast<std::uint32_t>(own.size()),
                  .digest = block.digest,
                  .parent = block.parent});
}

void Changes::add_left(Medium medium, const kv::Digest& digest, const kv::Namespace& ns) {
  list.push_back({.medium = medium, .space = place_of(ns, spaces), .digest = digest});
}

}  // namespace coppice::events
