#include "text/special_names.h"

#include <algorithm>

namespace coppice::text {

void SpecialNames::add(const std::string& name, const Special& special) {
  if (name.empty() || !specials_.try_emplace(name, special).second) return;
  auto& lengths = lengths_[static_cast<unsigned char>(name.front())];
  const auto at = std::ranges::lower_bound(lengths, name.size(), std::greater<>());
  if (at == lengths.end() || *at != name.size()) lengths.insert(at, name.size());
}

std::optional<SpecialNames::Match> SpecialNames::find(std::string_view text, std::size_t from) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    for (const std::size_t length : lengths_[static_cast<unsigned char>(text[at])]) {
      if (length > text.size() - at) continue;
      const auto found = specials_.find(text.substr(at, length));
      if (found != specials_.end()) return Match{.begin = at, .end = at + length, .special = found->second};
    }
  }
  return std::nullopt;
}

}  // namespace coppice::text
