// Long rows of optional parts, written so that they compile in linear time. For this folder's .cpp files only.
#pragma once

#include <xgrammar/grammar.h>

#include <optional>

namespace coppice::grammar {

/// The same texts by other rules; none: there is no such row. An object with many optional properties is a row of
/// rules, each of which may be skipped: `r1 ::= r2 | "," "\"a\"" ":" value r2`. At each place all later names may come,
/// and the parser would try them one by one: for each mask, and at each step. So the names that may come are written as
/// a tree, whose branches rows share: only what differs from the row behind is new.
std::optional<xgrammar::Grammar> with_name_trees(const xgrammar::Grammar& grammar);

}  // namespace coppice::grammar
