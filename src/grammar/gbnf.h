// GBNF as llama.cpp reads it, in the words that XGrammar knows.
#pragma once

#include <string>
#include <string_view>

namespace coppice::grammar {

/// Throws GrammarError where XGrammar would read more than GBNF has: calls such as Regex("..."), attributes of rules,
/// looks ahead. Most of these are not enforced.
void refuse_extensions(std::string_view gbnf);

/// An alternative of nothing ("ws ::= | [ ]") becomes the empty string, which XGrammar wants written out. Strings,
/// character classes and comments stay as they are.
std::string with_empty_strings(std::string_view gbnf);

}  // namespace coppice::grammar
