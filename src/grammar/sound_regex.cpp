#include "grammar/sound_regex.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "grammar/source.h"
#include "grammar/source_check.h"

namespace coppice::grammar {

namespace {

struct Quantifier {
  std::string text;                       ///< as it was written, without a mark for lazy
  std::optional<std::uint32_t> at_least;  ///< of `{n,}`
};

class Rewriter {
 public:
  explicit Rewriter(std::string_view regex) : regex_(regex) {}

  std::string run() {
    while (at_ < regex_.size()) step();
    return std::move(out_);
  }

 private:
  void step() {
    const char c = regex_[at_];
    if (c == '(') {
      groups_.push_back(out_.size());
      out_ += c;
      ++at_;
      // A modifier's question mark is no quantifier.
      if (regex_.substr(at_).starts_with('?')) out_ += regex_[at_++];
      begin_.reset();
    } else if (c == ')') {
      out_ += c;
      ++at_;
      begin_.reset();
      if (groups_.empty()) return;
      begin_ = groups_.back();
      group_ = true;
      groups_.pop_back();
    } else if (c == '|' || c == '^' || c == '$') {
      out_ += c;
      ++at_;
      begin_.reset();
    } else if (begin_ && quantifier()) {
      return;
    } else {
      atom();
    }
  }

  /// A character, an escape or a class.
  void atom() {
    begin_ = out_.size();
    group_ = false;
    const std::size_t end = std::max(end_of_quoted(regex_, at_, Kind::kRegex), at_ + 1);
    out_ += regex_.substr(at_, end - at_);
    at_ = end;
  }

  /// Rewrites the quantifier that stands here, if one does.
  bool quantifier() {
    const std::optional<Quantifier> q = read_quantifier();
    if (!q) return false;
    if (q->text == "?") {
      out_ += "{0,1}";
    } else if (q->at_least && *q->at_least < 2) {
      out_ += *q->at_least == 0 ? "*" : "+";
    } else if (group_ && q->at_least) {
      out_.insert(*begin_, "(");
      out_ += "+){" + std::to_string(*q->at_least) + "}";
    } else {
      out_ += q->text;
    }
    group_ = true;  // whatever it was: another quantifier behind it repeats all of this
    return true;
  }

  std::optional<Quantifier> read_quantifier() {
    const std::string_view rest = regex_.substr(at_);
    Quantifier q;
    if (rest.front() == '?' || rest.front() == '*' || rest.front() == '+') {
      q.text = rest.substr(0, 1);
    } else if (rest.front() == '{') {
      const std::size_t end = rest.find('}');
      if (end == std::string_view::npos) return std::nullopt;
      q.text = rest.substr(0, end + 1);
      if (q.text.find_first_not_of("0123456789,{}") != std::string::npos) return std::nullopt;
      std::uint32_t least = 0;
      const auto [after, error] = std::from_chars(rest.data() + 1, rest.data() + end, least);
      if (error == std::errc() && std::string_view(after, rest.data() + end) == ",") q.at_least = least;
    } else {
      return std::nullopt;
    }
    at_ += q.text.size();
    if (regex_.substr(at_).starts_with('?')) ++at_;
    return q;
  }

  std::string_view regex_;
  std::size_t at_ = 0;
  std::string out_;
  std::vector<std::size_t> groups_;   ///< where the open ones begin in out_
  std::optional<std::size_t> begin_;  ///< of what a quantifier here would repeat, in out_
  bool group_ = false;                ///< that is one, or repeated already
};

}  // namespace

std::string sound_regex(std::string_view regex) {
  return Rewriter(regex).run();
}

bool opens_quantifier(std::string_view brace) {
  const std::size_t end = brace.find_first_not_of("0123456789,", 1);
  return end != std::string_view::npos && end > 1 && brace[end] == '}';
}

std::string with_known_escapes(std::string_view regex) {
  constexpr std::string_view kKnown = "^$.*+?\\()[]{}|/-";
  constexpr std::string_view kControls = "\n\r\t\v\f", kNames = "nrtvf";
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] != '\\' || i + 1 == regex.size()) {
      if (regex[i] == '{' && !in_class && !opens_quantifier(regex.substr(i))) out += '\\';
      in_class = regex[i] == '[' || (in_class && regex[i] != ']');
      out += regex[i];
      continue;
    }
    const char c = regex[++i];
    const auto byte = static_cast<unsigned char>(c);
    if (const std::size_t at = kControls.find(c); at != std::string_view::npos) {
      out += {'\\', kNames[at]};
    } else if ((byte < 0x80 && std::isalnum(byte) != 0) ||
               (kKnown.find(c) != std::string_view::npos && (c != '-' || in_class))) {
      out += {'\\', c};
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace coppice::grammar
