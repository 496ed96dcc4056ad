// Matcher: one sample's place in a grammar. Says which tokens may come next.
//
// Not thread safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "grammar/compiler.h"
#include "kv/types.h"

namespace coppice::grammar {

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Grammar> grammar);
  ~Matcher();
  Matcher(Matcher&& other) noexcept;
  Matcher& operator=(Matcher&& other) noexcept;

  // mask() and the two after it throw GrammarError once the grammar has cost too much CPU time: 0.1 s at once, or half
  // a second in all, and a millisecond more for each token. Then the matcher can only be destroyed.

  /// Bit i % 32 of word i / 32: token i may come next. Empty: every token may. An end token may where the text is
  /// whole. Valid until the thread's next call, of whichever matcher.
  std::span<const std::int32_t> mask();

  /// False, and nothing changes, if the token may not come next.
  bool accept(kv::Token token);
  /// The same for text that came with another token.
  bool accept_text(std::string_view text);

  /// The text so far is whole: it may end here.
  bool whole() const;

  /// Another sample at the same place.
  Matcher clone() const;

 private:
  struct Impl;
  explicit Matcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice::grammar
