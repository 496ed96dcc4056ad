// How a rule becomes a bare text (source.h): a string that stands without its quotes.
//
// For this folder's .cpp files. Functions without state.
#pragma once

#include <grammar_builder.h>

#include <cstdint>

#include "grammar/source.h"

namespace coppice::grammar {

/// Might one of its ends stand in such a string? Also true where that takes too long to find out.
bool may_hold_end(const BareText& bare);

/// The expression of what stands between the quotes of a rule's strings. Throws GrammarError if the rule isn't of
/// strings.
std::int32_t between_quotes(xgrammar::GrammarBuilder& builder, std::int32_t rule);

}  // namespace coppice::grammar
