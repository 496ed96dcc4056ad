#include "text/argument_list.h"

#include <chat-peg-parser.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
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

/// Each list is a state: those that may still come, how many have, and whether one must come without what stands before
/// others.
class ListWriter {
 public:
  ListWriter(const ArgumentTexts& texts, GbnfRules& rules) : texts_(texts), rules_(rules) {}

  std::string rule() {
    const std::size_t n = texts_.items.size();
    return n <= kMostInAnyOrder ? any_order((1U << n) - 1, texts_.between_only)
                                : in_order(0, 0, texts_.between_only).value_or("");
  }

 private:
  /// Behind `used` of them `required` others must come: may one come that need not?
  bool has_room(std::size_t used, std::size_t required) const {
    return required < texts_.most - std::min(used, texts_.most);
  }

  /// `left`: those that may still come, by bit. `first`: one must, and nothing stands before it.
  std::string any_order(unsigned left, bool first) {
    std::string& name = names_[{left, 0, first}];
    if (!name.empty()) return name;
    std::string body;
    std::size_t required = 0;
    for (std::size_t i = 0; i < texts_.items.size(); ++i) required += (left >> i & 1U) != 0 && texts_.items[i].required;
    const std::size_t used = texts_.items.size() - static_cast<std::size_t>(std::popcount(left));
    for (std::size_t i = 0; i < texts_.items.size(); ++i) {
      if ((left >> i & 1U) == 0 || (!texts_.items[i].required && !has_room(used, required))) continue;
      const unsigned behind = left & ~(1U << i);
      body += (body.empty() ? "" : " | ") + with(i, first, behind == 0 ? "" : any_order(behind, false));
    }
    if (!first && required == 0 && used >= texts_.least) body = body.empty() ? "\"\"" : "\"\" | " + body;
    return names_[{left, 0, first}] = rules_.add(body);
  }

  /// From the i-th on. nullopt: there is no such list.
  std::optional<std::string> in_order(std::size_t i, std::size_t used, bool first) {
    if (i == texts_.items.size()) return first || used < texts_.least ? std::nullopt : std::optional(std::string());
    const bool counted = texts_.least > 0 || texts_.most != ArgumentTexts::kAnyNumber;
    if (!counted) used = 0;
    const auto known = in_order_.find({i, used, first});
    if (known != in_order_.end()) return known->second;
    std::size_t required = 0;
    for (std::size_t k = i; k < texts_.items.size(); ++k) required += texts_.items[k].required ? 1 : 0;
    std::string body;
    const auto add = [&](const std::string& more) {
      body += (body.empty() ? "" : " | ") + (more.empty() ? "\"\"" : more);
    };
    if (!texts_.items[i].required)
      if (const auto without = in_order(i + 1, used, first)) add(*without);
    if (texts_.items[i].required || has_room(used, required))
      if (const auto then = in_order(i + 1, used + 1, false)) add(with(i, first, *then));
    std::optional<std::string> rule;
    if (!body.empty()) rule = rules_.add(body);
    return in_order_[{i, used, first}] = rule;
  }

  std::string with(std::size_t i, bool first, const std::string& then) const {
    std::string one;
    const auto add = [&](const std::string& text) { one += text.empty() ? "" : (one.empty() ? "" : " ") + text; };
    if (!first) add(texts_.before);
    add(texts_.items[i].text);
    add(texts_.behind);
    add(then);
    return one;
  }

  using Rest = std::tuple<std::size_t, std::size_t, bool>;
  const ArgumentTexts& texts_;
  GbnfRules& rules_;
  std::map<Rest, std::string> names_;
  std::map<Rest, std::optional<std::string>> in_order_;
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

void count_as(const common_json& object, std::size_t elsewhere, ArgumentTexts& texts) {
  const auto left = [&](const char* bound) {
    const auto all = static_cast<std::size_t>(std::max(object.value(bound, 0), 0));
    return all - std::min(all, elsewhere);
  };
  texts.least = left("minProperties");
  if (object.contains("maxProperties")) texts.most = left("maxProperties");
}

bool may_come(const ArgumentTexts& texts) {
  const auto required = static_cast<std::size_t>(std::ranges::count(texts.items, true, &ArgumentTexts::Item::required));
  const std::size_t least = std::max(texts.least, texts.between_only ? std::size_t{1} : 0);
  return std::max(required, least) <= std::min(texts.most, texts.items.size());
}

std::string arguments_rule(const ArgumentTexts& texts, GbnfRules& rules) {
  return texts.items.empty() ? "" : ListWriter(texts, rules).rule();
}

}  // namespace coppice::text
