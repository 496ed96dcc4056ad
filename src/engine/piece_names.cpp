#include "engine/piece_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "tier/piece.h"

namespace coppice::engine {

namespace {

std::array<std::uint8_t, 16> half_hash(std::string_view text) {
  const kv::Digest digest = kv::sha256(std::as_bytes(std::span(text)));
  std::array<std::uint8_t, 16> half{};
  std::copy_n(digest.begin(), half.size(), half.begin());
  return half;
}

template <class T>
void append(std::vector<std::byte>& to, std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

}  // namespace

std::array<std::uint8_t, 16> model_name(const std::string& content, const std::string& family,
                                        const executor::ExecutorInfo& info) {
  std::string text = fmt::format("content {}\narithmetic {}\nfamily {}\nlayout {}\nblock {}\n", content, kArithmetic,
                                 family, info.layout, info.block_size);
  for (int g = 0; std::cmp_less(g, info.groups.size()); ++g)
    text += fmt::format("group {} of {} bytes, {} pages\n", g, info.outside_bytes(g),
                        info.groups[static_cast<std::size_t>(g)].state_pages);
  return half_hash(text);
}

std::array<std::uint8_t, 16> owner_name(std::string_view owner) {
  return half_hash(owner);
}

SpaceName space_name(const kv::Namespace& ns) {
  return {.owner = owner_name(ns.owner()),
          .whole = half_hash(fmt::format("{} {} {}{}", ns.salt.size(), ns.adapter.size(), ns.salt, ns.adapter))};
}

tier::Name piece_name(const std::array<std::uint8_t, 16>& model, const SpaceName& space, const kv::Digest& digest,
                      int group) {
  std::vector<std::byte> bytes;
  const std::int32_t number = group;
  append(bytes, std::span<const std::uint8_t>(digest));
  append(bytes, std::span<const std::uint8_t>(space.whole));
  append(bytes, std::span(&number, 1));
  return {.model = model, .space = space.owner, .piece = kv::sha256(bytes)};
}

std::size_t largest_piece(const executor::ExecutorInfo& info) {
  std::size_t payload = 0;
  for (int g = 0; std::cmp_less(g, info.groups.size()); ++g) {
    const int pages = std::max(1, info.groups[static_cast<std::size_t>(g)].state_pages);
    payload = std::max(payload, info.outside_bytes(g) * static_cast<std::size_t>(pages));
  }
  constexpr std::size_t kSymbol = sizeof(std::int32_t), kSpan = 5 * sizeof(std::int32_t) + sizeof(kv::Digest);
  return tier::piece_size(static_cast<std::size_t>(info.block_size) * (kSymbol + kSpan), tier::kMostAbout, payload,
                          tier::kMostOrigin);
}

}  // namespace coppice::engine
