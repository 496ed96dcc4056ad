// Regexes as Python, JavaScript and Perl write them, in the words that XGrammar knows.
//
// A function without state.
#pragma once

#include <string>
#include <string_view>

namespace coppice::grammar {

/// `\A`, `\Z` and `\z` become `^` and `$`, comments go, groups have no names, `(?i)` and `(?i:...)` name both cases of
/// ASCII letters, and
/// `\u` and `\U` escapes one character each. `\S` leaves out all that any dialect takes for white space. What means
/// nothing for a text without line ends (the flags s, m, u and a) goes, too. All else stays as it is. `regex`: UTF-8;
/// `ascii`: characters beyond ASCII that are written anew become escapes, which only JSON's patterns know. Throws
/// GrammarError for what has no such words: other flags, conditions, recursion, atomic groups and possessive
/// quantifiers, backreferences, categories of Unicode.
std::string plain_regex(std::string_view regex, bool ascii);

}  // namespace coppice::grammar
