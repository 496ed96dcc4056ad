// Utf8Stream: bytes that come in arbitrary pieces, out as valid UTF-8 in whole characters.
//
// Not thread safe; a value: copying it copies the held-back bytes.
//
// Invariants
//   1. Everything returned is valid UTF-8 and ends at a character's end.
//   2. The returned texts joined, flush() included, are the same for every split of the input: the input with
//      each maximal subpart of an ill-formed sequence replaced by U+FFFD (WHATWG Encoding, Unicode 3.9 D93b).
//   3. At most 3 bytes are held back: a prefix of a well-formed character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace coppice::text {

class Utf8Stream {
 public:
  /// Takes bytes, returns the characters that are now complete.
  std::string push(std::string_view bytes);

  /// The end of the input: an incomplete character becomes one U+FFFD. The stream is then as new.
  std::string flush();

  /// Bytes held back: the beginning of a character.
  std::size_t pending() const { return n_held_; }

 private:
  void begin(unsigned char lead, std::string& out);

  char held_[4] = {};
  std::size_t n_held_ = 0;
  std::size_t n_needed_ = 0;               ///< continuation bytes still to come
  std::uint8_t low_ = 0x80, high_ = 0xBF;  ///< allowed range of the next continuation byte
};

/// All of `bytes` at once, ill-formed parts replaced.
std::string to_utf8(std::string_view bytes);

/// Is `text` well-formed UTF-8?
bool is_utf8(std::string_view text);

}  // namespace coppice::text
