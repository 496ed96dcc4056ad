// XGrammar's private headers: its public ones show rules, and take them, as text or as JSON of its own layout only.
#include "grammar/unfold.h"

#include <grammar_builder.h>
#include <grammar_impl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "grammar/source.h"

namespace coppice::grammar {

namespace {

using Type = xgrammar::Grammar::Impl::GrammarExprType;

constexpr std::size_t kMostAlternatives = 8;  ///< of a rule that is written out: characters have three or four
constexpr int kMostUnrolled = 128;            ///< as XGrammar: each count has a mask
constexpr int kMostCounted = 4096;            ///< where most counts share one
constexpr int kEndless = -1, kUnknown = -1;
constexpr int kMostDepth = 8;           ///< of rules in rules; these functions recurse
constexpr int kMostAdded = kMaxStates;  ///< sequences; the rest stays as it is, and is counted later

/// Used once. Ids are XGrammar's: of expressions and of rules.
class Unfolder {
 public:
  Unfolder(const xgrammar::Grammar& grammar, int longest)
      : builder_(grammar), root_(grammar->GetRootRuleId()), longest_(longest) {}

  /// None: nothing is to be changed.
  std::optional<xgrammar::Grammar> run() {
    const int n_rules = builder_.NumRules(), n_exprs = builder_.NumGrammarExprs();
    flat_.resize(static_cast<std::size_t>(n_rules));
    for (int expr = 0; expr < n_exprs; ++expr) unfold_repeats(expr);
    for (int rule = 0; rule < n_rules; ++rule) unfold_heads(rule);
    if (!changed_) return {};
    return builder_.Get(root_);
  }

 private:
  using Elements = std::vector<std::int32_t>;  // of a sequence
  using Alternatives = std::vector<Elements>;  // none is empty
  struct Flat {
    bool known = false;
    std::optional<Alternatives> alternatives;
  };

  struct Expr {
    Type type;
    std::vector<std::int32_t> data;
  };
  /// A copy: what the builder gives is lost when something is added.
  Expr expr(std::int32_t id) {
    const auto view = builder_.GetGrammarExpr(id);
    return {view.type, {view.begin(), view.end()}};
  }

  /// What the rule is without other rules: sequences of terminals, few of them, each of which takes a character or
  /// more.
  const std::optional<Alternatives>& flat(std::int32_t rule) {
    static const std::optional<Alternatives> none;
    if (static_cast<std::size_t>(rule) >= flat_.size()) return none;  // one of ours
    Flat& flat = flat_[static_cast<std::size_t>(rule)];
    if (!flat.known && depth_ < kMostDepth) {
      flat.known = true;  // a rule that comes back to itself finds nothing here
      ++depth_;
      flat.alternatives = flatten(rule);
      --depth_;
    }
    return flat.alternatives;
  }

  std::optional<Alternatives> flatten(std::int32_t rule) {
    const Expr body = expr(builder_.GetRule(rule).body_expr_id);
    if (body.type != Type::kChoices) return {};
    Alternatives all;
    for (const std::int32_t choice : body.data) {
      auto some = flatten_sequence(expr(choice));
      if (!some || all.size() + some->size() > kMostAlternatives) return {};
      for (Elements& one : *some) all.push_back(std::move(one));
    }
    return all;
  }

  std::optional<Alternatives> flatten_sequence(const Expr& sequence) {
    if (sequence.type != Type::kSequence) return {};
    Alternatives all(1);
    for (const std::int32_t id : sequence.data) {
      const Expr element = expr(id);
      if (element.type == Type::kRuleRef) {
        const auto& inner = flat(element.data[0]);
        if (!inner || all.size() * inner->size() > kMostAlternatives) return {};
        Alternatives longer;
        for (const Elements& before : all) {
          for (const Elements& behind : *inner) {
            longer.push_back(before);
            longer.back().insert(longer.back().end(), behind.begin(), behind.end());
          }
        }
        all = std::move(longer);
        continue;
      }
      const bool is_ascii = std::ranges::all_of(element.data, [](std::int32_t byte) { return byte < 0x80; });
      const bool consumes = element.type == Type::kCharacterClass ||
                            (element.type == Type::kByteString && !element.data.empty() && is_ascii);
      const bool follows = element.type == Type::kRepeat && flat(element.data[0]);  // a few hexadecimal digits
      if (!consumes && (!follows || all.front().empty())) return {};
      for (Elements& one : all) one.push_back(id);
    }
    if (all.front().empty()) return {};
    return all;
  }

