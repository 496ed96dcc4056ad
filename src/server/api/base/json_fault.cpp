// A new cause: in string_cause(), outer_cause(), or whole_cause() for what is something else than JSON altogether.
#include "server/api/base/json_fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/error.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/stream_parser.hpp>
#include <cctype>
#include <cstddef>
#include <utility>

namespace coppice::server {

namespace {

constexpr std::string_view kBlanks = " \t\r\n";

struct Fault {
  std::size_t at = 0;  ///< bytes before the one that cannot be; the text's size: it ends too soon
  boost::system::error_code error;
};

/// The parser forgets where it was, so it reads the text again, in small bites.
Fault find_fault(std::string_view text, std::size_t max_depth) {
  const boost::json::parse_options options{.max_depth = max_depth};
  Fault fault;
  for (const std::size_t bite : {std::size_t{4096}, std::size_t{1}}) {
    boost::json::stream_parser parser({}, options);
    fault.error = {};
    parser.write(text.data(), fault.at, fault.error);
    while (fault.at < text.size()) {
      const std::size_t n = std::min(bite, text.size() - fault.at);
      parser.write(text.data() + fault.at, n, fault.error);
      if (fault.error) break;
      fault.at += n;
    }
  }
  // The parser sees that a character isn't UTF-8 at its second byte or behind it.
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, fault.at); ++back) {
    const auto first = static_cast<unsigned char>(text[fault.at - back]);
    const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 0;
    if (length > back) fault.at -= back;
    if (length != 0) break;
  }
  return fault;
}

/// What stands before the fault: enough to say what was expected there.
struct Before {
  std::string open;        ///< the braces and brackets that are open
  char last = 0;           ///< of the values and signs: their last character; 0: nothing stands there
  bool name = false;       ///< the last string is a name
  bool in_string = false;  ///< the fault is
  std::size_t begin = 0;   ///< of that string
};

Before look_before(std::string_view text) {
  Before before;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (before.in_string) {
      if (c == '\\') ++i;
      if (c != '"') continue;
      before.in_string = false;
      before.last = c;
      continue;
    }
    if (kBlanks.contains(c)) continue;
    if (c == '"') {
      before.in_string = true;
      before.begin = i;
      const bool object = !before.open.empty() && before.open.back() == '{';
      before.name = object && (before.last == '{' || before.last == ',');
      continue;
    }
    if (c == '{' || c == '[') before.open += c;
    if ((c == '}' || c == ']') && !before.open.empty()) before.open.pop_back();
    before.last = c;
  }
  return before;
}

/// What isn't meant to be JSON; empty: it is.
std::string whole_cause(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == text.npos) return "it is empty";
  if (text.starts_with("\x1f\x8b")) return "it is compressed: send it as it is";
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return "it is UTF-16: send UTF-8";
  if (text.starts_with("--") && text.contains("Content-Disposition"))
    return "it is form data: send JSON, with 'Content-Type: application/json'";
  const auto in_field = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '%' || c == '.'; };
  const std::size_t end = static_cast<std::size_t>(std::ranges::find_if_not(text, in_field) - text.begin());
  if (end > 0 && end < text.size() && text[end] == '=')
    return "it is form data, as curl sends it without a header: send JSON, with 'Content-Type: application/json'";
  return "";
}

std::string string_cause(std::string_view text, std::size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte == '\n' || byte == '\r') return "a line break in a string: write it as \\n";
  if (byte < 0x20) return fmt::format("a control character in a string: write it as \\u{:04x}", byte);
  if (byte >= 0x80) return "bytes that are no UTF-8";
  const std::size_t slash = text.rfind('\\', at);
  if (slash != text.npos && slash + 1 == at)
    return fmt::format("'\\{}' in a string: a backslash itself is written as \\\\", text[at]);
  if (slash != text.npos && at - slash < 6) return "\\u in a string without four hexadecimal digits behind it";
  return "half of a pair of \\u surrogates in a string";
}

/// The word that the fault is in, with a sign before it; empty: none.
std::string word_at(std::string_view text, std::size_t at) {
  constexpr std::size_t kMost = 20;
  const auto in_word = [&](std::size_t i) {
    const auto c = static_cast<unsigned char>(text[i]);
    return std::isalnum(c) != 0 || c == '_' || c == '$' || c == '-' || c == '+' || c == '.';
  };
  std::size_t begin = at, end = at;
  while (begin > 0 && at - begin < kMost && in_word(begin - 1)) --begin;
  while (end < text.size() && end - begin < kMost && in_word(end)) ++end;
  return std::string(text.substr(begin, end - begin));
}

