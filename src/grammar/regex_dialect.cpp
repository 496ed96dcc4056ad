#include "grammar/regex_dialect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "grammar/source.h"

namespace coppice::grammar {

namespace {

using Code = std::uint32_t;
using Ranges = std::vector<std::pair<Code, Code>>;  // from, to

constexpr Code kMostCode = 0x10ffff;

/// White space of ECMAScript or of Python.
const Ranges kSpaces = {{0x9, 0xd},       {0x1c, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},
                        {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f},
                        {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const Ranges kPlainSpaces = {{0x9, 0xd}, {0x20, 0x20}};
const Ranges kDigits = {{'0', '9'}};
const Ranges kWords = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};

/// In order, and none touches another.
Ranges joined(Ranges ranges) {
  std::ranges::sort(ranges);
  Ranges out;
  for (const auto& [from, to] : ranges) {
    if (!out.empty() && from <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, to);
    } else {
      out.emplace_back(from, to);
    }
  }
  return out;
}

Ranges complement(const Ranges& ranges) {
  Ranges out;
  Code next = 0;
  for (const auto& [from, to] : joined(ranges)) {
    if (from > next) out.emplace_back(next, from - 1);
    next = to + 1;
  }
  if (next <= kMostCode) out.emplace_back(next, kMostCode);
  return out;
}

bool is_letter(Code code) {
  return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
}

/// With the other case of ASCII letters. `wide`: and of what some dialects take for one: the long s, the Kelvin sign,
/// an i with or without its dot.
Ranges folded(const Ranges& ranges, bool wide) {
  Ranges out = ranges;
  for (const auto& [from, to] : ranges) {
    for (Code code = std::max(from, Code{'A'}); code <= std::min(to, Code{'z'}); ++code) {
      if (!is_letter(code)) continue;
      const Code other = code ^ 0x20U, lower = code | 0x20U;
      out.emplace_back(other, other);
      if (!wide) continue;
      if (lower == 'i') out.emplace_back(0x130, 0x131);
      if (lower == 's') out.emplace_back(0x17f, 0x17f);
      if (lower == 'k') out.emplace_back(0x212a, 0x212a);
    }
  }
  return out;
}

std::string utf8_of(Code code) {
  const auto byte = [](Code bits) { return static_cast<char>(bits); };
  const auto rest = [&](unsigned shift) { return byte(0x80U | (code >> shift & 0x3fU)); };
  if (code < 0x80) return {byte(code)};
  if (code < 0x800) return {byte(0xc0U | code >> 6U), rest(0)};
  if (code < 0x10000) return {byte(0xe0U | code >> 12U), rest(6), rest(0)};
  return {byte(0xf0U | code >> 18U), rest(12), rest(6), rest(0)};
}

class Reader {
 public:
  Reader(std::string_view regex, bool ascii) : regex_(regex), ascii_(ascii) {}

  std::string run() {
    while (at_ < regex_.size()) step();
    return std::move(out_);
  }

 private:
  [[noreturn]] static void refuse(const std::string& what) { throw GrammarError(what + " is not supported"); }

  bool sees(std::string_view text) const { return regex_.substr(at_).starts_with(text); }

  void step() {
    const char c = regex_[at_];
    if (c == '\\') return escape();
    if (c == '[') return bracket();
    if (c == '(') return group();
    if (c == ')') {
      if (!outer_.empty()) {
        no_case_ = outer_.back();
        outer_.pop_back();
      }
    } else if (no_case_ && is_letter(static_cast<unsigned char>(c))) {
      out_ += class_of(folded({{static_cast<Code>(c), static_cast<Code>(c)}}, false), false);
      ++at_;
      return;
    } else if (c == '+' && at_ > 0 && !escaped_ &&
               std::string_view("*+?}").find(regex_[at_ - 1]) != std::string_view::npos) {
      refuse("a possessive quantifier");
    }
    escaped_ = false;
    out_ += c;
    ++at_;
  }

  // --- groups ---

