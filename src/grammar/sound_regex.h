// Regexes in words that XGrammar's automata get right. A function without state.
#pragma once

#include <string>
#include <string_view>

namespace coppice::grammar {

/// The same texts by other quantifiers. XGrammar 0.2.8 builds two of them wrongly: `(a*b)?` takes "a", since its
/// automaton may come back to its beginning and leave from there; `(ab*|c){2,}` takes "acb", since its alternatives
/// share an end. So `x?` becomes `x{0,1}`, and `(x){n,}` becomes `((x)+){n}`, `(x)*` or `(x)+`. Lazy quantifiers lose
/// their mark, which means nothing for whole texts. What isn't well formed comes back as it is: whoever compiles it
/// says why.
std::string sound_regex(std::string_view regex);

/// Of a text that begins with a brace outside of a class: it opens a quantifier, and is no sign as in "{x}".
bool opens_quantifier(std::string_view brace);

/// Without backslashes before signs that mean themselves, as Python's re.escape() writes them ("a\ b", "\#"):
/// XGrammar's reader of plain regexes warns of these. With one before a brace that is a sign.
std::string with_known_escapes(std::string_view regex);

}  // namespace coppice::grammar
