// XGrammar's private headers: its public ones show rules, and take them, as text or as JSON of its own layout only.
#include "grammar/name_tree.h"

#include <fmt/format.h>
#include <grammar_builder.h>
#include <grammar_impl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace coppice::grammar {

namespace {

using Type = xgrammar::Grammar::Impl::GrammarExprType;
using Id = std::int32_t;

constexpr std::size_t kLongRow = 32;  ///< parts; shorter rows are as fast
constexpr Id kNone = -1;

/// Used once. Ids are XGrammar's: of expressions and of rules.
class NameTrees {
 public:
  explicit NameTrees(const xgrammar::Grammar& grammar) : builder_(grammar), root_(grammar->GetRootRuleId()) {}

  std::optional<xgrammar::Grammar> run() {
    const int n_rules = builder_.NumRules();  // without those that are added here
    find_links();
    for (const auto& row : rows()) rewrite(row);
    if (written_.empty()) return {};
    for (Id rule = 0; rule < n_rules; ++rule) rewrite_first(rule);
    return builder_.Get(root_);
  }

 private:
  /// Of a sequence: expressions, one for each content, or the blank that may come (mark()).
  using Elements = std::vector<Id>;
  using Alternatives = std::vector<Elements>;
  using Row = std::vector<Id>;  // rules

  /// A rule of two alternatives: the part and the next rule, or only that. kNone: the row's end.
  struct Link {
    Id next = kNone;
    Elements part;
  };
  struct Branch {
    std::string label;  ///< not empty
    Id target = kNone;  ///< a rule
    auto operator<=>(const Branch&) const = default;
  };
  using Branches = std::vector<Branch>;  // no two begin with the same byte

  struct Expr {
    Type type;
    std::vector<Id> data;
  };
  /// A copy: what the builder gives is lost when something is added.
  Expr expr(Id id) {
    const auto view = builder_.GetGrammarExpr(id);
    return {view.type, {view.begin(), view.end()}};
  }
  Expr body(Id rule) { return expr(builder_.GetRule(rule).body_expr_id); }

  // --- elements ---

  static Id mark(Id character_class) { return -2 - character_class; }
  static bool is_mark(Id element) { return element <= -2; }
  static Id marked(Id element) { return -2 - element; }

  /// The first expression with the same content.
  Id canonical(Id id) {
    Expr e = expr(id);
    e.data.push_back(static_cast<Id>(e.type));
    return firsts_.try_emplace(std::move(e.data), id).first->second;
  }
  Id ref(Id rule) {
    const auto [at, is_new] = refs_.try_emplace(rule, kNone);
    if (is_new) at->second = canonical(builder_.AddRuleRef(rule));
    return at->second;
  }

  /// Of a rule that is "" or one character of a class: the class. Else kNone.
  Id blank(Id rule) {
    const auto [at, is_new] = blanks_.try_emplace(rule, kNone);
    if (!is_new) return at->second;
    const Expr choices = body(rule);
    if (choices.type != Type::kChoices || choices.data.size() != 2) return kNone;
    if (expr(choices.data[0]).type != Type::kEmptyStr) return kNone;
    const Expr sequence = expr(choices.data[1]);
    if (sequence.type != Type::kSequence || sequence.data.size() != 1) return kNone;
    if (expr(sequence.data[0]).type != Type::kCharacterClass) return kNone;
    return at->second = canonical(sequence.data[0]);
  }

  Elements elements(const Expr& sequence) {
    Elements all;
    for (const Id id : sequence.data) {
      const Expr e = expr(id);
      const Id of_class = e.type == Type::kRuleRef ? blank(e.data[0]) : kNone;
      all.push_back(of_class != kNone ? mark(of_class) : canonical(id));
    }
    return all;
  }

  bool is_name(Id element) { return !is_mark(element) && expr(element).type == Type::kByteString; }
  std::string name(Id element) {
    std::string bytes;
    for (const Id byte : expr(element).data) bytes += static_cast<char>(byte);
    return bytes;
  }

  // --- rows ---

  void find_links() {
    const int n_rules = builder_.NumRules();
    for (Id rule = 0; rule < n_rules; ++rule) {
      if (auto link = link_of(rule)) links_.emplace(rule, *std::move(link));
    }
  }

