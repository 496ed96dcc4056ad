// Rules of a number's multiples in a range, which XGrammar asks for (cmake/xgrammar): it writes those of no range
// itself. It asks by AddMultiples(), which its converter's private header declares; no public one builds rules.
//
// Digits are read from the left. A rule stands for the rest modulo the number, and for how many digits are to come: 19
// at most for each rest where there is an upper bound, as many as the lower one has where there is none.
#include <json_schema_converter.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace coppice::grammar {

namespace {

using Expr = std::int32_t;
using Unsigned = std::uint64_t;

/// Used once.
class Multiples {
 public:
  Multiples(xgrammar::GrammarBuilder& builder, Unsigned step) : builder_(builder), step_(step) {}

  /// Choices for the positive multiples from `least` to `most`. nullopt: there is no greatest.
  void add(const std::string& sign, Unsigned least, std::optional<Unsigned> most, std::vector<Expr>& to) {
    const std::string low = std::to_string(std::max(least, Unsigned{1}));
    const std::string high = most ? std::to_string(*most) : std::string(low.size(), '9');
    for (std::size_t n = low.size(); n <= high.size(); ++n) {
      low_ = n == low.size() ? low : "1" + std::string(n - 1, '0');
      high_ = n == high.size() ? high : std::string(n, '9');
      if (low_ > high_) continue;
      bounded_.clear();
      begin(sign, true, true, to);
    }
    if (most) return;
    // One digit more than the bound has, and then any.
    low_ = "1" + std::string(low.size(), '0');
    high_ = std::string(low.size() + 1, '9');
    any_more_ = true;
    bounded_.clear();
    begin(sign, false, false, to);
  }

 private:
  void begin(const std::string& sign, bool on_low, bool on_high, std::vector<Expr>& to) {
    const Expr digits = row(0, 0, on_low, on_high);
    if (digits == kNone) return;
    to.push_back(sign.empty() ? builder_.AddSequence({digits})
                              : builder_.AddSequence({builder_.AddByteString(sign), digits}));
  }

  /// A rule for the digits from `at` on, of a number of low_'s length behind a beginning of this rest. `on_low`,
  /// `on_high`: which is the bound's own. kEnd: there are none; kNone: none would do.
  Expr row(std::size_t at, Unsigned rest, bool on_low, bool on_high) {
    if (at == low_.size()) return any_more_ ? endless(rest) : rest == 0 ? kEnd : kNone;
    if (at > 0 && !on_low && !on_high && !any_more_) return counted(low_.size() - at, rest);
    const auto key = std::tuple(at, rest, on_low, on_high);
    if (const auto known = bounded_.find(key); known != bounded_.end()) return known->second;
    const char from = on_low ? low_[at] : at == 0 ? '1' : '0', to = on_high ? high_[at] : '9';
    std::vector<Expr> choices;
    for (char digit = from; digit <= to; ++digit)
      add_digit(digit, row(at + 1, next(rest, digit), on_low && digit == low_[at], on_high && digit == high_[at]),
                choices);
    return bounded_[key] = rule_of(choices);
  }

  /// `n` digits more, whichever.
  Expr counted(std::size_t n, Unsigned rest) {
    if (n == 0) return rest == 0 ? kEnd : kNone;
    const auto key = std::pair(n, rest);
    if (const auto known = counted_.find(key); known != counted_.end()) return known->second;
    std::vector<Expr> choices;
    for (char digit = '0'; digit <= '9'; ++digit) add_digit(digit, counted(n - 1, next(rest, digit)), choices);
    return counted_[key] = rule_of(choices);
  }

  /// Any number of digits more.
  Expr endless(Unsigned rest) {
    if (endless_.empty()) {
      for (Unsigned r = 0; r < step_; ++r) endless_.push_back(builder_.AddEmptyRuleWithHint("multiple"));
      for (Unsigned r = 0; r < step_; ++r) {
        std::vector<Expr> choices;
        if (r == 0) choices.push_back(builder_.AddEmptyStr());
        for (char digit = '0'; digit <= '9'; ++digit)
          add_digit(digit, builder_.AddRuleRef(endless_[next(r, digit)]), choices);
        builder_.UpdateRuleBody(endless_[r], builder_.AddChoices(choices));
      }
    }
    return builder_.AddRuleRef(endless_[rest]);
  }

  Unsigned next(Unsigned rest, char digit) const { return (rest * 10 + static_cast<Unsigned>(digit - '0')) % step_; }

  void add_digit(char digit, Expr behind, std::vector<Expr>& choices) {
    if (behind == kNone) return;
    const Expr letter = builder_.AddByteString(std::string(1, digit));
    choices.push_back(builder_.AddSequence(behind == kEnd ? std::vector{letter} : std::vector{letter, behind}));
  }

  Expr rule_of(const std::vector<Expr>& choices) {
    if (choices.empty()) return kNone;
    return builder_.AddRuleRef(builder_.AddRuleWithHint("multiple", builder_.AddChoices(choices)));
  }

  static constexpr Expr kNone = -1, kEnd = -2;

  xgrammar::GrammarBuilder& builder_;
  Unsigned step_;
  std::string low_, high_;  ///< of the same length
  bool any_more_ = false;
  std::map<std::tuple<std::size_t, Unsigned, bool, bool>, Expr> bounded_;
  std::map<std::pair<std::size_t, Unsigned>, Expr> counted_;
  std::vector<Expr> endless_;  ///< rules by the rest
};

Unsigned magnitude(std::int64_t negative) {
  return Unsigned{0} - static_cast<Unsigned>(negative);
}

}  // namespace

static Expr multiples(xgrammar::GrammarBuilder& builder, std::int64_t step, std::optional<std::int64_t> least,
                      std::optional<std::int64_t> most) {
  std::vector<Expr> choices;
  const bool zero = least.value_or(0) <= 0 && most.value_or(0) >= 0;
  if (zero) choices.push_back(builder.AddSequence({builder.AddByteString("0")}));
  if (most.value_or(1) > 0) {
    Multiples positive(builder, static_cast<Unsigned>(step));
    positive.add("", static_cast<Unsigned>(std::max<std::int64_t>(least.value_or(0), 0)),
                 most ? std::optional(static_cast<Unsigned>(*most)) : std::nullopt, choices);
  }
  if (least.value_or(-1) < 0) {
    Multiples negative(builder, static_cast<Unsigned>(step));
    negative.add("-", most.value_or(0) < 0 ? magnitude(*most) : 0,
                 least ? std::optional(magnitude(*least)) : std::nullopt, choices);
  }
  return builder.AddChoices(choices);
}

}  // namespace coppice::grammar

namespace xgrammar {

std::int32_t AddMultiples(GrammarBuilder* builder, std::int64_t multiple_of, std::optional<std::int64_t> start,
                          std::optional<std::int64_t> end) {
  return coppice::grammar::multiples(*builder, multiple_of, start, end);
}

}  // namespace xgrammar
