// Pieces of grammars in GBNF: literals, and all texts up to a delimiter.
//
// Not thread safe.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kv/types.h"
#include "text/special_names.h"

namespace coppice::text {

/// UTF-8, character by character.
std::vector<std::string> characters(std::string_view text);

/// One of these characters, or (`but`) any other.
std::string char_class(const std::set<std::string>& some, bool but);

/// As a literal, quoted. `text`: UTF-8.
std::string gbnf_literal(std::string_view text);

/// Rules by number, each with a name of its own: "r0", "r1" ...
class GbnfRules {
 public:
  /// `marks`: names of tokens that have no text. Outlives this.
  explicit GbnfRules(const SpecialNames& marks) : marks_(marks) {}

  /// A literal in which names of marks may come as these tokens, or spelled by others.
  std::string literal(std::string_view text);
  /// The rules that stand for marks.
  const std::map<std::string, kv::Token>& tokens() const { return tokens_; }

  /// The name of a new rule, which has no body yet.
  std::string reserve();
  void define(const std::string& rule, std::string body) { bodies_[rule] = std::move(body); }
  /// One rule for each body that is the same.
  std::string add(const std::string& body);

  /// All texts in which no delimiter stands, or (`closed`) those that end with the first one, as literal() has it.
  /// `not_first`: with which no text begins; empty: with any. `least`: characters that each text has, its delimiter not
  /// counted. The rules are right-recursive: one for each beginning of a delimiter, and for each of the first `least`
  /// characters. REQUIRES: no delimiter is empty.
  std::string until(const std::vector<std::string>& delimiters, bool closed, const std::string& not_first = {},
                    std::size_t least = 0);

  /// "root ::= ..." and all others.
  std::string text(const std::string& root) const;

 private:
  std::string token(const SpecialNames::Match& mark);
  std::string marked(std::string_view text, bool spelled);

  const SpecialNames& marks_;
  std::map<std::string, kv::Token> tokens_;
  std::map<std::string, std::string> bodies_;
  std::map<std::string, std::string> names_;  ///< by body, or by what it was made of
};

}  // namespace coppice::text
