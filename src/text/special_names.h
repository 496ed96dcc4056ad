// SpecialNames: finds the names of special tokens ("<|im_start|>") in a text, in one pass over it.
//
// Thread safety: filled by one thread; find() may then be called by any number of threads at once.
//
// Invariants
//   1. A match is the leftmost one, and the longest of those that begin there. One that shares a byte with a span of
//      plain text doesn't count.
//   2. find() looks at each byte it passes once for each length that a name with this first byte has.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kv/types.h"
#include "text/marked_text.h"

namespace coppice::text {

class SpecialNames {
 public:
  struct Special {
    kv::Token token = 0;
    bool strips_left = false;   ///< white space before it belongs to it
    bool strips_right = false;  ///< white space after it belongs to it
    bool in_text = false;       ///< it is found in plain text, too: a "user-defined" token
  };
  struct Match {
    std::size_t begin = 0, end = 0;  ///< the name is text[begin, end)
    Special special;
  };

  /// An empty name is ignored; of two tokens with the same name the first one counts.
  void add(const std::string& name, const Special& special);

  /// The first name that begins at `from` or later. `plain`: in ascending order of their beginnings.
  std::optional<Match> find(std::string_view text, std::size_t from, std::span<const TextSpan> plain = {}) const;

  /// Bytes of the longest one; 0: there are none.
  std::size_t longest() const;

  /// Those for which wanted(name, special) holds.
  SpecialNames only(const std::function<bool(std::string_view, const Special&)>& wanted) const;

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  std::unordered_map<std::string, Special, Hash, std::equal_to<>> specials_;
  std::array<std::vector<std::size_t>, 256> lengths_;  ///< of names, by their first byte, longest first
};

}  // namespace coppice::text
