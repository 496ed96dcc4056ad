// Pieces of grammars in GBNF: literals, and all texts up to a delimiter.
//
// Not thread safe.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice::text {

/// As a literal, quoted. `text`: UTF-8.
std::string gbnf_literal(std::string_view text);

/// Rules by number, each with a name of its own: "r0", "r1" ...
class GbnfRules {
 public:
  /// The name of a new rule, which has no body yet.
  std::string reserve();
  void define(const std::string& rule, std::string body) { bodies_[rule] = std::move(body); }
  /// One rule for each body that is the same.
  std::string add(const std::string& body);

  /// All texts in which no delimiter stands, or (`closed`) those that end with the first one. `not_first`: with which no text
  /// begins; empty: with any. The rules are right-recursive: one for each beginning of a delimiter.
  /// REQUIRES: no delimiter is empty.
  std::string until(const std::vector<std::string>& delimiters, bool closed, const std::string& not_first = {});

  /// "root ::= ..." and all others.
  std::string text(const std::string& root) const;

 private:
  std::map<std::string, std::string> bodies_;
  std::map<std::string, std::string> names_;  ///< by body, or by what it was made of
};

}  // namespace coppice::text
