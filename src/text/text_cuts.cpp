#include "text/text_cuts.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace coppice::text {

namespace {

std::uint8_t code_of(char c) {
  return static_cast<std::uint8_t>(c);
}

bool is_ascii_letter(char c) {
  return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z');
}

bool is_continuation(char c) {
  return (code_of(c) & 0xC0U) == 0x80U;
}

/// Where the character of two or three bytes begins that ends before text[end]; nothing: there is no whole one.
std::optional<std::size_t> begin_of_last(std::string_view text, std::size_t end) {
  for (std::size_t n = 2; n <= 3 && n <= end; ++n) {
    const std::uint8_t lead = code_of(text[end - n]);
    if (n == 2 && (lead & 0xE0U) == 0xC0U) return end - n;
    if (n == 3 && (lead & 0xF0U) == 0xE0U) return end - n;
  }
  return std::nullopt;
}

/// Letters that every pattern takes for such: Latin, Greek, Cyrillic, Kana, Han, Hangul.
bool is_other_letter(std::uint32_t c) {
  const auto within = [c](std::uint32_t first, std::uint32_t last) { return first <= c && c <= last; };
  return (within(0xC0, 0x24F) && c != 0xD7 && c != 0xF7) || within(0x391, 0x3A1) || within(0x3A3, 0x3C9) ||
         within(0x410, 0x44F) || within(0x3041, 0x3096) || within(0x30A1, 0x30FA) || within(0x4E00, 0x9FA5) ||
         within(0xAC00, 0xD7A3);
}

/// Does a letter beyond ASCII begin here? `at` < text.size().
bool other_letter_at(std::string_view text, std::size_t at) {
  const std::uint8_t lead = code_of(text[at]);
  const std::size_t n = (lead & 0xE0U) == 0xC0U ? 2 : (lead & 0xF0U) == 0xE0U ? 3 : 0;
  if (n == 0 || text.size() - at < n) return false;
  std::uint32_t code = lead & (n == 2 ? 0x1FU : 0x0FU);
  for (std::size_t i = 1; i < n; ++i) {
    if (!is_continuation(text[at + i])) return false;
    code = code << 6U | (code_of(text[at + i]) & 0x3FU);
  }
  return is_other_letter(code);
}

bool other_letter_before(std::string_view text, std::size_t end) {
  const auto begin = begin_of_last(text, end);
  return begin && other_letter_at(text, *begin);
}

/// Not the apostrophe: some patterns take 's into the word before it.
constexpr std::string_view kSigns = "\"(),.:;=[]{}";

/// Of everything that vocabularies split text by: cases, contractions, digits, marks, white space, other scripts.
constexpr std::string_view kSample =
    "The quick brown fox doesn't jump over THE lazy dogs' 12345 bones; she'll say: \"I'm sure it's 3.14 or 2,718\" and "
    "leave   three spaces  or two\tand tabs \n\nnew lines \n then camelCase snake_case words/with/slashes or a-b-c "
    "x+y z = f(x) { return i; } // a comment é über naïve 你好 world and русский текст too even   \n  emoji 🙂 at the "
    "end of it all\nLines\n\n  indented by two\r\nand by "
    "{\"json\":[\"of\",{\"no\":\"blanks\",\"x\":1.5e3},[]],\"a\":null}\n"
    "if (a.b(c)) return d[e];\n#include <map>\nint main(int argc,char**argv){return x==y;}\nüber\nдом, в доме (дома)\n"
    "你好，世界。\n世界 你好\nかな, カナ\n한국어 문장.\nété (déjà)=là\n ";

}  // namespace

TextCuts::TextCuts(const Vocabulary& vocabulary) {
  if (!vocabulary.is_byte_pairs()) return;
  behind_ascii_.fill(true);
  behind_others_.fill(true);
  forbid_what_tokens_span(vocabulary);
  for (const Kind kind : {kBlank, kLineEnd, kSign})
    if (!sample_holds(vocabulary, kind)) behind_ascii_[kind] = behind_others_[kind] = false;
}

bool TextCuts::any() const {
  return std::ranges::find(behind_ascii_, true) != behind_ascii_.end();
}

TextCuts::Kind TextCuts::kind_at(std::string_view text, std::size_t at) {
  const char c = text[at];
  if (c == '\n') return kLineEnd;
  if (c == ' ') return kBlank;
  return kSigns.contains(c) ? kSign : kNoCut;
}

std::size_t TextCuts::next(std::string_view text, std::size_t from) const {
  for (std::size_t at = std::max<std::size_t>(from, 1); at + 1 < text.size(); ++at) {
    const char before = text[at - 1];
    const bool ascii = is_ascii_letter(before);
    if (!ascii && !is_continuation(before)) continue;
    const Kind kind = kind_at(text, at);
    if (kind == kNoCut || !(ascii ? behind_ascii_ : behind_others_)[kind]) continue;
    if (!ascii && !other_letter_before(text, at)) continue;
    if (kind == kBlank && !is_ascii_letter(text[at + 1]) && !other_letter_at(text, at + 1)) continue;
    return at;
  }
  return text.size();
}

void TextCuts::forbid_what_tokens_span(const Vocabulary& vocabulary) {
  for (kv::Token token = 0; token < vocabulary.size(); ++token) {
    const std::string piece = vocabulary.piece(token);
    for (std::size_t at = 1; at < piece.size(); ++at) {
      const Kind kind = kind_at(piece, at);
      if (kind == kNoCut) continue;
      if (is_ascii_letter(piece[at - 1])) behind_ascii_[kind] = false;
      const bool cut_character = is_continuation(piece[at - 1]) && !begin_of_last(piece, at);
      if (cut_character || other_letter_before(piece, at)) behind_others_[kind] = false;
    }
  }
}

bool TextCuts::sample_holds(const Vocabulary& vocabulary, Kind kind) const {
  std::vector<kv::Token> whole;
  vocabulary.append_plain(kSample, whole);
  for (std::size_t at = 0; (at = next(kSample, at + 1)) < kSample.size();) {
    if (kind_at(kSample, at) != kind) continue;
    std::vector<kv::Token> parts;
    vocabulary.append_plain(kSample.substr(0, at), parts);
    vocabulary.append_plain(kSample.substr(at), parts);
    if (parts != whole) return false;
  }
  return true;
}

}  // namespace coppice::text