/// Is it a number, true, false or null?
bool is_scalar(const std::string& word) {
  boost::system::error_code error;
  boost::json::parse(word, error);
  return !error;
}

std::string word_cause(const std::string& word, bool name_wanted) {
  std::string lower = word;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::string bare = lower.substr(std::min(lower.find_first_not_of("+-"), lower.size()));
  if (name_wanted) return fmt::format("the name {} without double quotes", word);
  if (bare == "nan" || bare == "infinity" || bare == "inf")
    return fmt::format("{} is no number in JSON: send null, or leave the field out", word);
  if (lower == "true" || lower == "false") return fmt::format("{} is written {} in JSON", word, lower);
  if (lower == "none" || lower == "nil" || lower == "undefined") return fmt::format("{} is written null in JSON", word);
  const char first = bare.empty() ? ' ' : bare.front();
  if ((first >= '0' && first <= '9') || first == '.')
    return fmt::format("{} is no number in JSON (as 1, -0.5 and 1e3 are)", word);
  return fmt::format("the text {} without double quotes", word);
}

std::string outer_cause(std::string_view text, std::size_t at, const Before& before) {
  const char c = text[at];
  const bool object = !before.open.empty() && before.open.back() == '{';
  if (before.open.empty() && before.last != 0) return "more text behind the end of the JSON";
  if (c == '\'') return "single quotes: JSON's strings stand in double quotes";
  if (text.substr(at).starts_with("\xe2\x80\x9c") || text.substr(at).starts_with("\xe2\x80\x9d"))
    return "typographic quotes: JSON's strings stand in plain double quotes";
  if ((c == '}' || c == ']') && before.last == ',') return fmt::format("a comma before the '{}'", c);
  if (c == '/' || c == '#') return "a comment: JSON has none";
  const bool apart = kBlanks.contains(text[at - std::min<std::size_t>(at, 1)]) || c == '"' || c == '{' || c == '[';
  const bool after_word = apart && !kBlanks.contains(c) && std::isalnum(static_cast<unsigned char>(before.last)) != 0;
  const bool after_value = after_word || before.last == '"' || before.last == '}' || before.last == ']';
  if (after_value && object && before.name && before.last == '"') return "no colon behind a name";
  if (after_value && c != ':' && c != '}' && c != ']') return "no comma between two values";
  const bool name_wanted = object && (before.last == '{' || before.last == ',');
  const std::string word = word_at(text, at);
  if (!word.empty() && (std::isalnum(static_cast<unsigned char>(c)) != 0 || !is_scalar(word)))
    return word_cause(word, name_wanted);
  return c > ' ' && c <= '~' ? fmt::format("a '{}' can't stand here", c) : "";
}

std::string cause(std::string_view text, const Fault& fault) {
  if (std::string whole = whole_cause(text); !whole.empty()) return whole;
  if (fault.error == boost::json::error::too_deep) return "it is nested too deeply";
  const Before before = look_before(text.substr(0, fault.at));
  if (fault.at == text.size()) {
    if (before.in_string) return "it ends in a string that nothing closes";
    return before.open.empty() ? "it ends too soon"
                               : fmt::format("it ends without a '{}'", before.open.back() == '{' ? '}' : ']');
  }
  std::string usual = before.in_string ? string_cause(text, fault.at) : outer_cause(text, fault.at, before);
  return usual.empty() ? fault.error.message() : usual;
}

}  // namespace

std::string json_fault(std::string_view text, std::size_t max_depth) {
  const Fault fault = find_fault(text, max_depth);
  const std::string_view before = text.substr(0, fault.at);
  const auto lines = std::ranges::count(before, '\n');
  const std::string_view line = before.substr(before.rfind('\n') + 1);  // npos + 1: all of it
  const auto characters = std::ranges::count_if(line, [](unsigned char c) { return (c & 0xC0U) != 0x80; });
  return fmt::format("{} (line {}, column {})", cause(text, fault), lines + 1, characters + 1);
}

}  // namespace coppice::server
