// MarkedText: a prompt's text, and where in it names of special tokens are only text: what came from a client, and not
// from the chat template.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::text {

/// Bytes [begin, end) of a text.
struct TextSpan {
  std::size_t begin = 0, end = 0;

  bool operator==(const TextSpan&) const = default;
};

struct MarkedText {
  std::string text;
  /// In ascending order of their beginnings; they may overlap. A name that shares a byte with one is only text. Empty:
  /// all names of special tokens become these.
  std::vector<TextSpan> plain;

  bool operator==(const MarkedText&) const = default;
};

/// The same, not owned.
struct MarkedView {
  // NOLINTBEGIN(google-explicit-constructor): most texts have no marks
  MarkedView(std::string_view a_text, std::span<const TextSpan> a_plain = {}) : text(a_text), plain(a_plain) {}
  MarkedView(const std::string& a_text) : text(a_text) {}
  MarkedView(const char* a_text) : text(a_text) {}
  MarkedView(const MarkedText& marked) : text(marked.text), plain(marked.plain) {}
  // NOLINTEND(google-explicit-constructor)

  std::string_view text;
  std::span<const TextSpan> plain;
};

}  // namespace coppice::text