  /// The rule's alternatives, each with `rest` behind.
  void add_choices(const Alternatives& alternatives, std::span<const std::int32_t> rest,
                   std::vector<std::int32_t>& to) {
    for (Elements elements : alternatives) {
      elements.insert(elements.end(), rest.begin(), rest.end());
      to.push_back(builder_.AddSequence(elements));
      ++n_added_;
    }
  }

  void unfold_heads(std::int32_t rule) {
    const Expr body = expr(builder_.GetRule(rule).body_expr_id);
    if (body.type != Type::kChoices) return;
    std::vector<std::int32_t> choices;
    bool changed = false;
    for (const std::int32_t choice : body.data) {
      const Expr sequence = expr(choice);
      const bool is_sequence = sequence.type == Type::kSequence && !sequence.data.empty();
      const Expr head = is_sequence ? expr(sequence.data.front()) : Expr{.type = Type::kEmptyStr, .data = {}};
      if (head.type != Type::kRuleRef || !flat(head.data[0]) || n_added_ > kMostAdded) {
        choices.push_back(choice);
        continue;
      }
      add_choices(*flat(head.data[0]), std::span(sequence.data).subspan(1), choices);
      changed = true;
    }
    if (!changed) return;
    builder_.UpdateRuleBody(rule, builder_.AddChoices(choices));
    changed_ = true;
  }

  /// Of each sequence: repeats, and the byte behind them.
  void unfold_repeats(std::int32_t sequence) {
    const Expr elements = expr(sequence);
    if (elements.type != Type::kSequence) return;
    for (std::size_t i = 0; i < elements.data.size(); ++i) {
      const Expr repeat = expr(elements.data[i]);
      if (repeat.type != Type::kRepeat) continue;
      const Expr next =
          i + 1 < elements.data.size() ? expr(elements.data[i + 1]) : Expr{.type = Type::kEmptyStr, .data = {}};
      const bool closes = next.type == Type::kByteString && !next.data.empty();
      unfold_repeat(elements.data[i], repeat, closes ? next.data[0] : kUnknown);
    }
  }

  /// rule{least, most} becomes a rule for each count that may still follow, shared by all repeats of the rule.
  void unfold_repeat(std::int32_t id, const Expr& repeat, std::int32_t end) {
    const int least = repeat.data[1], most = repeat.data[2];
    const auto& alternatives = flat(repeat.data[0]);
    if (!alternatives || n_added_ > kMostAdded || most == 0) return;
    const bool known_end = end != kUnknown && !begins_with(*alternatives, end);
    if (std::max(least, most) > (known_end ? kMostCounted : kMostUnrolled)) return;
    const bool is_class = alternatives->size() == 1 && alternatives->front().size() == 1;
    if (is_class && (!known_end || most <= 1)) return;  // XGrammar writes it out itself
    const std::int32_t rule = first_like(repeat.data[0]);
    std::int32_t behind = most < 0 ? any_number(rule) : -1;
    for (int i = 1; i <= most - least; ++i) behind = counted({rule, known_end ? end : kUnknown, 0, i}, behind);
    const int may = most < 0 ? kEndless : most - least;
    for (int i = 1; i <= least; ++i) behind = counted({rule, known_end ? end : kUnknown, i, may}, behind);
    auto view = builder_.GetGrammarExpr(id);
    view.SetData(0, behind);
    view.SetData(1, 1);
    view.SetData(2, 1);
    changed_ = true;
  }

  /// The first rule with the same alternatives: each string of a schema has its own.
  std::int32_t first_like(std::int32_t rule) {
    std::vector<std::int32_t> content;
    for (const Elements& elements : *flat(rule)) {
      for (const std::int32_t id : elements) {
        const Expr element = expr(id);
        content.push_back(static_cast<std::int32_t>(element.type));
        content.push_back(static_cast<std::int32_t>(element.data.size()));
        content.insert(content.end(), element.data.begin(), element.data.end());
      }
      content.push_back(-1);
    }
    return firsts_.try_emplace(std::move(content), rule).first->second;
  }

  /// A rule, the byte behind its repeats, how often the rule must come and how often it may come then.
  using Count = std::tuple<std::int32_t, std::int32_t, int, int>;