  std::optional<Link> link_of(Id rule) {
    const Expr choices = body(rule);
    if (rule == root_ || choices.type != Type::kChoices || choices.data.size() != 2) return {};
    for (const std::size_t skip : {0, 1}) {
      const Expr skipped = expr(choices.data[skip]), part = expr(choices.data[1 - skip]);
      if (part.type != Type::kSequence || part.data.empty()) continue;
      Link link{.part = elements(part)};
      if (skipped.type == Type::kEmptyStr) return link;
      if (skipped.type != Type::kSequence || skipped.data.size() != 1) continue;
      const Expr next = expr(skipped.data[0]);
      if (next.type != Type::kRuleRef || next.data[0] == rule || link.part.back() != canonical(skipped.data[0]))
        continue;
      link.next = next.data[0];
      link.part.pop_back();
      if (!link.part.empty()) return link;
    }
    return {};
  }

  /// The longest ones, in order.
  std::vector<Row> rows() {
    std::map<Id, bool> inner;
    for (const auto& [rule, link] : links_)
      if (link.next != kNone) inner[link.next] = true;
    std::vector<Row> all;
    for (const auto& [rule, link] : links_) {
      if (inner.contains(rule)) continue;
      Row row;
      for (Id at = rule; links_.contains(at) && row.size() <= links_.size(); at = links_.at(at).next) row.push_back(at);
      if (row.size() >= kLongRow && row.size() <= links_.size()) all.push_back(std::move(row));
    }
    return all;
  }

  /// How many elements all parts begin with, before a name. None: they have no names.
  std::optional<std::size_t> common(const Row& row) {
    const Elements& first = links_.at(row.front()).part;
    const Elements& second = links_.at(row[1]).part;
    std::size_t n = 0;
    while (n < first.size() && n < second.size() && first[n] == second[n]) ++n;
    const bool good = std::ranges::all_of(row, [&](Id rule) {
      const Elements& part = links_.at(rule).part;
      return part.size() > n && is_name(part[n]) &&
             std::ranges::equal(std::span(part).first(n), std::span(first).first(n));
    });
    return good ? std::optional(n) : std::nullopt;
  }

  void rewrite(const Row& row) {
    const auto n_common = common(row);
    if (!n_common) return;
    const Id end = links_.at(row.back()).next;
    std::vector<std::pair<Id, Id>> bodies;  // of the rules
    Id tree = kNone;
    for (const Id rule : row | std::views::reverse) {
      const Link& link = links_.at(rule);
      Elements rest(link.part.begin() + static_cast<std::ptrdiff_t>(*n_common) + 1, link.part.end());
      if (link.next != kNone) rest.push_back(ref(link.next));
      const auto more = with(tree, name(link.part[*n_common]), rule_of(straight(rest)));
      if (!more) return;  // a name begins with another: the row stays as it is
      tree = *more;
      Elements some(link.part.begin(), link.part.begin() + static_cast<std::ptrdiff_t>(*n_common));
      some.push_back(ref(tree));
      Alternatives all = straight(some);
      all.insert(all.begin(), end == kNone ? Elements() : Elements{ref(end)});
      bodies.emplace_back(rule, choices(all));
    }
    for (const auto& [rule, body] : bodies) {
      builder_.UpdateRuleBody(rule, body);
      written_[rule] = true;
    }
  }

  /// The first part of a row has a rule with an alternative for each: its names become a tree, too.
  void rewrite_first(Id rule) {
    const Expr all = body(rule);
    if (written_.contains(rule) || all.type != Type::kChoices || all.data.size() < kLongRow) return;
    Id tree = kNone;
    Alternatives others;
    for (const Id id : all.data) {
      const Expr sequence = expr(id);
      Elements some = sequence.type == Type::kSequence ? elements(sequence) : Elements();
      if (some.size() < 2 || !is_name(some.front())) {
        for (Elements& one : straight(some)) others.push_back(std::move(one));
        continue;
      }
      const auto more = with(tree, name(some.front()), rule_of(straight(std::span(some).subspan(1))));
      if (!more) return;
      tree = *more;
    }
    if (tree == kNone || others.size() >= kLongRow) return;
    others.push_back({ref(tree)});
    std::ranges::sort(others, {}, [](const Elements& some) { return !some.empty(); });
    builder_.UpdateRuleBody(rule, choices(others));
  }

  // --- trees: rules whose alternatives begin with different bytes ---

