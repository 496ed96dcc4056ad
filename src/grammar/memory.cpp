// XGrammar's private headers: its public ones don't say how many masks and rules a compiled grammar has.
#include "grammar/memory.h"

#include <compiled_grammar_impl.h>
#include <grammar_impl.h>

namespace coppice::grammar {

std::size_t n_masks(const xgrammar::CompiledGrammar& compiled) {
  return compiled->adaptive_token_mask_cache.size();
}

std::size_t memory_of(const xgrammar::CompiledGrammar& compiled) {
  constexpr std::size_t kMask = 192;  // its node in the table
  constexpr std::size_t kRule = 192;  // its name, its automaton's ends, its hash
  constexpr std::size_t kState = 8;   // an old id and a new one
  constexpr std::size_t kObjects = 1024;
  const auto& grammar = *compiled->grammar.ImplPtr();
  std::size_t bytes = kObjects + compiled.MemorySizeBytes() + n_masks(compiled) * kMask;
  for (int rule = 0; rule < grammar.NumRules(); ++rule) bytes += kRule + grammar.GetRule(rule).name.capacity();
  for (const auto& states : grammar.per_rule_fsm_new_state_ids) bytes += states.capacity() * kState;
  return bytes;
}

}  // namespace coppice::grammar
