// JsonPattern: a regex over what stands between the quotes of a JSON string.
//
// Immutable; any thread may call it.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace coppice::grammar {

class JsonPattern {
 public:
  /// The regex describes whole strings. Throws GrammarError with the reason if XGrammar cannot hold strings to it: it
  /// leaves out lookaheads, and strings with a quote, a backslash or a control character in them.
  explicit JsonPattern(const std::string& regex);
  ~JsonPattern();
  JsonPattern(JsonPattern&& other) noexcept;

  bool matches(std::string_view text) const;
  /// Is there a string that matches both? Also true when that takes too long to find out.
  bool overlaps(const JsonPattern& other) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace coppice::grammar
