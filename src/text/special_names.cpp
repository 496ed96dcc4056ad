#include "text/special_names.h"

#include <algorithm>

namespace coppice::text {

void SpecialNames::add(const std::string& name, const Special& special) {
  if (name.empty() || !specials_.try_emplace(name, special).second) return;
  auto& lengths = lengths_[static_cast<unsigned char>(name.front())];
  const auto at = std::ranges::lower_bound(lengths, name.size(), std::greater<>());
  if (at == lengths.end() || *at != name.size()) lengths.insert(at, name.size());
}

namespace {

/// Does [begin, end) share a byte with one of the spans?
bool overlaps(std::span<const TextSpan> spans, std::size_t begin, std::size_t end) {
  for (const TextSpan& span : spans) {
    if (span.begin >= end) return false;
    if (span.end > begin) return true;
  }
  return false;
}

}  // namespace

std::optional<SpecialNames::Match> SpecialNames::find(std::string_view text, std::size_t from,
                                                      std::span<const TextSpan> plain) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    while (!plain.empty() && plain.front().end <= at) plain = plain.subspan(1);
    for (const std::size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
      if (length > text.size() - at) continue;
      const auto found = specials_.find(text.substr(at, length));
      if (found == specials_.end() || overlaps(plain, at, at + length)) continue;
      return Match{.begin = at, .end = at + length, .special = found->second};
    }
  }
  return std::nullopt;
}

std::size_t SpecialNames::longest() const {
  std::size_t longest = 0;
  for (const auto& lengths : lengths_)
    if (!lengths.empty()) longest = std::max(longest, lengths.front());
  return longest;
}

SpecialNames SpecialNames::only(const std::function<bool(std::string_view, const Special&)>& wanted) const {
  SpecialNames some;
  for (const auto& [name, special] : specials_)
    if (wanted(name, special)) some.add(name, special);
  return some;
}

}  // namespace coppice::text