  std::int32_t counted(const Count& count, std::int32_t behind) {
    const auto [at, is_new] = counted_.try_emplace(count, -1);
    if (!is_new) return at->second;
    const auto [rule, end, least, may] = count;
    std::vector<std::int32_t> choices, rest;
    if (least == 0) choices.push_back(builder_.AddEmptyStr());
    if (behind >= 0) rest.push_back(builder_.AddRuleRef(behind));
    if (end != kUnknown && (may == kEndless || least + may >= longest_)) {
      rest.insert(rest.begin(), builder_.AddRuleRef(far(rule, end)));
      choices.push_back(builder_.AddSequence(rest));
      ++n_added_;
    } else {
      add_choices(*flat(rule), rest, choices);
    }
    at->second = add_rule(rule, "n", choices);
    if (end != kUnknown) builder_.UpdateLookaheadAssertion(at->second, builder_.AddSequence({byte(end)}));
    return at->second;
  }

  std::int32_t byte(std::int32_t value) { return builder_.AddByteString(std::vector<std::int32_t>{value}); }

  std::int32_t any_number(std::int32_t rule) {
    const auto [at, is_new] = counted_.try_emplace({rule, kUnknown, 0, kEndless}, -1);
    if (!is_new) return at->second;
    const std::int32_t itself = builder_.AddEmptyRuleWithHint(builder_.GetRule(rule).name + "_n");
    const std::vector<std::int32_t> rest{builder_.AddRuleRef(itself)};
    std::vector<std::int32_t> choices{builder_.AddEmptyStr()};
    add_choices(*flat(rule), rest, choices);
    builder_.UpdateRuleBody(itself, builder_.AddChoices(choices));
    return at->second = itself;
  }

  /// The rule once, where as many as the longest token has may be written: one mask does for all these counts. XGrammar
  /// computes it ahead if it is told what follows (a look ahead), and takes its word only if the rule stands once, and
  /// not as the last.
  std::int32_t far(std::int32_t rule, std::int32_t end) {
    const auto [at, is_new] = far_.try_emplace({rule, end}, -1);
    if (!is_new) return at->second;
    if (nothing_ < 0) nothing_ = add_rule(rule, "0", {builder_.AddEmptyStr()});
    const std::int32_t nothing = builder_.AddRuleRef(nothing_);  // before a rule that must not be written out
    const std::int32_t following = builder_.AddEmptyRuleWithHint(builder_.GetRule(rule).name + "_t");
    std::vector<std::int32_t> follow{builder_.AddSequence({byte(end)})};
    add_choices(*flat(rule), std::vector{builder_.AddRuleRef(following)}, follow);
    builder_.UpdateRuleBody(following, builder_.AddChoices(follow));
    std::vector<std::int32_t> choices;
    add_choices(*flat(rule), {}, choices);
    const std::int32_t known = add_rule(rule, "x", choices);
    builder_.UpdateLookaheadAssertion(known, builder_.AddSequence({builder_.AddRuleRef(following)}));
    const std::int32_t step = builder_.AddSequence({nothing, builder_.AddRuleRef(known), nothing});
    return at->second = add_rule(rule, "far", {step});
  }

  std::int32_t add_rule(std::int32_t of, const char* what, const std::vector<std::int32_t>& choices) {
    return builder_.AddRuleWithHint(builder_.GetRule(of).name + "_" + what, builder_.AddChoices(choices));
  }

  /// May one of them begin with the byte? Yes, too, where it isn't ASCII.
  bool begins_with(const Alternatives& alternatives, std::int32_t byte) {
    return byte >= 0x80 || std::ranges::any_of(alternatives, [&](const Elements& elements) {
             const Expr head = expr(elements.front());
             if (head.type == Type::kByteString) return head.data.front() == byte;
             bool within = false;
             for (std::size_t i = 1; i + 1 < head.data.size(); i += 2)
               within |= head.data[i] <= byte && byte <= head.data[i + 1];
             return within != (head.data.front() != 0);
           });
  }

  xgrammar::GrammarBuilder builder_;
  std::int32_t root_;
  int longest_;
  std::vector<Flat> flat_;
  std::map<Count, std::int32_t> counted_;  ///< the rules of ours
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> far_;
  std::map<std::vector<std::int32_t>, std::int32_t> firsts_;
  std::int32_t nothing_ = -1;
  int depth_ = 0, n_added_ = 0;
  bool changed_ = false;
};

}  // namespace

std::optional<xgrammar::Grammar> unfolded(const xgrammar::Grammar& grammar, int longest) {
  return Unfolder(grammar, longest).run();
}

}  // namespace coppice::grammar