  void group() {
    if (!regex_.substr(at_ + 1).starts_with('?')) {
      outer_.push_back(no_case_);
      out_ += '(';
      ++at_;
      return;
    }
    const std::size_t behind = at_ + 2;
    const char kind = behind < regex_.size() ? regex_[behind] : '\0';
    if (kind == '#') {
      const std::size_t end = regex_.find(')', behind);
      if (end == std::string_view::npos) throw GrammarError("a comment is never closed");
      at_ = end + 1;
      return;
    }
    if (kind == '=' || kind == '!' || sees("(?<=") || sees("(?<!")) refuse("a lookahead or lookbehind");
    if (kind == '<' || sees("(?P<") || kind == '\'') {
      const std::size_t end = regex_.find(kind == '\'' ? '\'' : '>', behind + (kind == 'P' ? 2 : 1));
      if (end == std::string_view::npos) throw GrammarError("a group's name is never closed");
      return open(end + 1);
    }
    if (kind == '>' || kind == '|' || kind == '(' || kind == 'P' || kind == 'R' || kind == '&')
      refuse(fmt::format("a group '(?{}'", kind));
    flags(behind);
  }

  void open(std::size_t next) {
    outer_.push_back(no_case_);
    out_ += "(?:";
    at_ = next;
  }

  /// `(?i)` up to its group's end, `(?i:` up to its own.
  void flags(std::size_t at) {
    bool on = true, no_case = no_case_;
    for (; at < regex_.size() && regex_[at] != ')' && regex_[at] != ':'; ++at) {
      const char flag = regex_[at];
      if (flag == '-') {
        on = false;
      } else if (flag == 'i') {
        no_case = on;
      } else if (std::string_view("smua").find(flag) == std::string_view::npos) {
        refuse(fmt::format("the flag '{}' of a group", flag));
      }
    }
    if (at == regex_.size()) throw GrammarError("a group is never closed");
    if (regex_[at] == ':') {
      open(at + 1);
    } else {
      at_ = at + 1;
    }
    no_case_ = no_case;
  }

  // --- escapes ---

  void escape() {
    if (at_ + 1 == regex_.size()) throw GrammarError("it ends with a backslash");
    const char c = regex_[at_ + 1];
    escaped_ = true;
    if (c == 'A') {
      out_ += '^';
    } else if (c == 'Z' || c == 'z') {
      out_ += '$';
    } else if (c == 'p' || c == 'P') {
      refuse(fmt::format("a category of Unicode, '\\{}',", c));
    } else if (c == 'S') {
      out_ += class_of(kSpaces, true);
    } else if (const std::size_t from = at_; const auto code = coded()) {
      const bool fold = no_case_ && is_letter(*code);
      out_ += fold ? class_of(folded({{*code, *code}}, false), false) : sign(*code);
      escaped_ = at_ > from;
      return;
    } else if (const bool word = is_letter(static_cast<unsigned char>(c)) || (c >= '0' && c <= '9');
               word && std::string_view("dDwWsntrfvaebB0ck").find(c) == std::string_view::npos) {
      throw GrammarError(fmt::format("the escape '\\{}' is not recognized", c));
    } else {
      out_ += regex_.substr(at_, 2);
    }
    at_ += 2;
  }

  /// Of a character by its number, behind which it stands then; nullopt: it is another escape.
  std::optional<Code> coded() {
    const char kind = regex_[at_ + 1];
    const std::size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits == 0) return std::nullopt;
    std::size_t at = at_ + 2, end = at + digits;
    const bool braced = kind != 'U' && regex_.substr(at).starts_with('{');
    if (braced) {
      end = regex_.find('}', at);
      ++at;
    }
    const Code code = number(at, end);
    at_ = braced ? end + 1 : end;
    if (code >= 0xd800 && code < 0xdc00 && kind == 'u' && sees("\\u")) {  // half of a pair
      const Code low = number(at_ + 2, at_ + 6);
      if (low >= 0xdc00 && low < 0xe000) {
        at_ += 6;
        return 0x10000 + ((code - 0xd800) << 10U) + (low - 0xdc00);
      }
    }
    if (code > kMostCode || (code >= 0xd800 && code < 0xe000)) refuse("an escape that is no character");
    return code;
  }

  Code number(std::size_t at, std::size_t end) const {
    constexpr std::size_t kMostDigits = 8;
    const bool good = end != std::string_view::npos && end <= regex_.size() && end > at && end - at <= kMostDigits;
    if (!good) throw GrammarError("an escape lacks its hexadecimal digits");
    Code code = 0;
    for (; at < end; ++at) {
      const char c = regex_[at], lower = static_cast<char>(c | 0x20);
      if (!((c >= '0' && c <= '9') || (lower >= 'a' && lower <= 'f')))
        throw GrammarError("an escape lacks its hexadecimal digits");
      code = code * 16 + static_cast<Code>(c <= '9' ? c - '0' : lower - 'a' + 10);
    }
    return code;
  }

