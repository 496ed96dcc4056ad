#include "kv/block_bytes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

namespace coppice::kv {

namespace {

template <class T>
void append(std::vector<std::byte>& to, std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  to.insert(to.end(), bytes.begin(), bytes.end());
}

struct SpelledSpan {
  std::int32_t first = 0, n = 0, index = 0, rows = 0, whole = 0;
  Digest digest{};
};
static_assert(sizeof(SpelledSpan) == 5 * sizeof(std::int32_t) + sizeof(Digest));

struct SpelledOrigin {
  Digest parent{};
  std::uint32_t is_first = 0, salt_bytes = 0;  ///< the salt follows, then the adapter
};
static_assert(sizeof(SpelledOrigin) == sizeof(Digest) + 2 * sizeof(std::uint32_t));

}  // namespace

std::vector<std::byte> spell(TextView text) {
  std::vector<std::byte> bytes;
  append(bytes, text.bits());
  for (const MediumSpan& span : text.spans()) {
    const SpelledSpan one{.first = span.first,
                          .n = span.n,
                          .index = span.index,
                          .rows = span.medium.rows,
                          .whole = span.medium.whole ? 1 : 0,
                          .digest = span.medium.digest};
    append(bytes, std::span(&one, 1));
  }
  return bytes;
}

std::optional<Text> read_text(std::span<const std::byte> bytes, std::size_t symbols) {
  const std::size_t own = symbols * sizeof(std::int32_t);
  if (bytes.size() < own || (bytes.size() - own) % sizeof(SpelledSpan) != 0) return {};
  std::vector<std::int32_t> bits(symbols);
  std::vector<SpelledSpan> spelled((bytes.size() - own) / sizeof(SpelledSpan));
  if (own > 0) std::memcpy(bits.data(), bytes.data(), own);
  if (!spelled.empty()) std::memcpy(spelled.data(), bytes.data() + own, bytes.size() - own);
  std::vector<MediumSpan> spans;
  for (const SpelledSpan& one : spelled)
    spans.push_back({.first = one.first,
                     .n = one.n,
                     .index = one.index,
                     .medium = {.digest = one.digest, .rows = one.rows, .whole = one.whole != 0}});
  return Text::of(std::move(bits), spans);
}

std::vector<std::byte> spell(const BlockOrigin& origin) {
  std::vector<std::byte> bytes;
  const SpelledOrigin head{.parent = origin.parent,
                           .is_first = origin.is_first ? 1U : 0U,
                           .salt_bytes = static_cast<std::uint32_t>(origin.ns.salt.size())};
  append(bytes, std::span(&head, 1));
  append(bytes, std::span<const char>(origin.ns.salt));
  append(bytes, std::span<const char>(origin.ns.adapter));
  return bytes;
}

std::optional<BlockOrigin> read_origin(std::span<const std::byte> bytes) {
  SpelledOrigin head;
  if (bytes.size() < sizeof head) return {};
  std::memcpy(&head, bytes.data(), sizeof head);
  const auto rest = bytes.subspan(sizeof head);
  if (head.is_first > 1 || head.salt_bytes > rest.size()) return {};
  const std::string names(reinterpret_cast<const char*>(rest.data()), rest.size());
  return BlockOrigin{.parent = head.parent,
                     .is_first = head.is_first == 1,
                     .ns = {.salt = names.substr(0, head.salt_bytes), .adapter = names.substr(head.salt_bytes)}};
}

}  // namespace coppice::kv
