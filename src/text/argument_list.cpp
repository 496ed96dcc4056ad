#include "text/argument_list.h"

#include <chat-peg-parser.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace coppice::text {

namespace {

using Tags = common_chat_peg_builder;
using Id = ParserView::Id;

/// The arguments of a choice between some; empty: it is none.
std::vector<Id> choice_of_arguments(const ParserView& view, Id id) {
  const auto* choice = view.as<common_peg_choice_parser>(view.bare(id, Tags::TOOL_ARG));
  if (choice == nullptr) return {};
  // Calls of tools with one argument each are no arguments.
  const bool single = std::ranges::all_of(choice->children, [&](Id one) {
    return view.outermost(one, Tags::TOOL_ARG).size() == 1 && view.outermost(one, Tags::TOOL_NAME).empty();
  });
  return single ? choice->children : std::vector<Id>();
}

/// Sets of up to this many arguments come in any order: 2^n rules.
constexpr std::size_t kMostInAnyOrder = 5;

class ListWriter {
 public:
  ListWriter(const ArgumentTexts& texts, GbnfRules& rules) : texts_(texts), rules_(rules) {}

  /// `left`: those that may still come, by bit. `first`: none has come.
  std::string rule(std::uint64_t left, bool first) {
    if (!texts_.between_only) first = false;
    std::string& name = names_[{left, first}];
    if (!name.empty()) return name;
    std::string body;
    bool may_end = !first;
    for (std::size_t i = 0; i < texts_.items.size(); ++i) {
      if ((left >> i & 1U) == 0) continue;
      const ArgumentTexts::Item& item = texts_.items[i];
      const std::uint64_t behind = any_order() ? left & ~(1ULL << i) : left >> (i + 1) << (i + 1);
      std::string one;
      const auto add = [&](const std::string& text) { one += text.empty() ? "" : (one.empty() ? "" : " ") + text; };
      if (!first) add(texts_.before);
      add(item.text);
      add(texts_.behind);
      if (behind != 0) add(rule(behind, false));
      body += (body.empty() ? "" : " | ") + one;
      may_end &= !item.required;
      if (!any_order() && item.required) break;
    }
    if (may_end) body = "\"\" | " + body;
    return names_[{left, first}] = rules_.add(body);
  }

 private:
  bool any_order() const { return texts_.items.size() <= kMostInAnyOrder; }

  const ArgumentTexts& texts_;
  GbnfRules& rules_;
  std::map<std::pair<std::uint64_t, bool>, std::string> names_;
};

}  // namespace

ArgumentList repeated(const ParserView& view, Id id) {
  const auto* repetition = view.as<common_peg_repetition_parser>(id);
  if (repetition == nullptr || repetition->min_count != 0 || repetition->max_count >= 0) return {};
  ArgumentList list{.items = choice_of_arguments(view, repetition->child)};
  if (!list.items.empty()) return list;
  const auto* row = view.as<common_peg_sequence_parser>(view.bare(repetition->child, Tags::TOOL_ARG));
  if (row == nullptr) return {};
  for (const Id part : row->children) {
    if (std::vector<Id> items = choice_of_arguments(view, part); !items.empty()) {
      if (!list.items.empty()) return {};
      list.items = std::move(items);
    } else {
      (list.items.empty() ? list.before : list.behind).push_back(part);
    }
  }
  return list.items.empty() ? ArgumentList() : list;
}

ArgumentList first_and_rest(const ParserView& view, Id first, Id rest) {
  if (choice_of_arguments(view, first).empty()) return {};
  ArgumentList list = repeated(view, rest);
  list.between_only = true;
  return list;
}

std::string arguments_rule(const ArgumentTexts& texts, GbnfRules& rules) {
  constexpr std::size_t kBits = 63;
  if (texts.items.size() > kBits) {  // no tool has so many: in any order and number
    std::string choice;
    for (const auto& item : texts.items) choice += (choice.empty() ? "" : " | ") + item.text;
    return rules.add(fmt::format("({} ({}) {})*", texts.before, choice, texts.behind));
  }
  return ListWriter(texts, rules).rule((1ULL << texts.items.size()) - 1, true);
}

}  // namespace coppice::text
