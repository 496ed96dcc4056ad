// ThoughtCount: how many of a choice's tokens are reasoning. Its text shows that only later, when the reader of the
// answer has parted it.
//
// Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::server {

class ThoughtCount {
 public:
  /// More of the choice, as the model wrote it: text of so many tokens.
  void push(std::string_view text, std::size_t tokens);
  /// What the reader made of it: reasoning, and whether there was something else (`answers`).
  void read(std::string_view reasoning, bool answers);
  /// Up to the reasoning's end, the mark before it included. Exact where each token came by itself.
  std::int64_t tokens() const;

 private:
  struct PieceEnd {
    std::size_t bytes, tokens;
  };
  std::string head_, thought_head_;  ///< the first bytes of the text, and of the reasoning in it
  std::size_t bytes_ = 0, tokens_ = 0, thought_bytes_ = 0;
  bool answers_ = false;        ///< the reasoning is over
  std::vector<PieceEnd> ends_;  ///< ends of the pieces of text, up to there
};

}  // namespace coppice::server
