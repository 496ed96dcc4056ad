// What a Grammar is made of. For this folder's .cpp files only.
#pragma once

#include <xgrammar/compiler.h>

#include <cstddef>
#include <cstdint>

#include "grammar/compiler.h"

namespace coppice::grammar {

struct Grammar::Impl {
  xgrammar::CompiledGrammar compiled;
  std::int32_t n_vocab = 0;
  std::size_t bytes = 0;
};

}  // namespace coppice::grammar
