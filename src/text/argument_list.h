// Arguments that a parser reads in any order and number, and the grammar in which each comes once.
//
// For this folder's .cpp files.
#pragma once

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
};

/// Up to five of them in any order, more in their own. The rule's name; empty: there are none.
std::string arguments_rule(const ArgumentTexts& texts, GbnfRules& rules);

}  // namespace coppice::text
