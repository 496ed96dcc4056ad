// From a schema's regex, which may match anywhere in a string, to one of the whole string.
#pragma once

#include <string>
#include <string_view>

namespace coppice::grammar {

/// "^a|b$" becomes "(a.*|.*b)". Characters beyond ASCII become \u escapes, quantifiers those that work
/// (grammar/sound_regex.h). Throws GrammarError where an anchor stands elsewhere than at an alternative's ends.
std::string whole_pattern(std::string_view regex);

/// The pattern, with lengths: "[a-z]+" from 2 to 5 is "[a-z]{2,5}". Empty if its form doesn't allow it: only a single
/// character or class that is repeated freely does. most < 0: none.
std::string with_lengths(std::string_view whole, long least, long most);

}  // namespace coppice::grammar
