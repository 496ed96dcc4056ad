// TextCuts: places where a byte-pair vocabulary's text can be cut, so that the tokens of the parts, joined, are those
// of the text.
//
// A cut stands between a letter and a space, a line's end or a mark. Merges never reach across it if no token does: the
// vocabulary is looked through for that. How text is split into words before the merges is a matter of each
// vocabulary's pattern: tried out on a sample, for each kind of cut.
//
// Thread safety: const methods may be called by any number of threads at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/vocabulary.h"

namespace coppice::text {

class TextCuts {
 public:
  explicit TextCuts(const Vocabulary& vocabulary);

  /// Can this vocabulary's texts be cut anywhere?
  bool any() const;
  /// The first cut at `from` or later; the text's size if there is none.
  std::size_t next(std::string_view text, std::size_t from) const;

 private:
  /// By what follows the letter.
  enum Kind : std::uint8_t { kBlank, kLineEnd, kSign, kNoCut };
  static constexpr std::size_t kKinds = 3;
  static Kind kind_at(std::string_view text, std::size_t at);
  void forbid_what_tokens_span(const Vocabulary& vocabulary);
  bool sample_holds(const Vocabulary& vocabulary, Kind kind) const;

  /// Behind ASCII letters, and behind others. Of others a token may hold the last byte only, so these are told apart
  /// less well.
  std::array<bool, kKinds> behind_ascii_{}, behind_others_{};
};

}  // namespace coppice::text
