// Rules written so that XGrammar's masks can be known before a text begins. For this folder's .cpp files only.
#pragma once

#include <xgrammar/grammar.h>

#include <optional>

namespace coppice::grammar {

/// The same texts by other rules; none: these are as good. A mask is computed ahead for each place in a rule, and a
/// token that goes beyond the rule's end is tried out at each step: where a rule is one character, that is nearly the
/// whole vocabulary. So such rules are written out where they begin an alternative, and where they are repeated:
/// XGrammar counts characters by a rule for each count, whose masks take milliseconds each. Here all but the last few
/// counts share one mask. `longest`: the characters of the longest token.
std::optional<xgrammar::Grammar> unfolded(const xgrammar::Grammar& grammar, int longest);

}  // namespace coppice::grammar
