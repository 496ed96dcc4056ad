// What compiled grammars hold in memory. For this folder's .cpp files only.
#pragma once

#include <xgrammar/compiler.h>

#include <cstddef>

namespace coppice::grammar {

/// Of a mask in XGrammar's cache of them, without its tokens: two nodes, two keys, malloc's own bytes.
inline constexpr std::size_t kMaskEntryBytes = 320;

std::size_t n_masks(const xgrammar::CompiledGrammar& compiled);

/// Bytes, about. XGrammar's own count leaves out the tables' nodes, names and hashes: most of a small grammar.
std::size_t memory_of(const xgrammar::CompiledGrammar& compiled);

}  // namespace coppice::grammar
