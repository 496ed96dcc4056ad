// The words of kv's tests: tokens, and below 0 the pieces of media. No two pieces are the same word, while the symbols
// of media in pairs are: their digests differ in what no symbol shows. The rules of media are written down here once
// more, a word at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/text.h"

namespace coppice::test {

/// One of eight media of so many rows.
struct FakeMedium {
  int which = 0;  ///< below 8
  std::int32_t rows = 1;
  bool whole = false;
  friend bool operator==(const FakeMedium&, const FakeMedium&) = default;
};
inline constexpr std::int32_t kMostRows = 512;

inline kv::Token word_of(const FakeMedium& medium, std::int32_t index) {
  const std::int32_t id = (medium.rows * 8 + medium.which) * 2 + (medium.whole ? 1 : 0);
  return -1 - (id * kMostRows + index);
}
inline bool is_piece(kv::Token word) {
  return word < 0;
}
inline std::int32_t index_of(kv::Token word) {
  return (-1 - word) % kMostRows;
}
inline FakeMedium medium_of(kv::Token word) {
  const std::int32_t id = (-1 - word) / kMostRows;
  return {.which = id / 2 % 8, .rows = id / 16, .whole = id % 2 != 0};
}

inline std::vector<kv::Token> words_of(const FakeMedium& medium) {
  std::vector<kv::Token> words;
  for (std::int32_t i = 0; i < medium.rows; ++i) words.push_back(word_of(medium, i));
  return words;
}

/// What the cache is told.
inline kv::Medium to_kv(const FakeMedium& medium) {
  kv::Medium result{.digest = {}, .rows = medium.rows, .whole = medium.whole};
  result.digest[0] = static_cast<std::uint8_t>(1 + medium.which / 2);
  result.digest[29] = static_cast<std::uint8_t>(medium.which);
  result.digest[30] = static_cast<std::uint8_t>(medium.rows / 256 * 2 + (medium.whole ? 1 : 0));
  result.digest[31] = static_cast<std::uint8_t>(medium.rows % 256);
  return result;
}
inline kv::Text to_kv(std::span<const kv::Token> words) {
  kv::Text text;
  for (std::size_t i = 0; i < words.size();) {
    std::size_t end = i;
    if (!is_piece(words[i])) {
      while (end < words.size() && !is_piece(words[end])) ++end;
      text.append(words.subspan(i, end - i));
    } else {
      do ++end;
      while (end < words.size() && words[end] == words[end - 1] - 1 && index_of(words[end]) > 0);
      kv::Text all;
      all.append(to_kv(medium_of(words[i])));
      text.append(all.view().subspan(static_cast<std::size_t>(index_of(words[i])), end - i));
    }
    i = end;
  }
  return text;
}

/// The last place at or before `at`, and the first at or behind it, where the words may be cut.
inline std::int32_t cut_before(std::span<const kv::Token> words, std::int32_t at) {
  if (at <= 0 || at > std::ssize(words)) return at;
  const kv::Token last = words[static_cast<std::size_t>(at) - 1];
  const bool inside = is_piece(last) && medium_of(last).whole && index_of(last) + 1 < medium_of(last).rows;
  return inside ? at - 1 - index_of(last) : at;
}
inline std::int32_t cut_behind(std::span<const kv::Token> words, std::int32_t at) {
  const std::int32_t before = cut_before(words, at);
  return before == at ? at : before + medium_of(words[static_cast<std::size_t>(at) - 1]).rows;
}
/// Is the place between two pieces of one medium?
inline bool is_inside(std::span<const kv::Token> words, std::int32_t at) {
  if (at <= 0 || at >= std::ssize(words)) return false;
  const kv::Token next = words[static_cast<std::size_t>(at)];
  return is_piece(next) && index_of(next) > 0 && next == words[static_cast<std::size_t>(at) - 1] - 1;
}

/// The last of these that is the end of a block, too.
inline std::int32_t whole_cut_before(std::span<const kv::Token> words, std::int32_t at, std::int32_t block_size) {
  for (;;) {
    const std::int32_t whole = at / block_size * block_size;
    at = cut_before(words, whole);
    if (at == whole) return at;
  }
}

}  // namespace coppice::test