  /// The tree with one more name. None: a name begins with another.
  std::optional<Id> with(Id tree, std::string_view name, Id behind) {
    if (name.empty() || (tree != kNone && !branches_.contains(tree))) return {};
    Branches all = tree == kNone ? Branches() : branches_.at(tree);
    const auto at = std::ranges::lower_bound(all, name.front(), {}, [](const Branch& b) { return b.label.front(); });
    if (at == all.end() || at->label.front() != name.front()) {
      all.insert(at, {std::string(name), behind});
      return tree_of(all);
    }
    const auto n = static_cast<std::size_t>(std::ranges::mismatch(at->label, name).in1 - at->label.begin());
    const Id below = n == at->label.size() ? at->target : tree_of({{at->label.substr(n), at->target}});
    const auto more = with(below, name.substr(n), behind);
    if (!more) return {};
    *at = {std::string(name.substr(0, n)), *more};
    return tree_of(all);
  }

  Id tree_of(const Branches& all) {
    const auto [at, is_new] = trees_.try_emplace(all, kNone);
    if (!is_new) return at->second;
    Alternatives some;
    for (const auto& [label, target] : all) {
      const std::size_t n = all.size() == 1 ? label.size() : 1;  // the rest of a label is there once for all trees
      const Id behind = label.size() == n ? target : rule_of({{bytes(label.substr(n)), ref(target)}});
      some.push_back({bytes(label.substr(0, n)), ref(behind)});
    }
    at->second = add_rule(choices(some));
    branches_[at->second] = all;
    return at->second;
  }

  Id bytes(const std::string& text) {
    std::vector<Id> data;
    for (const char c : text) data.push_back(static_cast<unsigned char>(c));
    return canonical(builder_.AddByteString(data));
  }

  // --- rules ---

  /// A sequence in which what follows a blank is a rule of its own, so that no rule ends within it.
  Alternatives straight(std::span<const Id> some) {
    if (some.empty()) return {{}};
    if (is_mark(some.front())) {
      Alternatives behind = straight(some.subspan(1));
      const bool short_one = behind.size() == 1 && !behind.front().empty() && is_name(behind.front().front());
      Elements rest = short_one ? behind.front() : Elements{ref(rule_of(behind))};
      Elements blank{marked(some.front())};
      blank.insert(blank.end(), rest.begin(), rest.end());
      return {std::move(rest), std::move(blank)};
    }
    const auto n = static_cast<std::size_t>(std::ranges::find_if(some, is_mark) - some.begin());
    Elements one(some.begin(), some.begin() + static_cast<std::ptrdiff_t>(n));
    if (n < some.size()) one.push_back(ref(rule_of(straight(some.subspan(n)))));
    return {std::move(one)};
  }

  Id rule_of(const Alternatives& all) {
    if (all.size() == 1 && all.front().size() == 1) {
      if (const Expr only = expr(all.front().front()); only.type == Type::kRuleRef) return only.data[0];
    }
    const auto [at, is_new] = rules_.try_emplace(all, kNone);
    if (is_new) at->second = add_rule(choices(all));
    return at->second;
  }

  Id choices(const Alternatives& all) {
    std::vector<Id> ids;
    for (const Elements& some : all) {
      const auto [at, is_new] = sequences_.try_emplace(some, kNone);
      if (is_new) at->second = some.empty() ? builder_.AddEmptyStr() : builder_.AddSequence(some);
      ids.push_back(at->second);
    }
    return builder_.AddChoices(ids);
  }

  Id add_rule(Id body) {
    std::string name;
    do name = fmt::format("name_tree_{}", n_rules_++);
    while (builder_.GetRuleId(name) >= 0);
    return builder_.AddRule(name, body);
  }

  xgrammar::GrammarBuilder builder_;
  Id root_;
  std::map<std::vector<Id>, Id> firsts_;
  std::unordered_map<Id, Id> refs_, blanks_;
  std::map<Id, Link> links_;
  std::map<Id, bool> written_;
  std::map<Branches, Id> trees_;
  std::unordered_map<Id, Branches> branches_;  ///< of the trees, by rule
  std::map<Alternatives, Id> rules_;
  std::map<Elements, Id> sequences_;
  int n_rules_ = 0;
};

}  // namespace

std::optional<xgrammar::Grammar> with_name_trees(const xgrammar::Grammar& grammar) {
  return NameTrees(grammar).run();
}

}  // namespace coppice::grammar
