// Arguments that a parser reads in any order and number, and the grammar in which each comes once.
//
// For this folder's .cpp files.
#pragma once

#include <json.h>

#include <cstddef>
#include <string>
#include <vector>

#include "text/gbnf_text.h"
#include "text/parser_view.h"

namespace coppice::text {

struct ArgumentList {
  std::vector<ParserView::Id> items;           ///< one argument each; empty: the part is no such list
  std::vector<ParserView::Id> before, behind;  ///< what stands around each
  bool between_only = false;                   ///< `before` stands before all but the first, of which there must be one
};

/// A repetition of a choice of arguments.
ArgumentList repeated(const ParserView& view, ParserView::Id id);
/// A choice of arguments, and a repetition of the same.
ArgumentList first_and_rest(const ParserView& view, ParserView::Id first, ParserView::Id rest);

/// The same in GBNF.
struct ArgumentTexts {
  struct Item {
    std::string text;
    bool required = false;
  };
  std::vector<Item> items;
  std::string before, behind;
  bool between_only = false;
  std::size_t least = 0, most = kAnyNumber;  ///< of them, in all
  static constexpr std::size_t kAnyNumber = static_cast<std::size_t>(-1);
};

/// minProperties and maxProperties of an object's schema, less the `elsewhere` properties that are always written in
/// another place.
void count_as(const common_json& object, std::size_t elsewhere, ArgumentTexts& texts);
/// Some number of them that is allowed holds all that are required.
bool may_come(const ArgumentTexts& texts);

/// Up to five of them in any order, more in their own. The rule's name; empty: there are none. REQUIRES: may_come().
std::string arguments_rule(const ArgumentTexts& texts, GbnfRules& rules);

}  // namespace coppice::text
