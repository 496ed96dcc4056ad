#include "text/parser_view.h"

#include <algorithm>
#include <type_traits>
#include <variant>

namespace coppice::text {

namespace {

template <typename T>
concept Parent = requires(const T& part) { part.children; };
template <typename T>
concept Shell = requires(const T& part) { part.child; };

}  // namespace

std::vector<ParserView::Id> ParserView::children(Id id) const {
  return std::visit(
      [&](const auto& part) -> std::vector<Id> {
        using Parser = std::decay_t<decltype(part)>;
        if constexpr (Parent<Parser>) return {part.children.begin(), part.children.end()};
        if constexpr (Shell<Parser>) return {part.child};
        if constexpr (std::is_same_v<Parser, common_peg_ref_parser>) return {arena_.get_rule(part.name)};
        return {};
      },
      arena_.get(id));
}

ParserView::Id ParserView::bare(Id id, std::string_view kept) const {
  for (;;) {
    const auto* tag = as<common_peg_tag_parser>(id);
    const bool shell = (tag != nullptr && tag->tag != kept) || as<common_peg_atomic_parser>(id) != nullptr ||
                       as<common_peg_rule_parser>(id) != nullptr || as<common_peg_ref_parser>(id) != nullptr;
    if (!shell) return id;
    id = children(id).front();
  }
}

void ParserView::learn(Id id, std::set<Id>& seen, Facts& facts) const {
  if (!seen.insert(id).second) return;
  if (const auto* tag = as<common_peg_tag_parser>(id)) {
    facts.tags.insert(tag->tag);
    if (const auto* literal = as<common_peg_literal_parser>(bare(tag->child)))
      facts.names[tag->tag].insert(literal->literal);
  }
  for (const Id child : children(id)) learn(child, seen, facts);
}

const ParserView::Facts& ParserView::facts(Id id) {
  Facts& facts = facts_[id];
  if (facts.known) return facts;
  facts.known = true;
  std::set<Id> seen;
  learn(id, seen, facts);
  return facts;
}

bool ParserView::has(Id id, const std::string& tag) {
  return facts(id).tags.contains(tag);
}

const std::set<std::string>& ParserView::names(Id id, const std::string& tag) {
  static const std::set<std::string> none;
  const auto& names = facts(id).names;
  const auto found = names.find(tag);
  return found == names.end() ? none : found->second;
}

std::vector<ParserView::Id> ParserView::outermost(Id id, const std::string& tag) const {
  std::vector<Id> found, open = {id};
  std::set<Id> seen;
  while (!open.empty()) {
    const Id next = open.back();
    open.pop_back();
    if (!seen.insert(next).second) continue;
    if (const auto* tagged = as<common_peg_tag_parser>(next); tagged != nullptr && tagged->tag == tag) {
      found.push_back(next);
      continue;
    }
    std::vector<Id> parts = children(next);
    open.insert(open.end(), parts.rbegin(), parts.rend());
  }
  return found;
}

std::vector<std::string> ParserView::delimiters(Id id) const {
  std::vector<Id> open = {id};
  std::set<Id> seen;
  while (!open.empty()) {
    const Id next = open.back();
    open.pop_back();
    if (!seen.insert(next).second) continue;
    if (const auto* until = as<common_peg_until_parser>(next)) return until->delimiters;
    std::vector<Id> parts = children(next);
    open.insert(open.end(), parts.rbegin(), parts.rend());
  }
  return {};
}

bool ParserView::begins_with(Id id, std::string_view text) const {
  const Id part = bare(id);
  if (const auto* row = as<common_peg_sequence_parser>(part))
    return !row->children.empty() && begins_with(row->children.front(), text);
  const auto* literal = as<common_peg_literal_parser>(part);
  return literal != nullptr && literal->literal == text;
}

std::string ParserView::optional_end(Id text, Id next) const {
  const auto* until = as<common_peg_until_parser>(bare(text));
  const auto* may = as<common_peg_repetition_parser>(next);
  if (until == nullptr || may == nullptr || may->min_count != 0 || may->max_count != 1) return "";
  const auto* literal = as<common_peg_literal_parser>(bare(may->child));
  const bool ends =
      literal != nullptr && std::ranges::find(until->delimiters, literal->literal) != until->delimiters.end();
  return ends ? literal->literal : "";
}

std::vector<ParserView::Id> ParserView::triggers() const {
  std::vector<Id> found;
  for (Id id = 0; id < arena_.size(); ++id)
    if (const auto* rule = as<common_peg_rule_parser>(id); rule != nullptr && rule->trigger) found.push_back(id);
  return found;
}

}  // namespace coppice::text
