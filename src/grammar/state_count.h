// How many places a grammar has, by what a mask for each costs. For this folder's .cpp files only.
#pragma once

#include <xgrammar/grammar.h>

namespace coppice::grammar {

/// States in which a byte is read.
struct StateCount {
  int all = 0;
  /// Those where many bytes go on: the compiler walks all of the vocabulary for them, else only a little of it.
  int wide = 0;
};

/// REQUIRES: the grammar is optimized (xgrammar::GrammarOptimizer).
StateCount count_states(const xgrammar::Grammar& grammar);

}  // namespace coppice::grammar
