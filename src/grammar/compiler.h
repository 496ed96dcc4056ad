// Compiler: sources become Grammars, which matchers follow token by token. The engine behind it is XGrammar
// (docs/decisions.md, "Grammars by XGrammar"); its headers stay in this folder's .cpp files.
//
// Thread safety: every method may be called by any thread. compile() takes milliseconds, kMaxCompileSeconds at worst:
// not for the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "grammar/source.h"
#include "kv/types.h"

namespace coppice::grammar {

/// A compiled source, for one vocabulary. Immutable; shared by all samples that follow it.
class Grammar {
 public:
  struct Impl;
  explicit Grammar(std::unique_ptr<const Impl> impl);
  ~Grammar();
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  std::size_t bytes() const;  ///< of memory, about
  const Impl& impl() const { return *impl_; }

 private:
  std::unique_ptr<const Impl> impl_;
};

/// A model's words, as grammars see them.
struct Words {
  /// Bytes of each token; empty: it has none, and only Source::tokens name it (control tokens).
  std::vector<std::string> pieces;
  std::vector<kv::Token> ends;  ///< these end a text; their pieces don't count
};

class Compiler {
 public:
  /// Takes some 60 ms for 50,000 words. cache_bytes: of compiled grammars, about, and as much again for what grammars
  /// have in common.
  explicit Compiler(const Words& words, std::size_t cache_bytes = std::size_t{64} << 20);
  ~Compiler();
  Compiler(const Compiler&) = delete;
  Compiler& operator=(const Compiler&) = delete;

  /// Throws GrammarError; WorkError (work.h) if it takes more CPU time than that. A source compiled lately comes from
  /// the cache, whoever pays for it; where that is full, it loses what the payer of most used least recently.
  std::shared_ptr<const Grammar> compile(const Source& source, double seconds = kMaxCompileSeconds) const;

  /// One compiled lately; null: it isn't in the cache. Takes microseconds, and waits for no compile().
  std::shared_ptr<const Grammar> find(const Source& source) const;

  std::size_t cached_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice::grammar