  std::string sign(Code code) const {
    if (is_letter(code) || (code >= '0' && code <= '9')) return {static_cast<char>(code)};
    if (code < 0x80) return fmt::format("\\x{:02x}", code);
    return ascii_ ? fmt::format("\\u{{{:x}}}", code) : utf8_of(code);
  }

  // --- classes ---

  std::string class_of(const Ranges& ranges, bool negated) const {
    std::string out = negated ? "[^" : "[";
    for (const auto& [from, to] : joined(ranges)) {
      out += sign(from);
      if (to > from) out += "-" + sign(to);
    }
    return out + "]";
  }

  void bracket() {
    std::size_t at = at_ + 1;
    const bool negated = regex_.substr(at).starts_with('^');
    if (negated) ++at;
    bool rewrite = no_case_;
    std::size_t end = at;
    for (; end < regex_.size() && regex_[end] != ']'; ++end) {
      if (regex_[end] != '\\' || end + 1 == regex_.size()) continue;
      ++end;
      rewrite = rewrite || std::string_view("SxuUpP").find(regex_[end]) != std::string_view::npos ||
                (negated && regex_[end] == 's');
    }
    if (end >= regex_.size()) throw GrammarError("a '[' is never closed");
    escaped_ = true;
    if (!rewrite) {
      out_ += regex_.substr(at_, end + 1 - at_);
      at_ = end + 1;
      return;
    }
    at_ = at;
    Ranges ranges;
    while (at_ < end) add_member(end, negated, ranges);
    if (no_case_) ranges = folded(ranges, negated);
    out_ += class_of(ranges, negated);
    at_ = end + 1;
  }

  void add_member(std::size_t end, bool negated, Ranges& to) {
    const Ranges first = unit(negated);
    const auto one_case = [&](Code code) {
      if (code > 0x7f && negated && no_case_) refuse("a negated class of letters beyond ASCII without their case");
    };
    if (first.size() == 1 && first[0].first == first[0].second) one_case(first[0].first);
    if (first.size() == 1 && first[0].first == first[0].second && at_ + 1 < end && regex_[at_] == '-') {
      ++at_;
      const Ranges last = unit(negated);
      if (last.size() != 1 || last[0].first != last[0].second || last[0].first < first[0].first)
        throw GrammarError("a class has a range that is none");
      one_case(last[0].first);
      to.emplace_back(first[0].first, last[0].first);
      return;
    }
    to.insert(to.end(), first.begin(), first.end());
  }

  /// One character, or what an escape stands for.
  Ranges unit(bool negated) {
    const auto one = [](Code code) { return Ranges{{code, code}}; };
    const auto byte = static_cast<unsigned char>(regex_[at_]);
    if (byte >= 0x80) return one(utf8());
    if (byte != '\\') {
      ++at_;
      return one(byte);
    }
    if (const auto code = coded()) return one(*code);
    const char c = regex_[at_ + 1];
    at_ += 2;
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return complement(kDigits);
      case 'w':
        return kWords;
      case 'W':
        return complement(kWords);
      case 's':
        return negated ? kSpaces : kPlainSpaces;
      case 'S':
        return complement(negated ? kPlainSpaces : kSpaces);
      case 'n':
        return one('\n');
      case 't':
        return one('\t');
      case 'r':
        return one('\r');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'b':
        return one('\b');
      case '0':
        return one(0);
      default:
        break;
    }
    const auto code = static_cast<unsigned char>(c);
    if (code >= 0x80) {
      --at_;
      return one(utf8());
    }
    if (is_letter(code) || (code >= '0' && code <= '9')) refuse(fmt::format("'\\{}' in a class", c));
    return one(code);
  }

  /// The character that stands here, behind which it stands then. REQUIRES: UTF-8.
  Code utf8() {
    const auto first = static_cast<unsigned char>(regex_[at_]);
    const int n = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    Code code = first & (0xffU >> (n + 1));
    for (++at_; at_ < regex_.size() && (static_cast<unsigned char>(regex_[at_]) & 0xc0U) == 0x80; ++at_)
      code = code << 6U | (static_cast<unsigned char>(regex_[at_]) & 0x3fU);
    return code;
  }

  std::string_view regex_;
  bool ascii_;
  std::size_t at_ = 0;
  std::string out_;
  bool no_case_ = false;
  bool escaped_ = false;     ///< what stands before is an escape or a class: no quantifier
  std::vector<bool> outer_;  ///< no_case_ outside of the open groups
};

}  // namespace

std::string plain_regex(std::string_view regex, bool ascii) {
  return Reader(regex, ascii).run();
}

}  // namespace coppice::grammar
